// Few tokens times rows of GGUF blocks: integer dot products, straight from the blocks.
#ifndef AUTOPLACE_SIMD_GEMV_HPP_
#define AUTOPLACE_SIMD_GEMV_HPP_

#include "../path.hpp"
#include "decode.hpp"

namespace autoplace {
namespace {

// What has to be subtracted because codes are stored with an offset, in units of the scale.
template <class D>
constexpr int code_offset() {
  return D::kSigned && AUTOPLACE_VNNI ? 128 : D::kOffset;
}

// How far ahead of its use memory is asked for, in bytes.
constexpr int64_t kPrefetch = 2048;

template <class D>
AUTOPLACE_INLINE __m256i dot_codes(__m256i codes, __m256i x) {
  if constexpr (!D::kSigned) return dot_unsigned(codes, x);
#if AUTOPLACE_VNNI
  return dot_unsigned(_mm256_xor_si256(codes, _mm256_set1_epi8(-128)), x);
#else
  return dot_signed(codes, x);
#endif
}

// The scale of each lane of a dot product of weights [32·i, 32·i + 32). One scale for all lanes comes from
// `stored`, since a load that broadcasts costs no vector unit.
template <class D, int I>
AUTOPLACE_INLINE __m256 lane_scales(const __m256* scale, const float* stored) {
  if constexpr (D::kScaleGroup == 32) return _mm256_broadcast_ss(stored + I);
  constexpr int kFirst = 2 * (I % 4), kSecond = kFirst + 1;
  const __m256i lanes = _mm256_setr_epi32(kFirst, kFirst, kFirst, kFirst, kSecond, kSecond, kSecond, kSecond);
  return _mm256_permutevar8x32_ps(scale[I / 4], lanes);
}

// Scales of weights times scales of activations; and the part that mins and offsets take away.
template <class D>
AUTOPLACE_INLINE __m256 apply_scales(const __m256* s, const __m256* m, const Activation& x, int64_t group,
                                     __m256* scale, __m256 less) {
  const __m256 d = _mm256_loadu_ps(x.d + group);
  constexpr int kParts = D::kScaleGroup == 32 ? 1 : 2;
  if constexpr (kParts == 1) {
    scale[0] = _mm256_mul_ps(s[0], d);
  } else {
    scale[0] = _mm256_mul_ps(s[0], _mm256_permutevar8x32_ps(d, _mm256_setr_epi32(0, 0, 1, 1, 2, 2, 3, 3)));
    scale[1] = _mm256_mul_ps(s[1], _mm256_permutevar8x32_ps(d, _mm256_setr_epi32(4, 4, 5, 5, 6, 6, 7, 7)));
  }
  if constexpr (D::kHasMin || code_offset<D>() != 0) {
    const float* sums = kParts == 1 ? x.sum32 + group : x.sum16 + 2 * group;
    for (int i = 0; i < kParts; ++i) less = _mm256_fmadd_ps(m[i], _mm256_loadu_ps(sums + 8 * i), less);
  }
  return less;
}

// Mins as gemv subtracts them: of the format, or of the offset of its codes.
template <class D>
AUTOPLACE_INLINE void scales_and_mins(const uint8_t* b, __m256* s, __m256* m) {
  D::scales(b, s, m);
  if constexpr (code_offset<D>() != 0) {
    const __m256 offset = _mm256_set1_ps(static_cast<float>(code_offset<D>()));
    for (int i = 0; i < (D::kScaleGroup == 32 ? 1 : 2); ++i) m[i] = _mm256_mul_ps(s[i], offset);
  }
}

// Hides from the compiler what was stored, lest it turn loads that broadcast back into shuffles.
AUTOPLACE_INLINE const float* stored_scales(float* memory, __m256 scales) {
  _mm256_store_ps(memory, scales);
  const float* hidden = memory;
  asm("" : "+r"(hidden) : "m"(*reinterpret_cast<const float(*)[8]>(memory)));
  return hidden;
}

// Sums of one row with T tokens while its blocks go by.
template <class D, int T>
struct RowSums {
  static constexpr int kSums = 4 / T;  // independent sums hide the latency of their additions
  __m256 acc[T][kSums], less[T];

