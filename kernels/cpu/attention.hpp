// Attention of one token over the cache.
#ifndef AUTOPLACE_ATTENTION_HPP_
#define AUTOPLACE_ATTENTION_HPP_

#include <cstdint>

#include "autoplace/decode.h"

namespace autoplace {

// What one token attends to: `groups` groups of `per_group` heads, each group with its own columns of
// the cache: keys of `d` elements and values of `v`.
struct Attended {
  ApCacheRows keys, values;
  int64_t length;  // positions
  int64_t groups, per_group;
  int64_t d, v;
  bool values_are_keys;  // the first v elements of a key (latent attention)
};

// out = attention of the normed x [D] through all projections, [D]. Both write this token's row of the
// cache. Parts are checked by the caller.
void mla(const ApMla& layer, const float* x, int64_t position, const float* turns, float* out);
void gqa(const ApGqa& layer, const float* x, int64_t position, const float* turns, float* out);

}  // namespace autoplace

#endif  // AUTOPLACE_ATTENTION_HPP_
