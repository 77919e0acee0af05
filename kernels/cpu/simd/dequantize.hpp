// Blocks to float32, in gguf-py's order of rounding: scale · code - min.
#ifndef AUTOPLACE_SIMD_DEQUANTIZE_HPP_
#define AUTOPLACE_SIMD_DEQUANTIZE_HPP_

#include "decode.hpp"

namespace autoplace {
namespace {

template <class D, int I>
AUTOPLACE_INLINE void store_32(__m256i codes, const __m256* s, const __m256* m, float* dst) {
  const __m128i halves[2] = {_mm256_castsi256_si128(codes), _mm256_extracti128_si256(codes, 1)};
  for (int part = 0; part < 4; ++part) {
    constexpr bool kWhole = D::kScaleGroup == 32;
    const int lane = kWhole ? I : (2 * I + part / 2) % 8;
    const int vector = kWhole ? 0 : (2 * I + part / 2) / 8;
    const __m128i eight = part % 2 == 0 ? halves[part / 2] : _mm_srli_si128(halves[part / 2], 8);
    __m256i wide = D::kSigned ? _mm256_cvtepi8_epi32(eight) : _mm256_cvtepu8_epi32(eight);
    if constexpr (D::kOffset != 0) wide = _mm256_sub_epi32(wide, _mm256_set1_epi32(D::kOffset));
    const __m256i pick = _mm256_set1_epi32(lane);
    __m256 value = _mm256_mul_ps(_mm256_permutevar8x32_ps(s[vector], pick), _mm256_cvtepi32_ps(wide));
    if constexpr (D::kHasMin) value = _mm256_sub_ps(value, _mm256_permutevar8x32_ps(m[vector], pick));
    _mm256_storeu_ps(dst + 8 * part, value);
  }
}

template <class D>
inline void dequantize_format(int format, const uint8_t* src, int64_t count, float* dst) {
  constexpr int64_t kBytes = kSuperBlock / D::kBlock * D::kBytes;
  int64_t done = 0;
  for (; done + kSuperBlock <= count; done += kSuperBlock, src += kBytes) {
    __m256 s[2], m[2];
    D::scales(src, s, m);
    D::codes(src, [&](auto i, __m256i codes) AUTOPLACE_LAMBDA_INLINE {
      store_32<D, i.value>(codes, s, m, dst + done + 32 * i.value);
    });
  }
  dequantize_blocks(format, src, count - done, dst + done);
}

template <int Format>
inline void widen(const uint8_t* src, int64_t count, float* dst) {
  int64_t i = 0;
  if constexpr (Format == kF16) {
    for (; i + 8 <= count; i += 8) _mm256_storeu_ps(dst + i, _mm256_cvtph_ps(load128(src + 2 * i)));
  }
  floats_from(Format, src + i * (Format == kF32 ? 4 : 2), count - i, dst + i);
}

}  // namespace
}  // namespace autoplace

#endif  // AUTOPLACE_SIMD_DEQUANTIZE_HPP_