  AUTOPLACE_INLINE RowSums() {
    for (int t = 0; t < T; ++t) {
      less[t] = _mm256_setzero_ps();
      for (int j = 0; j < kSums; ++j) acc[t][j] = _mm256_setzero_ps();
    }
  }

  AUTOPLACE_INLINE void add_superblock(const uint8_t* b, int64_t block, const Activation* x) {
    alignas(32) float memory[T][8];
    __m256 s[2], m[2], scale[T][2];
    const float* stored[T];
    scales_and_mins<D>(b, s, m);
    for (int t = 0; t < T; ++t) {
      less[t] = apply_scales<D>(s, m, x[t], block * 8, scale[t], less[t]);
      stored[t] = D::kScaleGroup == 32 ? stored_scales(memory[t], scale[t][0]) : nullptr;
    }
    D::codes(b, [&](auto i, __m256i codes) AUTOPLACE_LAMBDA_INLINE {
      for (int t = 0; t < T; ++t) {
        const __m256i dot = dot_codes<D>(codes, load256(x[t].q + block * kSuperBlock + 32 * i.value));
        __m256& sum = acc[t][i.value % kSums];
        sum = _mm256_fmadd_ps(_mm256_cvtepi32_ps(dot), lane_scales<D, i.value>(scale[t], stored[t]), sum);
      }
    });
  }

  // One block of 32, where a row ends within a superblock.
  AUTOPLACE_INLINE void add_block(const uint8_t* b, int64_t group, const Activation* x) {
    const float own = D::block_scale(b);
    const float min = D::kHasMin ? -load_f16(b + 2) : own * static_cast<float>(code_offset<D>());
    const __m256i codes = D::block(b);
    for (int t = 0; t < T; ++t) {
      const __m256i dot = dot_codes<D>(codes, load256(x[t].q + group * kGroup));
      const __m256 scale = _mm256_set1_ps(own * x[t].d[group]);
      acc[t][0] = _mm256_fmadd_ps(_mm256_cvtepi32_ps(dot), scale, acc[t][0]);
      less[t] = _mm256_add_ps(less[t], _mm256_setr_ps(min * x[t].sum32[group], 0, 0, 0, 0, 0, 0, 0));
    }
  }

  AUTOPLACE_INLINE float total(int t) const {
    __m256 sum = acc[t][0];
    for (int j = 1; j < kSums; ++j) sum = _mm256_add_ps(sum, acc[t][j]);
    return sum_lanes(_mm256_sub_ps(sum, less[t]));
  }
};

template <class D, int T>
inline void gemv_row(const uint8_t* row, int64_t k, const Activation* x, float* out, int64_t stride) {
  constexpr int64_t kBytes = kSuperBlock / D::kBlock * D::kBytes;
  RowSums<D, T> sums;
  const int64_t num_blocks = k / kSuperBlock;
  for (int64_t block = 0; block < num_blocks; ++block) {
    const uint8_t* b = row + block * kBytes;
    for (int line = 0; line < kBytes; line += 64) {
      _mm_prefetch(reinterpret_cast<const char*>(b) + kPrefetch + line, _MM_HINT_T0);
    }
    sums.add_superblock(b, block, x);
  }
  if constexpr (D::kBlock == 32) {
    for (int64_t group = num_blocks * 8; group * kGroup < k; ++group) {
      sums.add_block(row + group * D::kBytes, group, x);
    }
  }
  for (int t = 0; t < T; ++t) out[t * stride] = sums.total(t);
}

template <class D>
inline void gemv_blocks(const Matrix& w, int64_t first, int64_t num_rows, const Activation* x, int64_t t,
                        float* out, int64_t stride) {
  for (int64_t r = 0; r < num_rows; ++r) {
    const uint8_t* row = w.row(first + r);
    int64_t done = 0;
    for (; done + 2 <= t; done += 2) gemv_row<D, 2>(row, w.k, x + done, out + done * stride + r, stride);
    if (done < t) gemv_row<D, 1>(row, w.k, x + done, out + done * stride + r, stride);
  }
}

}  // namespace
}  // namespace autoplace

#endif  // AUTOPLACE_SIMD_GEMV_HPP_
