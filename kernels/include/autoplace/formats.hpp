// How many weights a block of each format holds and how many bytes it takes.
// Source of the GGML numbers: ggml-common.h's block structs, as restated by the gguf package.
#ifndef AUTOPLACE_FORMATS_HPP_
#define AUTOPLACE_FORMATS_HPP_

#include <cstdint>

#include "autoplace/kernels.h"

namespace autoplace {

enum Format : int {
  kF32 = 0,
  kF16 = 1,
  kQ4_0 = 2,
  kQ4_1 = 3,
  kQ5_0 = 6,
  kQ5_1 = 7,
  kQ8_0 = 8,
  kQ2_K = 10,
  kQ3_K = 11,
  kQ4_K = 12,
  kQ5_K = 13,
  kQ6_K = 14,
  kIQ4_NL = 20,
  kIQ4_XS = 23,
  kBF16 = 30,
  kMXFP4 = 39,
  kMarlin4 = kApMarlin4,
  kMarlin8 = kApMarlin8,
};

struct BlockSize {
  int weights;
  int bytes;
};

// {0, 0} for an unknown format and for the Marlin ones, which have no blocks of one row.
inline BlockSize block_size(int format) {
  switch (format) {
    case kF32: return {1, 4};
    case kF16: return {1, 2};
    case kBF16: return {1, 2};
    case kQ4_0: return {32, 18};
    case kQ4_1: return {32, 20};
    case kQ5_0: return {32, 22};
    case kQ5_1: return {32, 24};
    case kQ8_0: return {32, 34};
    case kQ2_K: return {256, 84};
    case kQ3_K: return {256, 110};
    case kQ4_K: return {256, 144};
    case kQ5_K: return {256, 176};
    case kQ6_K: return {256, 210};
    case kIQ4_NL: return {32, 18};
    case kIQ4_XS: return {256, 136};
    case kMXFP4: return {32, 17};
    default: return {0, 0};
  }
}

// Rows interleaved by 16 (cpu/interleave.hpp): the GGML number and kApInterleaved.
inline bool is_interleaved(int format) { return format >= kApInterleaved; }
inline int base_format(int format) { return is_interleaved(format) ? format - kApInterleaved : format; }

inline bool is_float(int format) { return format == kF32 || format == kF16 || format == kBF16; }
inline bool is_marlin(int format) { return format == kMarlin4 || format == kMarlin8; }

inline int64_t round_up(int64_t value, int64_t multiple) {
  return (value + multiple - 1) / multiple * multiple;
}

}  // namespace autoplace

#endif  // AUTOPLACE_FORMATS_HPP_
