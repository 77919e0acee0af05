#include "linear.hpp"

#include <algorithm>
#include <vector>

#include "buffers.hpp"
#include "thread_pool.hpp"
#include "tiles.hpp"

namespace autoplace {
namespace {

constexpr int64_t kTokensAtOnce = 512;
constexpr int64_t kChunkBytes = int64_t{1} << 16;  // of weights a thread takes at a time, at batch 1

void write_row(const float* src, int64_t count, void* y, int y_dtype, int64_t offset) {
  if (y_dtype == kApBF16) {
    current_path().to_bf16(src, count, static_cast<uint16_t*>(y) + offset);
  } else {
    std::copy(src, src + count, static_cast<float*>(y) + offset);
  }
}

// A multiple of 16 rows, about kChunkBytes of weights, and not so many that threads run out of chunks.
int64_t rows_per_chunk(const Matrix& w) {
  const int64_t bytes_per_row = std::max<int64_t>(1, matrix_bytes(w.format, w.n, w.k) / w.n);
  const int64_t fair = w.n / (4 * num_threads());
  return std::max<int64_t>(kTileRows, std::min(kChunkBytes / bytes_per_row, fair) / kTileRows * kTileRows);
}

void few_tokens(const Activations& x, const Matrix& w, void* y, int y_dtype) {
  const Path& path = current_path();
  parallel_for(w.n, rows_per_chunk(w), [&](int64_t begin, int64_t end) {
    const int64_t rows = end - begin, t = x.count();
    if (y_dtype == kApF32) {
      path.gemv(w, begin, rows, x.data(), t, static_cast<float*>(y) + begin, w.n);
      return;
    }
    float* out = tile_scratch().out.get<float>(t * rows);
    path.gemv(w, begin, rows, x.data(), t, out, rows);
    for (int64_t i = 0; i < t; ++i) write_row(out + i * rows, rows, y, y_dtype, i * w.n + begin);
  });
}

void many_tokens(const Activations& x, const Matrix& w, void* y, int y_dtype) {
  const Path& path = current_path();
  std::vector<const Activation*> rows(static_cast<size_t>(x.count()));
  for (int64_t i = 0; i < x.count(); ++i) rows[static_cast<size_t>(i)] = &x[i];
  parallel_for(w.n, kTileRows, [&](int64_t begin, int64_t end) {
    TileScratch& scratch = tile_scratch();
    for (int64_t done = 0; done < x.count(); done += kTokensAtOnce) {
      const int64_t t = std::min(kTokensAtOnce, x.count() - done);
      float* out = scratch.out.get<float>(kTokensAtOnce * kTileRows);
      path.gemm(w, begin, end - begin, rows.data() + done, t, out, scratch.tile.get<uint8_t>(kScratchBytes));
      for (int64_t i = 0; i < t; ++i) {
        write_row(out + i * kTileRows, end - begin, y, y_dtype, (done + i) * w.n + begin);
      }
    }
  });
}

}  // namespace

int64_t matrix_bytes(int format, int64_t n, int64_t k) {
  if (is_marlin(format)) return marlin_shape(format, n, k).bytes();
  const BlockSize size = block_size(base_format(format));
  if (size.weights == 0 || k % size.weights != 0) return -1;
  if (is_interleaved(format) && n % kTileRows != 0) return -1;
  return n * (k / size.weights) * size.bytes;
}

Matrix matrix_view(const void* data, int format, int64_t n, int64_t k) {
  const int64_t row_bytes = is_marlin(format) ? 0 : matrix_bytes(base_format(format), 1, k);
  return {format, static_cast<const uint8_t*>(data), n, k, row_bytes};
}

void linear(const void* x, int x_dtype, int64_t t, const Matrix& w, void* y, int y_dtype) {
  const TileKernels* tiles = current_path().tiles;
  if (tiles != nullptr && t > kMaxGemvTokens && tiles->takes(w.format, x_dtype)) {
    return tile_linear(*tiles, x, x_dtype, t, w, y, y_dtype);
  }
  static thread_local Activations activations;
  const bool quantized = current_path().quantizes && !is_float(w.format);
  activations.load(x, x_dtype, t, w.k, quantized);
  if (t <= kMaxGemvTokens) {
    few_tokens(activations, w, y, y_dtype);
  } else {
    many_tokens(activations, w, y, y_dtype);
  }
}

void dequantize(const void* src, int format, int64_t num_elements, void* dst, int dst_dtype) {
  const BlockSize size = block_size(format);
  constexpr int64_t kPiece = int64_t{1} << 14;  // a multiple of every block
  const uint8_t* blocks = static_cast<const uint8_t*>(src);
  parallel_for((num_elements + kPiece - 1) / kPiece, 1, [&](int64_t begin, int64_t end) {
    for (int64_t piece = begin; piece < end; ++piece) {
      const int64_t first = piece * kPiece, count = std::min(kPiece, num_elements - first);
      const uint8_t* source = blocks + first / size.weights * size.bytes;
      if (dst_dtype == kApF32) {
        current_path().dequantize(format, source, count, static_cast<float*>(dst) + first);
      } else {
        float* wide = tile_scratch().out.get<float>(kPiece);
        current_path().dequantize(format, source, count, wide);
        current_path().to_bf16(wide, count, static_cast<uint16_t*>(dst) + first);
      }
    }
  });
}

}  // namespace autoplace
