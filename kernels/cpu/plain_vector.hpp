// A vector of eight floats in plain C++: what simd/attention.hpp is written on, for any machine.
#ifndef AUTOPLACE_PLAIN_VECTOR_HPP_
#define AUTOPLACE_PLAIN_VECTOR_HPP_

#include <cmath>
#include <cstdint>
#include <cstring>

namespace autoplace {
namespace {

constexpr int kVectorRows = 8;

struct Floats {
  float lane[kVectorRows];
};

inline Floats zero_floats() { return {}; }

inline Floats load_floats(const float* p) {
  Floats v;
  std::memcpy(v.lane, p, sizeof v.lane);
  return v;
}

inline Floats load_bfloats(const uint8_t* p) {
  Floats v;
  for (int i = 0; i < kVectorRows; ++i) {
    uint16_t bits;
    std::memcpy(&bits, p + 2 * i, 2);
    const uint32_t wide = static_cast<uint32_t>(bits) << 16;
    std::memcpy(v.lane + i, &wide, 4);
  }
  return v;
}

inline void store_floats(float* p, const Floats& v) { std::memcpy(p, v.lane, sizeof v.lane); }

inline Floats all(float value) {
  Floats v;
  for (float& lane : v.lane) lane = value;
  return v;
}

inline Floats mul_add(const Floats& a, const Floats& b, Floats sum) {
  for (int i = 0; i < kVectorRows; ++i) sum.lane[i] += a.lane[i] * b.lane[i];
  return sum;
}

inline float sum_floats(const Floats& v) {
  const float* x = v.lane;
  return ((x[0] + x[1]) + (x[2] + x[3])) + ((x[4] + x[5]) + (x[6] + x[7]));
}

// x[i] = e^(x[i] - shift); their sum.
inline float exponentials(float* x, int64_t count, float shift) {
  float sum = 0.0f;
  for (int64_t i = 0; i < count; ++i) sum += x[i] = std::exp(x[i] - shift);
  return sum;
}

}  // namespace
}  // namespace autoplace

#endif  // AUTOPLACE_PLAIN_VECTOR_HPP_
