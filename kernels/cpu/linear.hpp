// y = x · W^T over all threads, for any format.
#ifndef AUTOPLACE_LINEAR_HPP_
#define AUTOPLACE_LINEAR_HPP_

#include <cstdint>

#include "path.hpp"

namespace autoplace {

// -1 where a format cannot hold [n, k].
int64_t matrix_bytes(int format, int64_t n, int64_t k);
Matrix matrix_view(const void* data, int format, int64_t n, int64_t k);

void linear(const void* x, int x_dtype, int64_t t, const Matrix& w, void* y, int y_dtype);
void dequantize(const void* src, int format, int64_t num_elements, void* dst, int dst_dtype);

}  // namespace autoplace

#endif  // AUTOPLACE_LINEAR_HPP_
