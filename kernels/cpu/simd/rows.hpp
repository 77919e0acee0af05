// A vector across rows: 16 rows of a tile with AVX-512, 8 with AVX2, and what the tile products do with it.
#ifndef AUTOPLACE_SIMD_ROWS_HPP_
#define AUTOPLACE_SIMD_ROWS_HPP_

#include "primitives.hpp"

namespace autoplace {
namespace {

#if AUTOPLACE_VNNI

constexpr int kVectorRows = 16;
constexpr int kTileTokens = 12;       // sums of ints and of floats in 24 of 32 registers
constexpr int kFloatTileTokens = 8;
using Ints = __m512i;
using Floats = __m512;

AUTOPLACE_INLINE Ints zero_ints() { return _mm512_setzero_si512(); }
AUTOPLACE_INLINE Floats zero_floats() { return _mm512_setzero_ps(); }
AUTOPLACE_INLINE Ints load_ints(const void* p) { return _mm512_loadu_si512(p); }
AUTOPLACE_INLINE Floats load_floats(const float* p) { return _mm512_loadu_ps(p); }
AUTOPLACE_INLINE void store_floats(float* p, Floats v) { _mm512_storeu_ps(p, v); }
AUTOPLACE_INLINE Floats all(float v) { return _mm512_set1_ps(v); }
AUTOPLACE_INLINE Floats add(Floats a, Floats b) { return _mm512_add_ps(a, b); }
AUTOPLACE_INLINE Floats mul(Floats a, Floats b) { return _mm512_mul_ps(a, b); }
AUTOPLACE_INLINE Floats mul_add(Floats a, Floats b, Floats c) { return _mm512_fmadd_ps(a, b, c); }
AUTOPLACE_INLINE Floats sub_mul(Floats c, Floats a, Floats b) { return _mm512_fnmadd_ps(a, b, c); }
AUTOPLACE_INLINE Floats to_floats(Ints v) { return _mm512_cvtepi32_ps(v); }
AUTOPLACE_INLINE Floats load_halves(const uint8_t* p) { return _mm512_cvtph_ps(load256(p)); }
AUTOPLACE_INLINE Ints load_words_as_ints(const uint8_t* p) { return _mm512_cvtepu16_epi32(load256(p)); }
AUTOPLACE_INLINE Ints load_bytes_as_ints(const uint8_t* p) { return _mm512_cvtepu8_epi32(load128(p)); }
AUTOPLACE_INLINE Ints all_ints(int v) { return _mm512_set1_epi32(v); }
AUTOPLACE_INLINE Ints all_bytes(char v) { return _mm512_set1_epi8(v); }
AUTOPLACE_INLINE Ints and_ints(Ints a, Ints b) { return _mm512_and_si512(a, b); }
AUTOPLACE_INLINE Ints or_ints(Ints a, Ints b) { return _mm512_or_si512(a, b); }
AUTOPLACE_INLINE Ints xor_ints(Ints a, Ints b) { return _mm512_xor_si512(a, b); }
AUTOPLACE_INLINE Ints sub_ints(Ints a, Ints b) { return _mm512_sub_epi32(a, b); }
AUTOPLACE_INLINE Floats as_floats(Ints v) { return _mm512_castsi512_ps(v); }
template <int N>
AUTOPLACE_INLINE Ints shift_left(Ints v) {
  return _mm512_slli_epi32(v, N);
}
template <int N>
AUTOPLACE_INLINE Ints shift_right(Ints v) {
  return _mm512_srli_epi32(v, N);
}
template <int N>
AUTOPLACE_INLINE Ints shift_right_signed(Ints v) {
  return _mm512_srai_epi32(v, N);
}
AUTOPLACE_INLINE Ints shift_left_by(Ints v, Ints counts) { return _mm512_sllv_epi32(v, counts); }
AUTOPLACE_INLINE Ints shift_right_by_count(Ints v, int64_t count) {
  return _mm512_srl_epi32(v, _mm_cvtsi64_si128(count));
}
AUTOPLACE_INLINE Ints shuffle_bytes(__m128i table, Ints index) {
  return _mm512_shuffle_epi8(_mm512_broadcast_i32x4(table), index);
}
AUTOPLACE_INLINE Ints select_greater(Ints a, Ints b, Ints yes, Ints no) {
  return _mm512_mask_blend_epi32(_mm512_cmpgt_epi32_mask(a, b), no, yes);
}

#else

constexpr int kVectorRows = 8;
constexpr int kTileTokens = 4;
constexpr int kFloatTileTokens = 4;
using Ints = __m256i;
using Floats = __m256;

AUTOPLACE_INLINE Ints zero_ints() { return _mm256_setzero_si256(); }
AUTOPLACE_INLINE Floats zero_floats() { return _mm256_setzero_ps(); }
AUTOPLACE_INLINE Ints load_ints(const void* p) { return load256(p); }
AUTOPLACE_INLINE Floats load_floats(const float* p) { return _mm256_loadu_ps(p); }
AUTOPLACE_INLINE void store_floats(float* p, Floats v) { _mm256_storeu_ps(p, v); }
AUTOPLACE_INLINE Floats all(float v) { return _mm256_set1_ps(v); }
AUTOPLACE_INLINE Floats add(Floats a, Floats b) { return _mm256_add_ps(a, b); }
AUTOPLACE_INLINE Floats mul(Floats a, Floats b) { return _mm256_mul_ps(a, b); }
AUTOPLACE_INLINE Floats mul_add(Floats a, Floats b, Floats c) { return _mm256_fmadd_ps(a, b, c); }
AUTOPLACE_INLINE Floats sub_mul(Floats c, Floats a, Floats b) { return _mm256_fnmadd_ps(a, b, c); }
AUTOPLACE_INLINE Floats to_floats(Ints v) { return _mm256_cvtepi32_ps(v); }
AUTOPLACE_INLINE Floats load_halves(const uint8_t* p) { return _mm256_cvtph_ps(load128(p)); }
AUTOPLACE_INLINE Ints load_words_as_ints(const uint8_t* p) { return _mm256_cvtepu16_epi32(load128(p)); }
AUTOPLACE_INLINE Ints load_bytes_as_ints(const uint8_t* p) {
  return _mm256_cvtepu8_epi32(_mm_loadl_epi64(reinterpret_cast<const __m128i*>(p)));
}
AUTOPLACE_INLINE Ints all_ints(int v) { return _mm256_set1_epi32(v); }
AUTOPLACE_INLINE Ints all_bytes(char v) { return _mm256_set1_epi8(v); }
AUTOPLACE_INLINE Ints and_ints(Ints a, Ints b) { return _mm256_and_si256(a, b); }
AUTOPLACE_INLINE Ints or_ints(Ints a, Ints b) { return _mm256_or_si256(a, b); }
AUTOPLACE_INLINE Ints xor_ints(Ints a, Ints b) { return _mm256_xor_si256(a, b); }
AUTOPLACE_INLINE Ints sub_ints(Ints a, Ints b) { return _mm256_sub_epi32(a, b); }
AUTOPLACE_INLINE Floats as_floats(Ints v) { return _mm256_castsi256_ps(v); }
template <int N>
AUTOPLACE_INLINE Ints shift_left(Ints v) {
  return _mm256_slli_epi32(v, N);
}
template <int N>
AUTOPLACE_INLINE Ints shift_right(Ints v) {
  return _mm256_srli_epi32(v, N);
}
template <int N>
AUTOPLACE_INLINE Ints shift_right_signed(Ints v) {
  return _mm256_srai_epi32(v, N);
}
AUTOPLACE_INLINE Ints shift_left_by(Ints v, Ints counts) { return _mm256_sllv_epi32(v, counts); }
AUTOPLACE_INLINE Ints shift_right_by_count(Ints v, int64_t count) {
  return _mm256_srl_epi32(v, _mm_cvtsi64_si128(count));
}
AUTOPLACE_INLINE Ints shuffle_bytes(__m128i table, Ints index) {
  return _mm256_shuffle_epi8(_mm256_broadcastsi128_si256(table), index);
}
AUTOPLACE_INLINE Ints select_greater(Ints a, Ints b, Ints yes, Ints no) {
  return _mm256_blendv_epi8(no, yes, _mm256_cmpgt_epi32(a, b));
}

#endif

AUTOPLACE_INLINE Ints low4(Ints v) { return and_ints(v, all_bytes(15)); }
AUTOPLACE_INLINE Ints high4(Ints v) { return low4(shift_right<4>(v)); }
AUTOPLACE_INLINE Ints flip_sign_bit(Ints v) { return xor_ints(v, all_bytes(-128)); }
AUTOPLACE_INLINE Floats load_bfloats(const uint8_t* p) { return as_floats(shift_left<16>(load_words_as_ints(p))); }
AUTOPLACE_INLINE Ints four_bytes(const int8_t* p) {
  int value;
  std::memcpy(&value, p, 4);
  return all_ints(value);
}

// Asks for the next bytes of a stream, as many as are being used: few at a time, since a core that waits for
// more lines than it can keep track of does nothing else.
template <int64_t kBytes>
AUTOPLACE_INLINE void prefetch_ahead(const uint8_t* p) {
  constexpr int64_t kAhead = 8192;
  for (int64_t line = 0; line < kBytes; line += 64) {
    _mm_prefetch(reinterpret_cast<const char*>(p) + kAhead + line, _MM_HINT_T0);
  }
}

#if !AUTOPLACE_VNNI
// sum += products, in 16 bits and in this order: a compiler that may add in another one makes all products
// before it adds any, and runs out of registers.
AUTOPLACE_INLINE void add_in_order(Ints& sum, Ints products) {
  sum = _mm256_add_epi16(sum, products);
  asm("" : "+x"(sum));
}
#endif

// sums[t] += Σ over 4·kSteps weights of codes · x[t], for codes line(0) … line(kSteps - 1), each 4
// weights of every row. Without VNNI, products are summed in 16 bits as long as they cannot overflow.
template <int T, int kSteps, bool kSigned, int kMaxCode, class Line>
AUTOPLACE_INLINE void accumulate(const int8_t* const* x, Line&& line, Ints* sums) {
#if AUTOPLACE_VNNI
  unroll<kSteps>([&](auto step) AUTOPLACE_LAMBDA_INLINE {
    const Ints codes = line(step);
    for (int t = 0; t < T; ++t) {
      sums[t] = _mm512_dpbusd_epi32(sums[t], codes, four_bytes(x[t] + 4 * step.value));
    }
  });
#else
  constexpr int kFit = kSigned ? 1 : 32767 / (2 * 127 * kMaxCode);
  constexpr int kRun = kFit < kSteps ? kFit : kSteps;
  static_assert(kRun >= 1 && kSteps % kRun == 0, "runs of 16-bit sums must divide a group");
  unroll<kSteps / kRun>([&](auto run) AUTOPLACE_LAMBDA_INLINE {
    Ints partial[T];
    for (int t = 0; t < T; ++t) partial[t] = zero_ints();
    unroll<kRun>([&](auto i) AUTOPLACE_LAMBDA_INLINE {
      constexpr int kStep = run.value * kRun + i.value;
      const Ints codes = line(Index<kStep>{});
      for (int t = 0; t < T; ++t) {
        const Ints four = four_bytes(x[t] + 4 * kStep);
        const Ints products = kSigned ? _mm256_maddubs_epi16(_mm256_abs_epi8(codes), _mm256_sign_epi8(four, codes))
                                      : _mm256_maddubs_epi16(codes, four);
        add_in_order(partial[t], products);
      }
    });
    for (int t = 0; t < T; ++t) {
      sums[t] = _mm256_add_epi32(sums[t], _mm256_madd_epi16(partial[t], _mm256_set1_epi16(1)));
    }
  });
#endif
}

}  // namespace
}  // namespace autoplace

#endif  // AUTOPLACE_SIMD_ROWS_HPP_
