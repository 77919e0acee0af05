// The few vector operations that differ between AVX2 and AVX-512 with VNNI, and sums over lanes.
// Included only by the path files, each compiled with its own target flags; everything has internal
// linkage, so that no path's code can stand in for another's.
#ifndef AUTOPLACE_SIMD_PRIMITIVES_HPP_
#define AUTOPLACE_SIMD_PRIMITIVES_HPP_

#include <immintrin.h>

#include <cstdint>
#include <cstring>

#if defined(__AVX512VNNI__) && defined(__AVX512VL__)
#define AUTOPLACE_VNNI 1
#else
#define AUTOPLACE_VNNI 0
#endif

#define AUTOPLACE_INLINE inline __attribute__((always_inline))
#define AUTOPLACE_LAMBDA_INLINE __attribute__((always_inline))

namespace autoplace {
namespace {

template <int I>
struct Index {
  static constexpr int value = I;
};

// Calls body(Index<0>{}) … body(Index<N - 1>{}), unrolled.
template <int N, class Body>
AUTOPLACE_INLINE void unroll(Body&& body) {
  if constexpr (N > 0) {
    unroll<N - 1>(body);
    body(Index<N - 1>{});
  }
}

AUTOPLACE_INLINE __m128i load128(const void* p) { return _mm_loadu_si128(static_cast<const __m128i*>(p)); }
AUTOPLACE_INLINE __m256i load256(const void* p) {
  return _mm256_loadu_si256(static_cast<const __m256i*>(p));
}

AUTOPLACE_INLINE uint16_t load_u16(const uint8_t* p) {
  uint16_t value;
  std::memcpy(&value, p, 2);
  return value;
}

AUTOPLACE_INLINE uint32_t load_u32(const uint8_t* p) {
  uint32_t value;
  std::memcpy(&value, p, 4);
  return value;
}

AUTOPLACE_INLINE float load_f16(const uint8_t* p) { return _cvtsh_ss(load_u16(p)); }

AUTOPLACE_INLINE float sum_lanes(__m256 v) {
  __m128 s = _mm_add_ps(_mm256_castps256_ps128(v), _mm256_extractf128_ps(v, 1));
  s = _mm_add_ps(s, _mm_movehl_ps(s, s));
  return _mm_cvtss_f32(_mm_add_ss(s, _mm_movehdup_ps(s)));
}

// Eight sums of four products each: unsigned codes times signed activations.
// `kMaxCode` tells how far the 16-bit sums of AVX2 reach: 2·kMaxCode·127 must stay below 2^15.
AUTOPLACE_INLINE __m256i dot_unsigned(__m256i codes, __m256i x) {
#if AUTOPLACE_VNNI
  return _mm256_dpbusd_epi32(_mm256_setzero_si256(), codes, x);
#else
  return _mm256_madd_epi16(_mm256_maddubs_epi16(codes, x), _mm256_set1_epi16(1));
#endif
}

#if !AUTOPLACE_VNNI
// The same for signed codes: |w|·(sign(w)·x), at most 2·128·127 < 2^15.
AUTOPLACE_INLINE __m256i dot_signed(__m256i codes, __m256i x) {
  const __m256i products = _mm256_maddubs_epi16(_mm256_abs_epi8(codes), _mm256_sign_epi8(x, codes));
  return _mm256_madd_epi16(products, _mm256_set1_epi16(1));
}
#endif

}  // namespace
}  // namespace autoplace

#endif  // AUTOPLACE_SIMD_PRIMITIVES_HPP_
