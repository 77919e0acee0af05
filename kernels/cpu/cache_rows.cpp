#include "cache_rows.hpp"

#include <algorithm>
#include <cmath>
#include <limits>

#include "path.hpp"
#include "scalar_decode.hpp"

namespace autoplace {
namespace {

constexpr int64_t kBlock = 32;  // of q8_0

// Round to nearest even, to infinity above the largest half; a NaN stays one.
uint16_t float_to_half(float value) {
  const uint32_t bits = float_to_bits(value), sign = (bits >> 16) & 0x8000u, magnitude = bits & 0x7fffffffu;
  if (magnitude > 0x7f800000u) return static_cast<uint16_t>(sign | 0x7e00u);
  if (magnitude >= 0x47800000u) return static_cast<uint16_t>(sign | 0x7c00u);
  if (magnitude < 0x38800000u) {  // below 2^-14: a multiple of 2^-24, which the sum with 1/2 rounds to
    const float tiny = bits_to_float(magnitude) + 0.5f;
    return static_cast<uint16_t>(sign | (float_to_bits(tiny) - 0x3f000000u));
  }
  return static_cast<uint16_t>(sign | ((magnitude - 0x38000000u + 0xfffu + ((magnitude >> 13) & 1u)) >> 13));
}

void write_q8_0(const ApCacheRows& rows, int64_t position, const float* x) {
  int8_t* values = static_cast<int8_t*>(rows.values) + position * rows.width;
  uint16_t* scales = static_cast<uint16_t*>(rows.scales) + position * (rows.width / kBlock);
  for (int64_t begin = 0; begin < rows.width; begin += kBlock) {
    float most = 0.0f;
    bool finite = true;
    for (int64_t i = begin; i < begin + kBlock; ++i) {
      most = std::fmax(most, std::fabs(x[i]));
      finite = finite && std::isfinite(x[i]);
    }
    const float scale = finite ? most / 127.0f : std::numeric_limits<float>::quiet_NaN();
    const float inverse = scale > 0.0f ? 1.0f / scale : 0.0f;
    for (int64_t i = begin; i < begin + kBlock; ++i) {
      values[i] = static_cast<int8_t>(finite ? std::nearbyint(x[i] * inverse) : 0.0f);
    }
    scales[begin / kBlock] = float_to_half(scale);
  }
}

void read_q8_0(const ApCacheRows& rows, int64_t position, int64_t column, int64_t width, float* out) {
  const int8_t* values = static_cast<const int8_t*>(rows.values) + position * rows.width;
  const uint16_t* scales = static_cast<const uint16_t*>(rows.scales) + position * (rows.width / kBlock);
  for (int64_t begin = column; begin < column + width;) {
    const int64_t end = std::min(column + width, (begin / kBlock + 1) * kBlock);
    const float scale = half_to_float(scales[begin / kBlock]);
    for (int64_t i = begin; i < end; ++i) out[i - column] = scale * static_cast<float>(values[i]);
    begin = end;
  }
}

}  // namespace

bool is_cache(const ApCacheRows& rows, int64_t width) {
  if (rows.values == nullptr || rows.width != width || rows.capacity < 1) return false;
  if (rows.format == kQ8_0) return rows.scales != nullptr && width % kBlock == 0;
  return is_float(rows.format);
}

void write_row(const ApCacheRows& rows, int64_t position, const float* x) {
  if (rows.format == kQ8_0) return write_q8_0(rows, position, x);
  if (rows.format == kF32) {
    std::copy_n(x, rows.width, static_cast<float*>(rows.values) + position * rows.width);
    return;
  }
  uint16_t* out = static_cast<uint16_t*>(rows.values) + position * rows.width;
  if (rows.format == kBF16) return current_path().to_bf16(x, rows.width, out);
  for (int64_t i = 0; i < rows.width; ++i) out[i] = float_to_half(x[i]);
}

const float* read_rows(const ApCacheRows& rows, int64_t first, int64_t count, int64_t column, int64_t width,
                       float* buffer, int64_t* stride) {
  if (rows.format == kF32) {
    *stride = rows.width;
    return static_cast<const float*>(rows.values) + first * rows.width + column;
  }
  *stride = width;
  for (int64_t i = 0; i < count; ++i) {
    float* out = buffer + i * width;
    if (rows.format == kQ8_0) {
      read_q8_0(rows, first + i, column, width, out);
    } else {
      const uint16_t* source = static_cast<const uint16_t*>(rows.values) + (first + i) * rows.width + column;
      current_path().dequantize(rows.format, reinterpret_cast<const uint8_t*>(source), width, out);
    }
  }
  return buffer;
}

}  // namespace autoplace
