#include "matrices.hpp"

#include "buffers.hpp"
#include "linear.hpp"
#include "small_ops.hpp"

namespace autoplace {

bool is_matrix(const ApMatrix& w, int64_t n, int64_t k) {
  if (w.data == nullptr || w.n != n || w.k != k || n < 1 || k < 1) return false;
  if (!is_marlin(w.format) && block_size(base_format(w.format)).weights == 0) return false;
  const bool typed = w.bias == nullptr || w.bias_dtype == kApF32 || w.bias_dtype == kApBF16;
  return typed && matrix_bytes(w.format, n, k) >= 0;
}

void multiply(const ApMatrix& w, const float* x, float* y) {
  linear(x, kApF32, 1, matrix_view(w.data, w.format, w.n, w.k), y, kApF32);
  if (w.bias == nullptr) return;
  static thread_local Buffer buffer;
  float* bias = buffer.get<float>(w.n);
  widen(w.bias, w.bias_dtype, w.n, bias);
  add_to(y, bias, w.n);
}

}  // namespace autoplace
