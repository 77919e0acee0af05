// What one instruction-set path must offer, and the views that kernels work on.
#ifndef AUTOPLACE_PATH_HPP_
#define AUTOPLACE_PATH_HPP_

#include <cstdint>

#include "autoplace/formats.hpp"
#include "autoplace/marlin_format.hpp"

namespace autoplace {

constexpr int64_t kSuperBlock = 256;  // K is padded to this in quantised activations
constexpr int kGroup = 32;            // activations share one scale per this many
constexpr int kMaxGemvTokens = 4;

// A weight matrix [n, k] in memory, rows contiguous (GGUF, floats) or in tiles of 16 rows (Marlin).
struct Matrix {
  int format;
  const uint8_t* data;
  int64_t n;
  int64_t k;
  int64_t row_bytes;  // 0 for Marlin

  const uint8_t* row(int64_t index) const { return data + index * row_bytes; }
};

// One token's activations: x, and x quantised to int8 in groups of 32 (x ≈ d·q).
struct Activation {
  const float* x;      // [k]
  const int8_t* q;     // [K'] zero-padded, K' = k up to 256
  const float* d;      // [K'/32]
  const float* sum32;  // [K'/32] d · sum of q over the group
  const float* sum16;  // [K'/16] the same over half groups
  const int16_t* pairs;  // [K'/16][2] of half a group, Σ of q[4i] + q[4i + 1] and Σ of q[4i + 2] + q[4i + 3]
};

// Where quantised activations go: the same as in Activation.
struct Quantised {
  int8_t* q;
  float* d;
  float* sum32;
  float* sum16;
  int16_t* pairs;
};

// The inner loops of attention at decode, over float32 rows (simd/attention.hpp).
struct AttentionLoops {
  // out[h * out_stride + r] = q[h] · rows[r] for q [heads, d] and rows `stride` apart.
  void (*scores)(const float* q, int64_t heads, int64_t d, const float* rows, int64_t num_rows, int64_t stride,
                 float* out, int64_t out_stride);

  // sums[h * sum_stride + i] += Σ over r of p[h * p_stride + r] · rows[r * stride + i], i below `width`.
  void (*mix)(const float* p, int64_t heads, int64_t p_stride, const float* rows, int64_t num_rows, int64_t stride,
              int64_t width, float* sums, int64_t sum_stride);

  // sums[i] += Σ over r of p[r] · rows[r * width + i] for bf16 rows, i below `width`.
  void (*mix_bfloats)(const float* p, const uint16_t* rows, int64_t num_rows, int64_t width, float* sums);

  // x[i] = e^(x[i] - shift) for x that are not above the shift; their sum.
  float (*exponentials)(float* x, int64_t count, float shift);
};

struct TileKernels;

struct Path {
  const char* name;
  bool quantizes;  // false: kernels read only Activation::x

  // Quantises `k` elements of x and zeros up to `padded`, a multiple of 32, into what the activation points to.
  void (*quantize)(const float* x, int64_t k, int64_t padded, const Quantised& out);

  // gate[i] = silu(gate[i]) · up[i]
  void (*swiglu)(float* gate, const float* up, int64_t count);

  // out[t * stride + r] = row (first + r) · x[t], for up to kMaxGemvTokens tokens. Marlin: `first` is
  // a multiple of 16; rows are computed by tiles but only `num_rows` are written.
  void (*gemv)(const Matrix& w, int64_t first, int64_t num_rows, const Activation* x, int64_t t,
               float* out, int64_t stride);

  // out[t * 16 + r] for at most 16 rows from `first` (a multiple of 16) and any number of tokens.
  // `scratch` holds kScratchBytes.
  void (*gemm)(const Matrix& w, int64_t first, int64_t num_rows, const Activation* const* x, int64_t t,
               float* out, void* scratch);

  // `num_elements` is a whole number of blocks.
  void (*dequantize)(int format, const uint8_t* src, int64_t num_elements, float* dst);

  // Symmetric codes of 64 weights, the last 64 - `count` zero, and the bf16 bits of their scale
  // (marlin_format.hpp). Codes are signed, of 4 or 8 bits.
  uint16_t (*marlin_group)(const float* w, int64_t count, int bits, int8_t* codes);

  void (*to_float)(const uint16_t* bf16, int64_t count, float* dst);
  void (*to_bf16)(const float* src, int64_t count, uint16_t* dst);
  uint64_t (*read)(const uint8_t* data, int64_t num_bytes);

  AttentionLoops attention;

  // For more than kMaxGemvTokens tokens, instead of `gemm`, what the path has tiles for (tiles.hpp).
  const TileKernels* tiles = nullptr;
};

constexpr int64_t kScratchBytes = int64_t{1} << 18;

const Path* scalar_path();
#if defined(__x86_64__)
const Path* avx2_path();
const Path* avx512_path();
const Path* amx_path();  // null where it cannot be used; call it only where avx512 can
#endif

// The path in use: the best one the CPU has, unless one was forced.
const Path& current_path();
bool set_path(const char* name);
bool path_supported(const char* name);

}  // namespace autoplace

#endif  // AUTOPLACE_PATH_HPP_
