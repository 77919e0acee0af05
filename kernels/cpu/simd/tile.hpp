// Decodes 16 rows of a GGUF matrix into a tile in which a vector runs across the rows.
#ifndef AUTOPLACE_SIMD_TILE_HPP_
#define AUTOPLACE_SIMD_TILE_HPP_

#include "gemv.hpp"
#include "rows.hpp"

namespace autoplace {
namespace {

constexpr int64_t kPieceK = 1024;  // a tile holds this many columns: it stays in the first caches

struct Tile {
  alignas(64) uint8_t codes[kPieceK / 4][kTileRows][4];
  alignas(64) float scale[kPieceK / 16][kTileRows];
  alignas(64) float min[kPieceK / 16][kTileRows];
};

struct FloatTile {
  alignas(64) float w[kPieceK][kTileRows];
};

static_assert(sizeof(Tile) <= kScratchBytes && sizeof(FloatTile) <= kScratchBytes, "scratch is too small");

// dst[c][r] = src[r][c] for 8 × 8 floats; strides in floats.
AUTOPLACE_INLINE void transpose_8x8(const float* src, int64_t src_stride, float* dst, int64_t dst_stride) {
  __m256 a[8], b[8];
  for (int i = 0; i < 8; ++i) a[i] = _mm256_loadu_ps(src + i * src_stride);
  for (int i = 0; i < 4; ++i) {
    b[2 * i] = _mm256_unpacklo_ps(a[2 * i], a[2 * i + 1]);
    b[2 * i + 1] = _mm256_unpackhi_ps(a[2 * i], a[2 * i + 1]);
  }
  for (int i = 0; i < 2; ++i) {
    a[4 * i] = _mm256_shuffle_ps(b[4 * i], b[4 * i + 2], 0x44);
    a[4 * i + 1] = _mm256_shuffle_ps(b[4 * i], b[4 * i + 2], 0xee);
    a[4 * i + 2] = _mm256_shuffle_ps(b[4 * i + 1], b[4 * i + 3], 0x44);
    a[4 * i + 3] = _mm256_shuffle_ps(b[4 * i + 1], b[4 * i + 3], 0xee);
  }
  for (int i = 0; i < 4; ++i) {
    _mm256_storeu_ps(dst + i * dst_stride, _mm256_permute2f128_ps(a[i], a[i + 4], 0x20));
    _mm256_storeu_ps(dst + (i + 4) * dst_stride, _mm256_permute2f128_ps(a[i], a[i + 4], 0x31));
  }
}

// [16][columns] → [columns][16]; `columns` is a multiple of 8.
AUTOPLACE_INLINE void transpose_rows(const float* src, int64_t src_stride, int64_t columns, float* dst) {
  for (int64_t c = 0; c < columns; c += 8) {
    transpose_8x8(src + c, src_stride, dst + c * kTileRows, kTileRows);
    transpose_8x8(src + 8 * src_stride + c, src_stride, dst + c * kTileRows + 8, kTileRows);
  }
}

// One superblock of 16 rows, row by row, before it is turned.
struct TileRows {
  alignas(64) uint8_t codes[kTileRows][kSuperBlock];
  alignas(64) float scale[kTileRows][16];
  alignas(64) float min[kTileRows][16];
};

template <class D>
inline void decode_row(const uint8_t* row, int64_t k, int64_t block, TileRows* rows, int64_t r) {
  RowReader<D> reader{row, k, {}};
  const uint8_t* b = reader.superblock(block);
  __m256 s[2] = {}, m[2] = {};
  scales_and_mins<D>(b, s, m);
  for (int i = 0; i < (D::kScaleGroup == 32 ? 1 : 2); ++i) {
    _mm256_store_ps(rows->scale[r] + 8 * i, s[i]);
    _mm256_store_ps(rows->min[r] + 8 * i, m[i]);
  }
  D::codes(b, [&](auto i, __m256i codes) AUTOPLACE_LAMBDA_INLINE {
    if constexpr (D::kSigned && AUTOPLACE_VNNI) codes = _mm256_xor_si256(codes, _mm256_set1_epi8(-128));
    _mm256_store_si256(reinterpret_cast<__m256i*>(rows->codes[r] + 32 * i.value), codes);
  });
}

// Superblocks [begin, end) of rows [first, first + num_rows); rows beyond those are zero.
template <class D>
inline void fill_tile(const Matrix& w, int64_t first, int64_t num_rows, int64_t begin, int64_t end, Tile* tile) {
  constexpr int64_t kGroups = kSuperBlock / D::kScaleGroup;
  TileRows rows;
  if (num_rows < kTileRows) std::memset(&rows, 0, sizeof(rows));
  for (int64_t block = begin; block < end; ++block) {
    for (int64_t r = 0; r < num_rows; ++r) decode_row<D>(w.row(first + r), w.k, block, &rows, r);
    const int64_t index = block - begin;
    transpose_rows(reinterpret_cast<const float*>(rows.codes), kSuperBlock / 4, kSuperBlock / 4,
                   reinterpret_cast<float*>(tile->codes[index * kSuperBlock / 4]));
    transpose_rows(rows.scale[0], 16, kGroups, tile->scale[index * kGroups]);
    transpose_rows(rows.min[0], 16, kGroups, tile->min[index * kGroups]);
  }
}

}  // namespace
}  // namespace autoplace

#endif  // AUTOPLACE_SIMD_TILE_HPP_
