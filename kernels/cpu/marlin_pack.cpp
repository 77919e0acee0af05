#include "marlin_pack.hpp"

#include <algorithm>
#include <cstring>

#include "path.hpp"
#include "thread_pool.hpp"

namespace autoplace {
namespace {

uint32_t four_codes(const int8_t* codes) {
  uint32_t word;
  std::memcpy(&word, codes, 4);
  return word;
}

template <int Bits>
void store_codes(const int8_t* codes, int64_t begin, int64_t lane, uint8_t* tile) {
  for (int64_t i = 0; i < kMarlinGroup; i += 8) {
    const uint32_t first = four_codes(codes + i), second = four_codes(codes + i + 4);
    if constexpr (Bits == 4) {
      constexpr uint32_t kFlip = 0x08080808, kLow = 0x0f0f0f0f;  // code + 8 in four bits flips bit 3
      const uint32_t word = ((first ^ kFlip) & kLow) | (((second ^ kFlip) & kLow) << 4);
      std::memcpy(tile + (begin + i) / 8 * 64 + lane * 4, &word, 4);
    } else {
      std::memcpy(tile + (begin + i) / 4 * 64 + lane * 4, &first, 4);
      std::memcpy(tile + ((begin + i) / 4 + 1) * 64 + lane * 4, &second, 4);
    }
  }
}

// One tile of 16 rows; `rows` holds the `num_rows` real ones.
template <int Bits>
void pack_tile(const float* rows, int64_t num_rows, int64_t k, const MarlinShape& shape, int64_t tile,
               uint8_t* packed) {
  uint8_t* codes = packed + tile * shape.tile_bytes();
  uint8_t* scales = packed + shape.code_bytes() + tile * shape.groups() * kTileRows * 2;
  for (int64_t lane = 0; lane < kTileRows; ++lane) {
    const int64_t known = lane < num_rows ? k : 0;
    for (int64_t begin = 0; begin < shape.k_padded; begin += kMarlinGroup) {
      int8_t group[kMarlinGroup];
      const int64_t count = std::clamp<int64_t>(known - begin, 0, kMarlinGroup);
      const float* source = count > 0 ? rows + lane * k + begin : rows;
      const uint16_t scale = current_path().marlin_group(source, count, Bits, group);
      store_codes<Bits>(group, begin, lane, codes);
      std::memcpy(scales + (begin / kMarlinGroup * kTileRows + lane) * 2, &scale, 2);
    }
  }
}

}  // namespace

void marlin_pack(const float* rows, int64_t first_row, int64_t num_rows, int64_t n, int64_t k, int format,
                 uint8_t* packed) {
  const MarlinShape shape = marlin_shape(format, n, k);
  const int64_t first_tile = first_row / kTileRows;
  const bool last = first_row + num_rows == n;
  const int64_t end_row = last ? shape.n_padded : first_row + num_rows;
  parallel_for(end_row / kTileRows - first_tile, 1, [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) {
      const int64_t real = std::clamp<int64_t>(num_rows - i * kTileRows, 0, kTileRows);
      const float* source = real > 0 ? rows + i * kTileRows * k : rows;
      if (shape.bits == 4) {
        pack_tile<4>(source, real, k, shape, first_tile + i, packed);
      } else {
        pack_tile<8>(source, real, k, shape, first_tile + i, packed);
      }
    }
  });
}

}  // namespace autoplace
