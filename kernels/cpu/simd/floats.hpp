// Products with rows of F32, F16 and BF16: weights are widened, activations stay float32.
#ifndef AUTOPLACE_SIMD_FLOATS_HPP_
#define AUTOPLACE_SIMD_FLOATS_HPP_

#include "gemm.hpp"

namespace autoplace {
namespace {

template <int Format>
AUTOPLACE_INLINE __m256 load_8(const uint8_t* p) {
  if constexpr (Format == kF32) return _mm256_loadu_ps(reinterpret_cast<const float*>(p));
  if constexpr (Format == kF16) return _mm256_cvtph_ps(load128(p));
  return _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_cvtepu16_epi32(load128(p)), 16));
}

template <int Format, int T>
inline void float_gemv_row(const uint8_t* row, int64_t k, const Activation* x, float* out, int64_t stride) {
  constexpr int64_t kSize = Format == kF32 ? 4 : 2;
  constexpr int kLanes = 4;
  __m256 acc[T][kLanes];
  for (int t = 0; t < T; ++t) {
    for (int j = 0; j < kLanes; ++j) acc[t][j] = _mm256_setzero_ps();
  }
  int64_t i = 0;
  for (; i + 8 * kLanes <= k; i += 8 * kLanes) {
    _mm_prefetch(reinterpret_cast<const char*>(row + i * kSize) + 2048, _MM_HINT_T0);
    for (int j = 0; j < kLanes; ++j) {
      const __m256 w = load_8<Format>(row + (i + 8 * j) * kSize);
      for (int t = 0; t < T; ++t) acc[t][j] = _mm256_fmadd_ps(w, _mm256_loadu_ps(x[t].x + i + 8 * j), acc[t][j]);
    }
  }
  alignas(32) float rest[8 * kLanes] = {};
  floats_from(Format, row + i * kSize, k - i, rest);
  for (int t = 0; t < T; ++t) {
    float sum = sum_lanes(_mm256_add_ps(_mm256_add_ps(acc[t][0], acc[t][1]), _mm256_add_ps(acc[t][2], acc[t][3])));
    for (int64_t j = i; j < k; ++j) sum += rest[j - i] * x[t].x[j];
    out[t * stride] = sum;
  }
}

template <int Format>
inline void float_gemv(const Matrix& w, int64_t first, int64_t num_rows, const Activation* x, int64_t t, float* out,
                       int64_t stride) {
  for (int64_t r = 0; r < num_rows; ++r) {
    const uint8_t* row = w.row(first + r);
    int64_t done = 0;
    for (; done + 2 <= t; done += 2) float_gemv_row<Format, 2>(row, w.k, x + done, out + done * stride + r, stride);
    if (done < t) float_gemv_row<Format, 1>(row, w.k, x + done, out + done * stride + r, stride);
  }
}

// Columns [begin, begin + count) of up to 16 rows, turned; rows and columns beyond are zero.
template <int Format>
inline void fill_float_tile(const Matrix& w, int64_t first, int64_t num_rows, int64_t begin, int64_t count,
                            FloatTile* tile) {
  constexpr int64_t kSize = Format == kF32 ? 4 : 2;
  constexpr int64_t kStrip = 64;
  alignas(64) float rows[kTileRows][kStrip] = {};
  for (int64_t done = 0; done < count; done += kStrip) {
    const int64_t width = count - done < kStrip ? count - done : kStrip;
    for (int64_t r = 0; r < num_rows; ++r) {
      const uint8_t* source = w.row(first + r) + (begin + done) * kSize;
      int64_t i = 0;
      for (; i + 8 <= width; i += 8) _mm256_store_ps(rows[r] + i, load_8<Format>(source + i * kSize));
      if (i < width) {
        std::memset(rows[r] + i, 0, static_cast<size_t>(kStrip - i) * 4);
        floats_from(Format, source + i * kSize, width - i, rows[r] + i);
      }
    }
    transpose_rows(rows[0], kStrip, round_up(width, 8), tile->w[done]);
  }
}

template <int T>
inline void multiply_floats(const FloatTile* tile, int64_t half, int64_t begin, int64_t count,
                            const Activation* const* x, float* out) {
  const float* values[T];
  Floats total[T];
  for (int t = 0; t < T; ++t) {
    values[t] = x[t]->x + begin;
    total[t] = load_floats(out + t * kTileRows);
  }
  for (int64_t k = 0; k < count; ++k) {
    const Floats w = load_floats(tile->w[k] + half);
    for (int t = 0; t < T; ++t) total[t] = mul_add(w, all(values[t][k]), total[t]);
  }
  for (int t = 0; t < T; ++t) store_floats(out + t * kTileRows, total[t]);
}

template <int Format>
inline void float_gemm(const Matrix& w, int64_t first, int64_t num_rows, const Activation* const* x, int64_t t,
                       float* out, void* scratch) {
  FloatTile* tile = static_cast<FloatTile*>(scratch);
  std::memset(out, 0, static_cast<size_t>(t * kTileRows) * 4);
  for (int64_t begin = 0; begin < w.k; begin += kPieceK) {
    const int64_t count = w.k - begin < kPieceK ? w.k - begin : kPieceK;
    fill_float_tile<Format>(w, first, num_rows, begin, count, tile);
    in_token_batches<kFloatTileTokens>(t, [&](auto batch, int64_t i) {
      for (int64_t half = 0; half < kTileRows; half += kVectorRows) {
        multiply_floats<batch.value>(tile, half, begin, count, x + i, out + i * kTileRows + half);
      }
    });
  }
}

}  // namespace
}  // namespace autoplace

#endif  // AUTOPLACE_SIMD_FLOATS_HPP_
