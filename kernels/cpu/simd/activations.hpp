// Quantises activations to int8 in groups of 32, and converts bf16.
#ifndef AUTOPLACE_SIMD_ACTIVATIONS_HPP_
#define AUTOPLACE_SIMD_ACTIVATIONS_HPP_

#include <cmath>
#include <initializer_list>

#include "../path.hpp"
#include "../scalar_decode.hpp"
#include "primitives.hpp"

namespace autoplace {
namespace {

AUTOPLACE_INLINE float max_lanes(__m256 v) {
  __m128 m = _mm_max_ps(_mm256_castps256_ps128(v), _mm256_extractf128_ps(v, 1));
  m = _mm_max_ps(m, _mm_movehl_ps(m, m));
  return _mm_cvtss_f32(_mm_max_ss(m, _mm_movehdup_ps(m)));
}

AUTOPLACE_INLINE int sum_lanes(__m128i v) {
  v = _mm_add_epi32(v, _mm_shuffle_epi32(v, 0x4e));
  return _mm_cvtsi128_si32(_mm_add_epi32(v, _mm_shuffle_epi32(v, 0xb1)));
}

// Of each half of 8 sums, those with even and those with odd numbers.
AUTOPLACE_INLINE void store_sums_of_pairs(__m256i sums, int16_t* pairs) {
  sums = _mm256_add_epi16(sums, _mm256_shuffle_epi32(sums, 0x4e));
  sums = _mm256_add_epi16(sums, _mm256_shuffle_epi32(sums, 0xb1));
  const int low = _mm256_extract_epi32(sums, 0), high = _mm256_extract_epi32(sums, 4);
  std::memcpy(pairs, &low, 4);
  std::memcpy(pairs + 2, &high, 4);
}

// One group: d = max|x| / 127, q = round(x / d). A group below 1e-30 counts as zero; a NaN or an
// infinity makes d NaN, so that it cannot hide.
inline void quantize_group(const float* x, const Quantised& out, int64_t group) {
  const __m256 v[4] = {_mm256_loadu_ps(x), _mm256_loadu_ps(x + 8), _mm256_loadu_ps(x + 16),
                       _mm256_loadu_ps(x + 24)};
  const __m256 magnitude = _mm256_castsi256_ps(_mm256_set1_epi32(0x7fffffff));
  __m256 most = _mm256_setzero_ps(), poison = _mm256_setzero_ps();
  for (const __m256& part : v) {
    most = _mm256_max_ps(most, _mm256_and_ps(part, magnitude));
    poison = _mm256_add_ps(poison, _mm256_sub_ps(part, part));
  }
  const float peak = max_lanes(most);
  const float inverse = peak > 1e-30f ? 127.0f / peak : 0.0f;
  __m256i parts[4];
  for (int i = 0; i < 4; ++i) parts[i] = _mm256_cvtps_epi32(_mm256_mul_ps(v[i], _mm256_set1_ps(inverse)));
  const __m256i first = _mm256_packs_epi32(parts[0], parts[1]);
  const __m256i second = _mm256_packs_epi32(parts[2], parts[3]);
  const __m256i order = _mm256_setr_epi32(0, 4, 1, 5, 2, 6, 3, 7);
  const __m256i bytes = _mm256_permutevar8x32_epi32(_mm256_packs_epi16(first, second), order);
  _mm256_storeu_si256(reinterpret_cast<__m256i*>(out.q + group * kGroup), bytes);

  const __m256i pairs = _mm256_maddubs_epi16(_mm256_set1_epi8(1), bytes);
  const __m256i quads = _mm256_madd_epi16(pairs, _mm256_set1_epi16(1));
  const int low = sum_lanes(_mm256_castsi256_si128(quads));
  const int high = sum_lanes(_mm256_extracti128_si256(quads, 1));
  const float scale = (peak > 1e-30f ? peak / 127.0f : 0.0f) + sum_lanes(poison);
  out.d[group] = scale;
  out.sum16[2 * group] = scale * static_cast<float>(low);
  out.sum16[2 * group + 1] = scale * static_cast<float>(high);
  out.sum32[group] = scale * static_cast<float>(low + high);
  store_sums_of_pairs(pairs, out.pairs + 4 * group);
}

inline void quantize(const float* x, int64_t k, int64_t padded, const Quantised& out) {
  for (int64_t i = 0; i < padded; i += kGroup) {
    const int64_t group = i / kGroup;
    alignas(32) float last[kGroup] = {};
    const float* source = x + i;
    if (i + kGroup > k) {
      if (i < k) std::memcpy(last, x + i, static_cast<size_t>(k - i) * 4);
      source = last;
    }
    quantize_group(source, out, group);
  }
}

// e^x to about 1e-7 relative, for x in [-87, 87] and clamped there: 2^n · e^r with |r| <= ln(2)/2 and a
// Taylor polynomial of degree 6 for e^r.
AUTOPLACE_INLINE __m256 exponential(__m256 x) {
  x = _mm256_max_ps(_mm256_min_ps(_mm256_set1_ps(87.0f), x), _mm256_set1_ps(-87.0f));
  const __m256 n = _mm256_round_ps(_mm256_mul_ps(x, _mm256_set1_ps(1.44269504f)), _MM_FROUND_TO_NEAREST_INT);
  __m256 r = _mm256_fnmadd_ps(n, _mm256_set1_ps(0.693359375f), x);
  r = _mm256_fnmadd_ps(n, _mm256_set1_ps(-2.12194440e-4f), r);
  __m256 sum = _mm256_set1_ps(1.0f / 720);
  for (float term : {1.0f / 120, 1.0f / 24, 1.0f / 6, 0.5f, 1.0f, 1.0f}) {
    sum = _mm256_fmadd_ps(sum, r, _mm256_set1_ps(term));
  }
  const __m256i power = _mm256_slli_epi32(_mm256_add_epi32(_mm256_cvtps_epi32(n), _mm256_set1_epi32(127)), 23);
  return _mm256_mul_ps(sum, _mm256_castsi256_ps(power));
}

inline void swiglu(float* gate, const float* up, int64_t count) {
  const __m256 one = _mm256_set1_ps(1.0f);
  int64_t i = 0;
  for (; i + 8 <= count; i += 8) {
    const __m256 g = _mm256_loadu_ps(gate + i);
    const __m256 decay = exponential(_mm256_sub_ps(_mm256_setzero_ps(), g));
    const __m256 silu = _mm256_div_ps(g, _mm256_add_ps(one, decay));
    _mm256_storeu_ps(gate + i, _mm256_mul_ps(silu, _mm256_loadu_ps(up + i)));
  }
  for (; i < count; ++i) gate[i] = gate[i] / (1.0f + std::exp(-gate[i])) * up[i];
}

inline void to_float(const uint16_t* src, int64_t count, float* dst) {
  int64_t i = 0;
  for (; i + 8 <= count; i += 8) {
    const __m256i wide = _mm256_slli_epi32(_mm256_cvtepu16_epi32(load128(src + i)), 16);
    _mm256_storeu_ps(dst + i, _mm256_castsi256_ps(wide));
  }
  for (; i < count; ++i) dst[i] = bfloat_to_float(src[i]);
}

inline void to_bf16(const float* src, int64_t count, uint16_t* dst) {
  for (int64_t i = 0; i < count; ++i) dst[i] = float_to_bfloat(src[i]);
}

inline uint64_t read_all(const uint8_t* data, int64_t num_bytes) {
  __m256i sums[4] = {};
  int64_t i = 0;
  for (; i + 128 <= num_bytes; i += 128) {
    for (int j = 0; j < 4; ++j) sums[j] = _mm256_add_epi64(sums[j], load256(data + i + 32 * j));
  }
  alignas(32) uint64_t lanes[4];
  const __m256i sum = _mm256_add_epi64(_mm256_add_epi64(sums[0], sums[1]), _mm256_add_epi64(sums[2], sums[3]));
  _mm256_store_si256(reinterpret_cast<__m256i*>(lanes), sum);
  return lanes[0] + lanes[1] + lanes[2] + lanes[3];
}

}  // namespace
}  // namespace autoplace

#endif  // AUTOPLACE_SIMD_ACTIVATIONS_HPP_
