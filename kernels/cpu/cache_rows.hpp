// Rows of the KV cache in its own type: written from float32, read as float32.
#ifndef AUTOPLACE_CACHE_ROWS_HPP_
#define AUTOPLACE_CACHE_ROWS_HPP_

#include <cstdint>

#include "autoplace/decode.h"

namespace autoplace {

bool is_cache(const ApCacheRows& rows, int64_t width);

// Rounds to nearest even; q8_0 as models/kv_cache.py's Q8Rows.
void write_row(const ApCacheRows& rows, int64_t position, const float* x);

// Elements [column, column + width) of rows [first, first + count): a pointer into the cache where it is
// float32, else `buffer` [count, width]. `stride` receives the distance between two rows.
const float* read_rows(const ApCacheRows& rows, int64_t first, int64_t count, int64_t column, int64_t width,
                       float* buffer, int64_t* stride);

}  // namespace autoplace

#endif  // AUTOPLACE_CACHE_ROWS_HPP_
