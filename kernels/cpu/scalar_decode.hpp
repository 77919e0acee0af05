// The plain decoder of every block format: weight = scale · code - min, a scale for each 16 weights.
// The slow twin of simd/decode.hpp, and what `dequantize` computes with, in gguf-py's order of rounding.
#ifndef AUTOPLACE_SCALAR_DECODE_HPP_
#define AUTOPLACE_SCALAR_DECODE_HPP_

#include <cstdint>
#include <cstring>

#include "autoplace/formats.hpp"

namespace autoplace {
namespace {

struct DecodedBlock {
  alignas(64) int16_t code[256];
  float scale[16];
  float min[16];
};

constexpr int8_t kIq4Values[16] = {-127, -104, -83, -65, -49, -35, -22, -10,
                                   1,    13,   25,  38,  53,  69,  89,  113};
constexpr int8_t kMxfp4Values[16] = {0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12};

inline float bits_to_float(uint32_t bits) {
  float value;
  std::memcpy(&value, &bits, 4);
  return value;
}

inline uint32_t float_to_bits(float value) {
  uint32_t bits;
  std::memcpy(&bits, &value, 4);
  return bits;
}

inline float half_to_float(uint16_t half) {
  const uint32_t sign = uint32_t{half & 0x8000u} << 16;
  const uint32_t exponent = (half >> 10) & 31u;
  const uint32_t mantissa = half & 1023u;
  if (exponent == 31) return bits_to_float(sign | 0x7f800000u | (mantissa << 13));
  if (exponent != 0) return bits_to_float(sign | ((exponent + 112) << 23) | (mantissa << 13));
  const float tiny = static_cast<float>(mantissa) * 5.9604644775390625e-8f;  // 2^-24
  return bits_to_float(sign | float_to_bits(tiny));
}

inline float bfloat_to_float(uint16_t value) { return bits_to_float(uint32_t{value} << 16); }

// Round to nearest even; a NaN stays one.
inline uint16_t float_to_bfloat(float value) {
  const uint32_t bits = float_to_bits(value);
  if ((bits & 0x7fffffffu) > 0x7f800000u) return static_cast<uint16_t>((bits >> 16) | 64);
  return static_cast<uint16_t>((bits + 0x7fffu + ((bits >> 16) & 1u)) >> 16);
}

inline float load_half(const uint8_t* p) {
  uint16_t half;
  std::memcpy(&half, p, 2);
  return half_to_float(half);
}

// Half of 2^(e - 127), for codes that stand for twice their value.
inline float e8m0_half(uint8_t e) {
  return bits_to_float(e < 2 ? 0x00200000u << e : uint32_t{static_cast<uint8_t>(e - 1)} << 23);
}

// The 6-bit scales and mins of Q4_K and Q5_K.
inline void k_scale_min(const uint8_t* packed, int index, int* scale, int* min) {
  if (index < 4) {
    *scale = packed[index] & 63;
    *min = packed[index + 4] & 63;
  } else {
    *scale = (packed[index + 4] & 15) | ((packed[index - 4] >> 6) << 4);
    *min = (packed[index + 4] >> 4) | ((packed[index] >> 6) << 4);
  }
}

inline void fill(float* values, float value, int count) {
  for (int i = 0; i < count; ++i) values[i] = value;
}

inline void decode_nibbles(const uint8_t* qs, int offset, int16_t* code) {
  for (int i = 0; i < 16; ++i) {
    code[i] = static_cast<int16_t>((qs[i] & 15) - offset);
    code[i + 16] = static_cast<int16_t>((qs[i] >> 4) - offset);
  }
}

inline void decode_codebook(const uint8_t* qs, const int8_t* values, int16_t* code) {
  for (int i = 0; i < 16; ++i) {
    code[i] = values[qs[i] & 15];
    code[i + 16] = values[qs[i] >> 4];
  }
}

inline void add_fifth_bits(const uint8_t* qh, int16_t* code) {
  for (int i = 0; i < 32; ++i) {
    code[i] = static_cast<int16_t>(code[i] + (((qh[i / 8] >> (i % 8)) & 1) << 4));
  }
}

inline void decode_q8_0(const uint8_t* b, DecodedBlock* out) {
  fill(out->scale, load_half(b), 2);
  for (int i = 0; i < 32; ++i) out->code[i] = static_cast<int8_t>(b[2 + i]);
}

inline void decode_q4_k(const uint8_t* b, DecodedBlock* out, bool five) {
  const float d = load_half(b), dmin = load_half(b + 2);
  const uint8_t* qh = b + 16;
  const uint8_t* qs = five ? b + 48 : b + 16;
  for (int j = 0; j < 8; ++j) {
    int scale, min;
    k_scale_min(b + 4, j, &scale, &min);
    fill(out->scale + 2 * j, d * static_cast<float>(scale), 2);
    fill(out->min + 2 * j, dmin * static_cast<float>(min), 2);
    for (int i = 0; i < 32; ++i) {
      int code = (qs[32 * (j / 2) + i] >> (4 * (j % 2))) & 15;
      if (five) code |= ((qh[i] >> j) & 1) << 4;
      out->code[32 * j + i] = static_cast<int16_t>(code);
    }
  }
}

inline void decode_q6_k(const uint8_t* b, DecodedBlock* out) {
  const uint8_t* ql = b;
  const uint8_t* qh = b + 128;
  const float d = load_half(b + 208);
  for (int j = 0; j < 16; ++j) {
    out->scale[j] = d * static_cast<float>(static_cast<int8_t>(b[192 + j]));
  }
  for (int i = 0; i < 256; ++i) {
    const int half = i / 128, part = i % 128 / 32, l = i % 32;
    const int low = (ql[64 * half + 32 * (part % 2) + l] >> (4 * (part / 2))) & 15;
    const int high = (qh[32 * half + l] >> (2 * part)) & 3;
    out->code[i] = static_cast<int16_t>((low | (high << 4)) - 32);
  }
}

inline void decode_q3_k(const uint8_t* b, DecodedBlock* out) {
  const float d = load_half(b + 108);
  const uint8_t* packed = b + 96;
  for (int j = 0; j < 16; ++j) {
    const int low = (packed[j % 8] >> (4 * (j / 8))) & 15;
    const int high = (packed[8 + j % 4] >> (2 * (j / 4))) & 3;
    out->scale[j] = d * static_cast<float>((low | (high << 4)) - 32);
  }
  for (int i = 0; i < 256; ++i) {
    const int half = i / 128, part = i % 128 / 32, l = i % 32;
    const int low = (b[32 + 32 * half + l] >> (2 * part)) & 3;
    const int high = (b[l] >> (4 * half + part)) & 1;
    out->code[i] = static_cast<int16_t>(low - (high ? 0 : 4));
  }
}

inline void decode_q2_k(const uint8_t* b, DecodedBlock* out) {
  const float d = load_half(b + 80), dmin = load_half(b + 82);
  for (int j = 0; j < 16; ++j) {
    out->scale[j] = d * static_cast<float>(b[j] & 15);
    out->min[j] = dmin * static_cast<float>(b[j] >> 4);
  }
  for (int i = 0; i < 256; ++i) {
    const int half = i / 128, part = i % 128 / 32, l = i % 32;
    out->code[i] = static_cast<int16_t>((b[16 + 32 * half + l] >> (2 * part)) & 3);
  }
}

inline void decode_iq4_xs(const uint8_t* b, DecodedBlock* out) {
  const float d = load_half(b);
  const int high = b[2] | (b[3] << 8);
  for (int j = 0; j < 8; ++j) {
    const int low = (b[4 + j / 2] >> (4 * (j % 2))) & 15;
    fill(out->scale + 2 * j, d * static_cast<float>((low | (((high >> (2 * j)) & 3) << 4)) - 32), 2);
    decode_codebook(b + 8 + 16 * j, kIq4Values, out->code + 32 * j);
  }
}

// Decodes one block of any format but the float ones. `min` is 0 where a format has none.
inline void decode_block(int format, const uint8_t* b, DecodedBlock* out) {
  fill(out->min, 0.0f, 16);
  switch (format) {
    case kQ4_0:
      fill(out->scale, load_half(b), 2);
      return decode_nibbles(b + 2, 8, out->code);
    case kQ4_1:
      fill(out->scale, load_half(b), 2);
      fill(out->min, -load_half(b + 2), 2);
      return decode_nibbles(b + 4, 0, out->code);
    case kQ5_0:
      fill(out->scale, load_half(b), 2);
      decode_nibbles(b + 6, 16, out->code);
      return add_fifth_bits(b + 2, out->code);
    case kQ5_1:
      fill(out->scale, load_half(b), 2);
      fill(out->min, -load_half(b + 2), 2);
      decode_nibbles(b + 8, 0, out->code);
      return add_fifth_bits(b + 4, out->code);
    case kIQ4_NL:
      fill(out->scale, load_half(b), 2);
      return decode_codebook(b + 2, kIq4Values, out->code);
    case kMXFP4:
      fill(out->scale, e8m0_half(b[0]), 2);
      return decode_codebook(b + 1, kMxfp4Values, out->code);
    case kQ8_0: return decode_q8_0(b, out);
    case kQ4_K: return decode_q4_k(b, out, false);
    case kQ5_K: return decode_q4_k(b, out, true);
    case kQ6_K: return decode_q6_k(b, out);
    case kQ3_K: return decode_q3_k(b, out);
    case kQ2_K: return decode_q2_k(b, out);
    case kIQ4_XS: return decode_iq4_xs(b, out);
    default: return;
  }
}

inline void floats_from(int format, const uint8_t* src, int64_t count, float* dst) {
  if (format == kF32) {
    std::memcpy(dst, src, static_cast<size_t>(count) * 4);
    return;
  }
  for (int64_t i = 0; i < count; ++i) {
    uint16_t bits;
    std::memcpy(&bits, src + 2 * i, 2);
    dst[i] = format == kF16 ? half_to_float(bits) : bfloat_to_float(bits);
  }
}

// `count` is a whole number of blocks. Must be compiled without contraction to FMA.
inline void dequantize_blocks(int format, const uint8_t* src, int64_t count, float* dst) {
  if (is_float(format)) return floats_from(format, src, count, dst);
  const BlockSize size = block_size(format);
  DecodedBlock block;
  for (int64_t done = 0; done < count; done += size.weights, src += size.bytes) {
    decode_block(format, src, &block);
    for (int i = 0; i < size.weights; ++i) {
      dst[done + i] = block.scale[i / 16] * static_cast<float>(block.code[i]) - block.min[i / 16];
    }
  }
}

}  // namespace
}  // namespace autoplace

#endif  // AUTOPLACE_SCALAR_DECODE_HPP_
