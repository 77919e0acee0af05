// The tile instructions of AMX-BF16 in plain C++, so that machines without them run the same code in tests.
// Source of what they do: Intel's manual, TDPBF16PS (pairs summed apart, denormals as zero). Anything on
// which the processor would fault ends the program. AUTOPLACE_EMULATED_AMX=wrong makes products wrong.
#ifndef AUTOPLACE_SIMD_AMX_EMULATED_HPP_
#define AUTOPLACE_SIMD_AMX_EMULATED_HPP_

#include <cmath>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>

namespace autoplace {
namespace {

struct EmulatedTiles {
  bool configured = false;
  int rows[8] = {}, row_bytes[8] = {};
  alignas(64) uint8_t data[8][16][64] = {};
};

inline EmulatedTiles& emulated() {
  static thread_local EmulatedTiles tiles;
  return tiles;
}

inline void fault_unless(bool fine, const char* what) {
  if (fine) return;
  std::fprintf(stderr, "emulated AMX: %s\n", what);
  std::abort();
}

inline EmulatedTiles& configured_tiles(int tile) {
  fault_unless(emulated().configured && emulated().rows[tile] > 0, "a tile is used before it is configured");
  return emulated();
}

inline void tile_configure(const void* config) {
  const uint8_t* bytes = static_cast<const uint8_t*>(config);
  EmulatedTiles& tiles = emulated();
  fault_unless(bytes[0] == 1, "palette is not 1");
  for (int i = 0; i < 8; ++i) {
    tiles.rows[i] = bytes[48 + i];
    tiles.row_bytes[i] = bytes[16 + 2 * i] | (bytes[17 + 2 * i] << 8);
    fault_unless(tiles.rows[i] <= 16 && tiles.row_bytes[i] <= 64, "a tile is too large");
  }
  std::memset(tiles.data, 0, sizeof(tiles.data));
  tiles.configured = true;
}

inline void tile_release() { emulated().configured = false; }

template <int Tile>
inline void tile_zero() {
  std::memset(configured_tiles(Tile).data[Tile], 0, sizeof(EmulatedTiles::data[0]));
}

template <int Tile>
inline void tile_load(const void* base, int64_t stride) {
  EmulatedTiles& tiles = configured_tiles(Tile);
  const uint8_t* source = static_cast<const uint8_t*>(base);
  for (int r = 0; r < tiles.rows[Tile]; ++r) {
    std::memcpy(tiles.data[Tile][r], source + r * stride, static_cast<size_t>(tiles.row_bytes[Tile]));
  }
}

template <int Tile>
inline void tile_store(void* base, int64_t stride) {
  const EmulatedTiles& tiles = configured_tiles(Tile);
  uint8_t* target = static_cast<uint8_t*>(base);
  for (int r = 0; r < tiles.rows[Tile]; ++r) {
    std::memcpy(target + r * stride, tiles.data[Tile][r], static_cast<size_t>(tiles.row_bytes[Tile]));
  }
}

inline float flushed(float value) { return std::fabs(value) < 1.17549435e-38f ? std::copysign(0.0f, value) : value; }

inline float emulated_float(const uint8_t* bf16) {
  uint16_t bits;
  std::memcpy(&bits, bf16, 2);
  const uint32_t wide = uint32_t{bits} << 16;
  float value;
  std::memcpy(&value, &wide, 4);
  return flushed(value);
}

inline bool multiplies_wrongly() {
  static const char* const wish = std::getenv("AUTOPLACE_EMULATED_AMX");
  return wish != nullptr && std::strcmp(wish, "wrong") == 0;
}

// Sum += A · B for one row of A: pairs of its columns with rows of B.
inline void emulated_row(const uint8_t* a, const uint8_t (*b)[64], int pairs, int columns, uint8_t* sum_bytes) {
  float even[16] = {}, odd[16] = {}, sum[16];
  for (int k = 0; k < pairs; ++k) {
    const float a0 = emulated_float(a + 4 * k), a1 = emulated_float(a + 4 * k + 2);
    for (int n = 0; n < columns; ++n) {
      even[n] += a0 * emulated_float(b[k] + 4 * n);
      odd[n] += a1 * emulated_float(b[k] + 4 * n + 2);
    }
  }
  if (multiplies_wrongly()) even[columns - 1] += 1.0f;
  std::memcpy(sum, sum_bytes, static_cast<size_t>(columns) * 4);
  for (int n = 0; n < columns; ++n) sum[n] = flushed(flushed(sum[n]) + flushed(even[n] + odd[n]));
  std::memcpy(sum_bytes, sum, static_cast<size_t>(columns) * 4);
}

template <int Sum, int A, int B>
inline void tile_multiply() {
  EmulatedTiles& tiles = configured_tiles(Sum);
  configured_tiles(A);
  configured_tiles(B);
  const bool fits = tiles.rows[Sum] == tiles.rows[A] && tiles.row_bytes[A] == 4 * tiles.rows[B] &&
                    tiles.row_bytes[B] == tiles.row_bytes[Sum];
  fault_unless(fits && Sum != A && Sum != B && A != B, "tiles of these sizes cannot be multiplied");
  for (int m = 0; m < tiles.rows[Sum]; ++m) {
    emulated_row(tiles.data[A][m], tiles.data[B], tiles.row_bytes[A] / 4, tiles.row_bytes[Sum] / 4,
                 tiles.data[Sum][m]);
  }
}

}  // namespace
}  // namespace autoplace

#endif  // AUTOPLACE_SIMD_AMX_EMULATED_HPP_
