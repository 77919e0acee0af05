// The operators of a layer that are too small for threads: norm, rotation, choice of experts.
#ifndef AUTOPLACE_SMALL_OPS_HPP_
#define AUTOPLACE_SMALL_OPS_HPP_

#include <cstdint>

#include "autoplace/decode.h"

namespace autoplace {

// out = x / rms(x) · weight; out may be x.
void rms_norm(const ApNorm& norm, const float* x, float* out);

// Turns the pairs of x [dim] by turns [dim / 2][2]: neighbours where interleaved, else halves.
void rotate(float* x, int64_t dim, const float* turns, bool interleaved);

// As models/moe.py's choose_experts. Where two choices are equal, the lower index is taken.
void choose_experts(const ApRouter& router, const float* scores, int64_t* ids, float* weights);

// x += y
void add_to(float* x, const float* y, int64_t count);

// Between float32 and float32 or bf16.
void widen(const void* src, int dtype, int64_t count, float* dst);
void narrow(const float* src, int64_t count, void* dst, int dtype);

}  // namespace autoplace

#endif  // AUTOPLACE_SMALL_OPS_HPP_
