// The routed experts of a layer as one operator.
#ifndef AUTOPLACE_EXPERTS_HPP_
#define AUTOPLACE_EXPERTS_HPP_

#include <cstdint>

#include "path.hpp"

namespace autoplace {

// The matrices of E experts, one after the other.
struct ExpertStack {
  Matrix first;
  int64_t expert_bytes;

  Matrix operator[](int64_t expert) const {
    Matrix matrix = first;
    matrix.data += expert * expert_bytes;
    return matrix;
  }
};

struct Routing {
  const int64_t* ids;    // [T, A], each in [0, E)
  const float* weights;  // [T, A]
  int64_t num_tokens;
  int64_t per_token;
  int64_t num_experts;
};

void experts(const void* x, int x_dtype, const Routing& routing, const ExpertStack& gate, const ExpertStack& up,
             const ExpertStack& down, void* out, int out_dtype);

}  // namespace autoplace

#endif  // AUTOPLACE_EXPERTS_HPP_
