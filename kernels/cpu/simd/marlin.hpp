// Products straight from the packed Marlin format: it already lies in tiles of 16 rows.
#ifndef AUTOPLACE_SIMD_MARLIN_HPP_
#define AUTOPLACE_SIMD_MARLIN_HPP_

#include "activations.hpp"
#include "gemm.hpp"

namespace autoplace {
namespace {

inline uint16_t marlin_group(const float* w, int64_t count, int bits, int8_t* codes) {
  alignas(32) float padded[kMarlinGroup] = {};
  if (count < kMarlinGroup) {
    std::memcpy(padded, w, static_cast<size_t>(count) * 4);
    w = padded;
  }
  const __m256 magnitude = _mm256_castsi256_ps(_mm256_set1_epi32(0x7fffffff));
  __m256 most = _mm256_setzero_ps();
  for (int i = 0; i < 8; ++i) most = _mm256_max_ps(most, _mm256_and_ps(_mm256_loadu_ps(w + 8 * i), magnitude));
  const uint16_t scale_bits = float_to_bfloat(2.0f * max_lanes(most) / static_cast<float>((1 << bits) - 1));
  const float scale = bfloat_to_float(scale_bits);
  const __m256 inverse = _mm256_set1_ps(scale > 0.0f ? 1.0f / scale : 0.0f);
  const int low = -(1 << (bits - 1));
  for (int i = 0; i < 8; ++i) {
    __m256i code = _mm256_cvtps_epi32(_mm256_mul_ps(_mm256_loadu_ps(w + 8 * i), inverse));
    code = _mm256_min_epi32(_mm256_max_epi32(code, _mm256_set1_epi32(low)), _mm256_set1_epi32(-low - 1));
    const __m128i words = _mm_packs_epi32(_mm256_castsi256_si128(code), _mm256_extracti128_si256(code, 1));
    _mm_storel_epi64(reinterpret_cast<__m128i*>(codes + 8 * i), _mm_packs_epi16(words, words));
  }
  return scale_bits;
}

template <int Bits>
struct MarlinSource {
  static constexpr bool kSigned = Bits == 8;
  static constexpr int kOffset = Bits == 4 ? 8 : (AUTOPLACE_VNNI ? 128 : 0);
  static constexpr bool kMins = kOffset != 0;
  static constexpr int kScaleGroup = 32, kMaxCode = Bits == 4 ? 15 : 127;
  const uint8_t* codes;   // of one tile
  const uint8_t* scales;  // [K'/64][16] bf16 of one tile
  int64_t half;

  template <int Step>
  AUTOPLACE_INLINE Ints line(int64_t group, Index<Step>) const {
    if constexpr (Bits == 4) {
      const Ints packed = load_ints(codes + (group * 4 + Step / 2) * 64 + half * 4);
      return Step % 2 == 0 ? low4(packed) : high4(packed);
    } else {
      const Ints plain = load_ints(codes + (group * 8 + Step) * 64 + half * 4);
#if AUTOPLACE_VNNI
      return flip_sign_bit(plain);
#else
      return plain;
#endif
    }
  }
  AUTOPLACE_INLINE Floats scale(int64_t group) const {
    return load_bfloats(scales + (group / 2 * kTileRows + half) * 2);
  }
  AUTOPLACE_INLINE Floats min(int64_t group) const { return mul(scale(group), all(static_cast<float>(kOffset))); }
};

// One tile of 16 rows from `first`, a multiple of 16, for all tokens.
template <int Bits>
inline void marlin_tile(const Matrix& w, int64_t first, const Activation* const* x, int64_t t, float* out) {
  const MarlinShape shape = marlin_shape(w.format, w.n, w.k);
  const int64_t tile = first / kTileRows;
  const uint8_t* codes = w.data + tile * shape.tile_bytes();
  const uint8_t* scales = w.data + shape.code_bytes() + tile * shape.groups() * kTileRows * 2;
  const int64_t num_groups = (w.k + kGroup - 1) / kGroup;
  std::memset(out, 0, static_cast<size_t>(t * kTileRows) * 4);
  in_token_batches<kTileTokens>(t, [&](auto batch, int64_t i) {
    for (int64_t half = 0; half < kTileRows; half += kVectorRows) {
      const MarlinSource<Bits> source{codes, scales, half};
      multiply_tile<batch.value>(source, 0, num_groups, x + i, out + i * kTileRows + half);
    }
  });
}

template <int Bits>
inline void marlin_gemv(const Matrix& w, int64_t first, int64_t num_rows, const Activation* x, int64_t t, float* out,
                        int64_t stride) {
  gemv_by_strips(num_rows, x, t, out, stride, [&](int64_t done, const Activation* const* tokens, float* sums) {
    marlin_tile<Bits>(w, first + done, tokens, t, sums);
  });
}

}  // namespace
}  // namespace autoplace

#endif  // AUTOPLACE_SIMD_MARLIN_HPP_
