#include "marlin_pack.hpp"

#include <algorithm>
#include <cmath>
#include <cstring>

#include "scalar_decode.hpp"
#include "thread_pool.hpp"

namespace autoplace {
namespace {

// Codes of 64 weights against a scale that bf16 can hold; returns the scale's bits. Weights beyond
// `count` are zero.
template <int Bits>
uint16_t quantize_group(const float* w, int64_t count, int8_t* codes) {
  constexpr float kLow = -(1 << (Bits - 1)), kHigh = (1 << (Bits - 1)) - 1;
  float values[kMarlinGroup] = {};
  std::memcpy(values, w, static_cast<size_t>(count) * 4);
  float most = 0.0f;
  for (float value : values) most = std::fmax(most, std::fabs(value));
  const uint16_t bits = float_to_bfloat(2.0f * most / ((1 << Bits) - 1));
  const float scale = bfloat_to_float(bits);
  const float inverse = scale > 0.0f ? 1.0f / scale : 0.0f;
  for (int i = 0; i < kMarlinGroup; ++i) {
    const float code = std::nearbyint(values[i] * inverse);
    codes[i] = static_cast<int8_t>(std::fmin(std::fmax(code, kLow), kHigh));
  }
  return bits;
}

template <int Bits>
void store_codes(const int8_t* codes, int64_t begin, int64_t lane, uint8_t* tile) {
  for (int64_t i = 0; i < kMarlinGroup; i += 8) {
    for (int64_t j = 0; j < 4; ++j) {
      const int low = codes[i + j], high = codes[i + 4 + j];
      if constexpr (Bits == 4) {
        tile[(begin + i) / 8 * 64 + lane * 4 + j] = static_cast<uint8_t>((low + 8) | ((high + 8) << 4));
      } else {
        tile[(begin + i) / 4 * 64 + lane * 4 + j] = static_cast<uint8_t>(low);
        tile[((begin + i) / 4 + 1) * 64 + lane * 4 + j] = static_cast<uint8_t>(high);
      }
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
      const uint16_t scale = quantize_group<Bits>(count > 0 ? rows + lane * k + begin : rows, count, group);
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
