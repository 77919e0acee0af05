// The packed Marlin format: symmetric codes in groups of 64 along K, one bf16 scale a group.
//
// N is padded to N' (a multiple of 64), K to K' (a multiple of 128). The codes come first, then the
// scales: N'·K'·bits/8 + (K'/64)·N'·2 bytes.
//   4 bits: codes[N'/16][K'/8][16 rows][4], a byte's low nibble is k = 8·s + j, its high nibble
//           k = 8·s + 4 + j; weight = (code - 8) · scale.
//   8 bits: codes[N'/16][K'/4][16 rows][4] int8; weight = code · scale.
//   scales: [N'/16][K'/64][16 rows] bf16.
// scale = 2·max|w| / (2^bits - 1), rounded to bf16, as GPTQ's symmetric quantisation has it (and
// KTransformers' marlin_quantize): the codes 0..15 stand for -8..7, so the largest weight of a group
// may fall half a step outside and is clamped.
#ifndef AUTOPLACE_MARLIN_FORMAT_HPP_
#define AUTOPLACE_MARLIN_FORMAT_HPP_

#include "autoplace/formats.hpp"

namespace autoplace {

constexpr int64_t kMarlinGroup = 64;
constexpr int64_t kTileRows = 16;

struct MarlinShape {
  int bits;
  int64_t n_padded;
  int64_t k_padded;

  int64_t tile_bytes() const { return kTileRows * k_padded * bits / 8; }
  int64_t code_bytes() const { return n_padded * k_padded * bits / 8; }
  int64_t groups() const { return k_padded / kMarlinGroup; }
  int64_t bytes() const { return code_bytes() + groups() * n_padded * 2; }
};

inline MarlinShape marlin_shape(int format, int64_t n, int64_t k) {
  return {format == kMarlin4 ? 4 : 8, round_up(n, 64), round_up(k, 128)};
}

}  // namespace autoplace

#endif  // AUTOPLACE_MARLIN_FORMAT_HPP_
