// The feed-forward half of a layer for one token.
#ifndef AUTOPLACE_FEED_FORWARD_HPP_
#define AUTOPLACE_FEED_FORWARD_HPP_

#include "autoplace/decode.h"

namespace autoplace {

// out = dense, or Σ of the chosen experts plus the shared one, of the normed x [D]. Checked by the caller.
void feed_forward(const ApFeedForward& layer, const float* x, float* out);

}  // namespace autoplace

#endif  // AUTOPLACE_FEED_FORWARD_HPP_
