// The inner loops of attention at decode, over float32 rows: products, weighted sums (of bf16 rows too),
// exponentials.
// Written on a vector type `Floats` of kVectorRows elements: simd/rows.hpp's, or plain_vector.hpp's.
#ifndef AUTOPLACE_SIMD_ATTENTION_HPP_
#define AUTOPLACE_SIMD_ATTENTION_HPP_

#include <cstdint>

#include "../path.hpp"
#include "../scalar_decode.hpp"

namespace autoplace {
namespace {

constexpr int kHeadsAtOnce = 4;
constexpr int kRowsAtOnce = kVectorRows == 16 ? 4 : 2;  // sums of 4 heads fit 16 or 32 registers

template <int H, int R>
inline void score_tile(const float* q, int64_t d, const float* rows, int64_t stride, float* out, int64_t out_stride) {
  Floats sum[H][R];
  for (int h = 0; h < H; ++h) {
    for (int r = 0; r < R; ++r) sum[h][r] = zero_floats();
  }
  int64_t i = 0;
  for (; i + kVectorRows <= d; i += kVectorRows) {
    Floats row[R];
    for (int r = 0; r < R; ++r) row[r] = load_floats(rows + r * stride + i);
    for (int h = 0; h < H; ++h) {
      const Floats query = load_floats(q + h * d + i);
      for (int r = 0; r < R; ++r) sum[h][r] = mul_add(query, row[r], sum[h][r]);
    }
  }
  for (int h = 0; h < H; ++h) {
    for (int r = 0; r < R; ++r) {
      float total = sum_floats(sum[h][r]);
      for (int64_t j = i; j < d; ++j) total += q[h * d + j] * rows[r * stride + j];
      out[h * out_stride + r] = total;
    }
  }
}

template <int H>
inline void score_heads(const float* q, int64_t d, const float* rows, int64_t num_rows, int64_t stride, float* out,
                        int64_t out_stride) {
  int64_t r = 0;
  for (; r + kRowsAtOnce <= num_rows; r += kRowsAtOnce) {
    score_tile<H, kRowsAtOnce>(q, d, rows + r * stride, stride, out + r, out_stride);
  }
  for (; r < num_rows; ++r) score_tile<H, 1>(q, d, rows + r * stride, stride, out + r, out_stride);
}

inline void attention_scores(const float* q, int64_t heads, int64_t d, const float* rows, int64_t num_rows,
                             int64_t stride, float* out, int64_t out_stride) {
  int64_t h = 0;
  for (; h + kHeadsAtOnce <= heads; h += kHeadsAtOnce) {
    score_heads<kHeadsAtOnce>(q + h * d, d, rows, num_rows, stride, out + h * out_stride, out_stride);
  }
  for (; h < heads; ++h) score_heads<1>(q + h * d, d, rows, num_rows, stride, out + h * out_stride, out_stride);
}

// V vectors of the sums of H heads.
template <int H, int V>
inline void mix_tile(const float* p, int64_t p_stride, const float* rows, int64_t num_rows, int64_t stride,
                     float* sums, int64_t sum_stride) {
  Floats sum[H][V];
  for (int h = 0; h < H; ++h) {
    for (int v = 0; v < V; ++v) sum[h][v] = load_floats(sums + h * sum_stride + v * kVectorRows);
  }
  for (int64_t r = 0; r < num_rows; ++r) {
    Floats row[V];
    for (int v = 0; v < V; ++v) row[v] = load_floats(rows + r * stride + v * kVectorRows);
    for (int h = 0; h < H; ++h) {
      const Floats weight = all(p[h * p_stride + r]);
      for (int v = 0; v < V; ++v) sum[h][v] = mul_add(weight, row[v], sum[h][v]);
    }
  }
  for (int h = 0; h < H; ++h) {
    for (int v = 0; v < V; ++v) store_floats(sums + h * sum_stride + v * kVectorRows, sum[h][v]);
  }
}

template <int H, int V>
inline void mix_heads(const float* p, int64_t p_stride, const float* rows, int64_t num_rows, int64_t stride,
                      int64_t width, float* sums, int64_t sum_stride) {
  int64_t i = 0;
  for (; i + V * kVectorRows <= width; i += V * kVectorRows) {
    mix_tile<H, V>(p, p_stride, rows + i, num_rows, stride, sums + i, sum_stride);
  }
  for (; i + kVectorRows <= width; i += kVectorRows) {
    mix_tile<H, 1>(p, p_stride, rows + i, num_rows, stride, sums + i, sum_stride);
  }
  for (; i < width; ++i) {
    for (int h = 0; h < H; ++h) {
      float sum = sums[h * sum_stride + i];
      for (int64_t r = 0; r < num_rows; ++r) sum += p[h * p_stride + r] * rows[r * stride + i];
      sums[h * sum_stride + i] = sum;
    }
  }
}

inline void attention_mix(const float* p, int64_t heads, int64_t p_stride, const float* rows, int64_t num_rows,
                          int64_t stride, int64_t width, float* sums, int64_t sum_stride) {
  int64_t h = 0;
  for (; h + kHeadsAtOnce <= heads; h += kHeadsAtOnce) {
    mix_heads<kHeadsAtOnce, 2>(p + h * p_stride, p_stride, rows, num_rows, stride, width, sums + h * sum_stride,
                               sum_stride);
  }
  for (; h < heads; ++h) {
    mix_heads<1, 4>(p + h * p_stride, p_stride, rows, num_rows, stride, width, sums + h * sum_stride, sum_stride);
  }
}

// R rows of bf16, one after the other: each row is read in a stream of its own.
template <int R>
inline void add_bfloat_rows(const float* p, const uint16_t* rows, int64_t width, float* sums) {
  Floats weight[R];
  for (int r = 0; r < R; ++r) weight[r] = all(p[r]);
  int64_t i = 0;
  for (; i + kVectorRows <= width; i += kVectorRows) {
    Floats sum = load_floats(sums + i);
    for (int r = 0; r < R; ++r) {
      const uint16_t* row = rows + r * width + i;
      if (i % 32 == 0) __builtin_prefetch(row + R * width);
      sum = mul_add(weight[r], load_bfloats(reinterpret_cast<const uint8_t*>(row)), sum);
    }
    store_floats(sums + i, sum);
  }
  for (; i < width; ++i) {
    for (int r = 0; r < R; ++r) sums[i] += p[r] * bfloat_to_float(rows[r * width + i]);
  }
}

inline void attention_mix_bfloats(const float* p, const uint16_t* rows, int64_t num_rows, int64_t width, float* sums) {
  int64_t r = 0;
  for (; r + 4 <= num_rows; r += 4) add_bfloat_rows<4>(p + r, rows + r * width, width, sums);
  for (; r < num_rows; ++r) add_bfloat_rows<1>(p + r, rows + r * width, width, sums);
}

constexpr AttentionLoops kAttentionLoops = {attention_scores, attention_mix, attention_mix_bfloats, exponentials};

}  // namespace
}  // namespace autoplace

#endif  // AUTOPLACE_SIMD_ATTENTION_HPP_
