// Products of a matrix with interleaved rows, by strips of 16 rows.
#ifndef AUTOPLACE_SIMD_INTERLEAVED_PRODUCTS_HPP_
#define AUTOPLACE_SIMD_INTERLEAVED_PRODUCTS_HPP_

#include "interleaved_one.hpp"

namespace autoplace {
namespace {

template <int Format, int T>
AUTOPLACE_INLINE void multiply_strip_by(const uint8_t* strip, int64_t num_units, const Activation* const* x,
                                        float* out) {
#if !AUTOPLACE_VNNI
  if constexpr (T == 1) return multiply_strip_by_one<Format>(strip, num_units, **x, out);
#endif
  multiply_strip<Format, T>(strip, num_units, x, out);
}

template <int Format>
inline void interleaved_gemm(const Matrix& w, int64_t first, const Activation* const* x, int64_t t, float* out) {
  using F = Interleaved<Format>;
  const int64_t num_units = w.k / F::kBlock;
  const uint8_t* strip = w.data + first / kTileRows * num_units * Unit<Format>::kBytes;
  in_token_batches<kTileTokens>(t, [&](auto batch, int64_t i) AUTOPLACE_LAMBDA_INLINE {
    multiply_strip_by<Format, batch.value>(strip, num_units, x + i, out + i * kTileRows);
  });
}

template <int Format>
inline void interleaved_gemv(const Matrix& w, int64_t first, int64_t num_rows, const Activation* x, int64_t t,
                             float* out, int64_t stride) {
  gemv_by_strips(num_rows, x, t, out, stride, [&](int64_t done, const Activation* const* tokens, float* sums) {
    interleaved_gemm<Format>(w, first + done, tokens, t, sums);
  });
}

}  // namespace
}  // namespace autoplace

#endif  // AUTOPLACE_SIMD_INTERLEAVED_PRODUCTS_HPP_
