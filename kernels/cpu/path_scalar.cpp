// The path for any machine: each row is decoded to float32 and multiplied; activations are not rounded.
#include <cmath>

#include "interleave.hpp"
#include "path.hpp"
#include "plain_vector.hpp"
#include "scalar_decode.hpp"

#include "simd/attention.hpp"  // written on the vectors of plain_vector.hpp

namespace autoplace {
namespace {

float dot(const float* a, const float* b, int64_t count) {
  float sums[8] = {};
  int64_t i = 0;
  for (; i + 8 <= count; i += 8) {
    for (int j = 0; j < 8; ++j) sums[j] += a[i + j] * b[i + j];
  }
  for (; i < count; ++i) sums[0] += a[i] * b[i];
  return ((sums[0] + sums[1]) + (sums[2] + sums[3])) + ((sums[4] + sums[5]) + (sums[6] + sums[7]));
}

void quantize(const float*, int64_t, int64_t, const Quantised&) {}

void swiglu(float* gate, const float* up, int64_t count) {
  for (int64_t i = 0; i < count; ++i) gate[i] = gate[i] / (1.0f + std::exp(-gate[i])) * up[i];
}

// Weights [begin, begin + count) of one row of a Marlin matrix; `begin` is a multiple of 64.
void marlin_row(const Matrix& w, int64_t row, int64_t begin, int64_t count, float* dst) {
  const MarlinShape shape = marlin_shape(w.format, w.n, w.k);
  const int64_t tile = row / kTileRows, lane = row % kTileRows;
  const uint8_t* codes = w.data + tile * shape.tile_bytes();
  const uint8_t* scales = w.data + shape.code_bytes() + tile * shape.groups() * kTileRows * 2;
  for (int64_t i = 0; i < count; ++i) {
    const int64_t k = begin + i;
    int code;
    if (shape.bits == 4) {
      const uint8_t byte = codes[(k / 8) * 64 + lane * 4 + k % 4];
      code = (k % 8 < 4 ? byte & 15 : byte >> 4) - 8;
    } else {
      code = static_cast<int8_t>(codes[(k / 4) * 64 + lane * 4 + k % 4]);
    }
    uint16_t scale;
    std::memcpy(&scale, scales + (k / kMarlinGroup * kTileRows + lane) * 2, 2);
    dst[i] = bfloat_to_float(scale) * static_cast<float>(code);
  }
}

uint16_t marlin_group(const float* w, int64_t count, int bits, int8_t* codes) {
  const float low = static_cast<float>(-(1 << (bits - 1))), high = -low - 1.0f;
  float values[kMarlinGroup] = {};
  std::memcpy(values, w, static_cast<size_t>(count) * 4);
  float most = 0.0f;
  for (float value : values) most = std::fmax(most, std::fabs(value));
  const uint16_t scale_bits = float_to_bfloat(2.0f * most / static_cast<float>((1 << bits) - 1));
  const float scale = bfloat_to_float(scale_bits);
  const float inverse = scale > 0.0f ? 1.0f / scale : 0.0f;
  for (int i = 0; i < kMarlinGroup; ++i) {
    const float code = std::nearbyint(values[i] * inverse);
    codes[i] = static_cast<int8_t>(std::fmin(std::fmax(code, low), high));
  }
  return scale_bits;
}

void interleaved_row(const Matrix& w, int64_t row, int64_t begin, int64_t count, float* dst) {
  const int format = base_format(w.format);
  const BlockSize size = block_size(format);
  uint8_t block[256];
  for (int64_t done = 0; done < count; done += size.weights) {
    restore_block(w, row, (begin + done) / size.weights, block);
    dequantize_blocks(format, block, size.weights, dst + done);
  }
}

constexpr int64_t kPiece = 1024;

void decode_piece(const Matrix& w, int64_t row, int64_t begin, int64_t count, float* dst) {
  if (is_marlin(w.format)) return marlin_row(w, row, begin, count, dst);
  if (is_interleaved(w.format)) return interleaved_row(w, row, begin, count, dst);
  const BlockSize size = block_size(w.format);
  dequantize_blocks(w.format, w.row(row) + begin / size.weights * size.bytes, count, dst);
}

template <class Store>
void multiply(const Matrix& w, int64_t first, int64_t num_rows, int64_t t, const float* const* x,
              Store&& store) {
  float piece[kPiece];
  for (int64_t r = 0; r < num_rows; ++r) {
    for (int64_t begin = 0; begin < w.k; begin += kPiece) {
      const int64_t count = w.k - begin < kPiece ? w.k - begin : kPiece;
      decode_piece(w, first + r, begin, count, piece);
      for (int64_t i = 0; i < t; ++i) store(i, r, begin == 0, dot(piece, x[i] + begin, count));
    }
  }
}

void gemv(const Matrix& w, int64_t first, int64_t num_rows, const Activation* x, int64_t t, float* out,
          int64_t stride) {
  const float* rows[kMaxGemvTokens];
  for (int64_t i = 0; i < t; ++i) rows[i] = x[i].x;
  multiply(w, first, num_rows, t, rows, [&](int64_t i, int64_t r, bool fresh, float value) {
    float& sum = out[i * stride + r];
    sum = fresh ? value : sum + value;
  });
}

void gemm(const Matrix& w, int64_t first, int64_t num_rows, const Activation* const* x, int64_t t,
          float* out, void*) {
  for (int64_t begin = 0; begin < t; begin += kMaxGemvTokens) {
    const int64_t count = t - begin < kMaxGemvTokens ? t - begin : kMaxGemvTokens;
    const float* rows[kMaxGemvTokens];
    for (int64_t i = 0; i < count; ++i) rows[i] = x[begin + i]->x;
    multiply(w, first, num_rows, count, rows, [&](int64_t i, int64_t r, bool fresh, float value) {
      float& sum = out[(begin + i) * kTileRows + r];
      sum = fresh ? value : sum + value;
    });
  }
}

void to_float(const uint16_t* src, int64_t count, float* dst) {
  for (int64_t i = 0; i < count; ++i) dst[i] = bfloat_to_float(src[i]);
}

void to_bf16(const float* src, int64_t count, uint16_t* dst) {
  for (int64_t i = 0; i < count; ++i) dst[i] = float_to_bfloat(src[i]);
}

uint64_t read(const uint8_t* data, int64_t num_bytes) {
  uint64_t sum = 0, word;
  for (int64_t i = 0; i + 8 <= num_bytes; i += 8) {
    std::memcpy(&word, data + i, 8);
    sum += word;
  }
  return sum;
}

constexpr Path kPath = {"scalar",          false,        quantize, swiglu,  gemv, gemm,
                        dequantize_blocks, marlin_group, to_float, to_bf16, read, kAttentionLoops};

}  // namespace

const Path* scalar_path() { return &kPath; }

}  // namespace autoplace
