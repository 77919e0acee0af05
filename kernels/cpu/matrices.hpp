// One token through the matrices of a layer's description.
#ifndef AUTOPLACE_MATRICES_HPP_
#define AUTOPLACE_MATRICES_HPP_

#include "autoplace/decode.h"

namespace autoplace {

// Whether there is a matrix [n, k] whose format holds that shape; the bias, if any, is of activations' type.
bool is_matrix(const ApMatrix& w, int64_t n, int64_t k);

// y [n] = w · x + bias
void multiply(const ApMatrix& w, const float* x, float* y);

}  // namespace autoplace

#endif  // AUTOPLACE_MATRICES_HPP_
