// Quantises float32 rows to the packed Marlin format.
#ifndef AUTOPLACE_MARLIN_PACK_HPP_
#define AUTOPLACE_MARLIN_PACK_HPP_

#include "autoplace/marlin_format.hpp"

namespace autoplace {

void marlin_pack(const float* rows, int64_t first_row, int64_t num_rows, int64_t n, int64_t k, int format,
                 uint8_t* packed);

}  // namespace autoplace

#endif  // AUTOPLACE_MARLIN_PACK_HPP_
