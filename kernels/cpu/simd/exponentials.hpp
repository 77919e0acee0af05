// What attention.hpp needs of AVX2 and AVX-512 beyond rows.hpp: a sum of lanes, and exponentials.
#ifndef AUTOPLACE_SIMD_EXPONENTIALS_HPP_
#define AUTOPLACE_SIMD_EXPONENTIALS_HPP_

#include <cmath>

#include "activations.hpp"
#include "rows.hpp"

namespace autoplace {
namespace {

#if AUTOPLACE_VNNI
AUTOPLACE_INLINE float sum_floats(Floats v) { return _mm512_reduce_add_ps(v); }
#else
AUTOPLACE_INLINE float sum_floats(Floats v) { return sum_lanes(v); }
#endif

// x[i] = e^(x[i] - shift), no x above the shift; what is 87 or more below it counts as e^-87. Their sum.
// A NaN or an infinity gives NaN.
inline float exponentials(float* x, int64_t count, float shift) {
  const __m256 shifts = _mm256_set1_ps(shift);
  __m256 sums = _mm256_setzero_ps();
  int64_t i = 0;
  for (; i + 8 <= count; i += 8) {
    const __m256 below = _mm256_sub_ps(_mm256_loadu_ps(x + i), shifts);
    const __m256 poison = _mm256_sub_ps(below, below);
    const __m256 value = _mm256_add_ps(exponential(below), poison);
    _mm256_storeu_ps(x + i, value);
    sums = _mm256_add_ps(sums, value);
  }
  float sum = sum_lanes(sums);
  for (; i < count; ++i) sum += x[i] = std::exp(x[i] - shift);
  return sum;
}

}  // namespace
}  // namespace autoplace

#endif  // AUTOPLACE_SIMD_EXPONENTIALS_HPP_
