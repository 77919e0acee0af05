// The C ABI: checks what a caller could get wrong, and lets no exception out.
#include "autoplace/kernels.h"

#include <atomic>
#include <initializer_list>
#include <new>

#include "experts.hpp"
#include "interleave.hpp"
#include "linear.hpp"
#include "marlin_pack.hpp"
#include "thread_pool.hpp"
#include "tiles.hpp"

using namespace autoplace;

namespace {

bool is_activation(int dtype) { return dtype == kApF32 || dtype == kApBF16; }
bool is_format(int format) {
  if (is_interleaved(format)) return block_pieces(base_format(format)).num_words != 0;
  return is_marlin(format) || block_size(format).weights != 0;
}

template <class Body>
int guarded(Body&& body) {
  try {
    body();
    return kApOk;
  } catch (const std::bad_alloc&) {
    return kApNoMemory;
  }
}

}  // namespace

extern "C" {

const char* ap_path(void) { return current_path().name; }
int ap_set_path(const char* name) { return set_path(name) ? kApOk : kApBadType; }
int ap_path_supported(const char* name) { return path_supported(name) ? 1 : 0; }

int ap_set_num_threads(int count, int pin) {
  if (count < 1 || count > 4096) return kApBadShape;
  return guarded([&] { set_num_threads(count, pin != 0); });
}

int ap_num_threads(void) { return num_threads(); }

int64_t ap_matrix_bytes(int format, int64_t n, int64_t k) {
  return is_format(format) ? matrix_bytes(format, n, k) : -1;
}

int ap_interleave_pays(int format, int64_t n, int64_t k) {
  const Path& path = current_path();
  const bool by_tiles = path.tiles != nullptr && path.tiles->takes(format, kApBF16);
  return path.quantizes && !by_tiles && can_interleave(format, n, k) ? 1 : 0;
}

int ap_interleave(const void* src, int format, int64_t n, int64_t k, void* dst) {
  if (!can_interleave(format, n, k)) return kApBadShape;
  return guarded([&] { interleave(static_cast<const uint8_t*>(src), format, n, k, static_cast<uint8_t*>(dst)); });
}

int ap_deinterleave(const void* src, int format, int64_t n, int64_t k, void* dst) {
  if (!can_interleave(format, n, k)) return kApBadShape;
  return guarded([&] { deinterleave(matrix_view(src, format + kApInterleaved, n, k), static_cast<uint8_t*>(dst)); });
}

int ap_dequantize(const void* src, int format, int64_t num_elements, void* dst, int dst_dtype) {
  const BlockSize size = block_size(format);
  if (size.weights == 0 || !is_activation(dst_dtype)) return kApBadType;
  if (num_elements < 0 || num_elements % size.weights != 0) return kApBadShape;
  return guarded([&] { dequantize(src, format, num_elements, dst, dst_dtype); });
}

int ap_linear(const void* x, int x_dtype, int64_t t, int64_t k, const void* weights, int format, int64_t n, void* y,
              int y_dtype) {
  if (!is_activation(x_dtype) || !is_activation(y_dtype) || !is_format(format)) return kApBadType;
  if (t < 0 || n < 1 || k < 1 || matrix_bytes(format, n, k) < 0) return kApBadShape;
  if (t == 0) return kApOk;
  return guarded([&] { linear(x, x_dtype, t, matrix_view(weights, format, n, k), y, y_dtype); });
}

int ap_marlin_pack(const float* rows, int64_t first_row, int64_t num_rows, int64_t n, int64_t k, int format,
                   void* packed) {
  if (!is_marlin(format)) return kApBadType;
  const bool aligned = first_row % kTileRows == 0 && (num_rows % kTileRows == 0 || first_row + num_rows == n);
  if (!aligned || first_row < 0 || num_rows < 1 || first_row + num_rows > n || k < 1) return kApBadShape;
  return guarded([&] { marlin_pack(rows, first_row, num_rows, n, k, format, static_cast<uint8_t*>(packed)); });
}

int ap_experts(const void* x, int x_dtype, int64_t t, int64_t hidden, const int64_t* ids, const float* weights,
               int64_t per_token, int64_t num_experts, int64_t intermediate, const void* gate, int gate_format,
               const void* up, int up_format, const void* down, int down_format, void* out, int out_dtype,
               int64_t* rejected_id) {
  if (!is_activation(x_dtype) || !is_activation(out_dtype)) return kApBadType;
  for (int format : {gate_format, up_format, down_format}) {
    if (!is_format(format)) return kApBadType;
  }
  if (t < 0 || hidden < 1 || intermediate < 1 || per_token < 1 || num_experts < 1) return kApBadShape;
  const int64_t bytes[3] = {matrix_bytes(gate_format, intermediate, hidden),
                            matrix_bytes(up_format, intermediate, hidden),
                            matrix_bytes(down_format, hidden, intermediate)};
  for (int64_t size : bytes) {
    if (size < 0) return kApBadShape;
  }
  for (int64_t i = 0; i < t * per_token; ++i) {
    if (ids[i] < 0 || ids[i] >= num_experts) {
      *rejected_id = ids[i];
      return kApBadExpert;
    }
  }
  if (t == 0) return kApOk;
  return guarded([&] {
    const ExpertStack gates{matrix_view(gate, gate_format, intermediate, hidden), bytes[0]};
    const ExpertStack ups{matrix_view(up, up_format, intermediate, hidden), bytes[1]};
    const ExpertStack downs{matrix_view(down, down_format, hidden, intermediate), bytes[2]};
    experts(x, x_dtype, {ids, weights, t, per_token, num_experts}, gates, ups, downs, out, out_dtype);
  });
}

uint64_t ap_read(const void* data, int64_t num_bytes) {
  std::atomic<uint64_t> sum{0};
  const uint8_t* bytes = static_cast<const uint8_t*>(data);
  parallel_for(num_bytes, int64_t{1} << 20, [&](int64_t begin, int64_t end) {
    sum.fetch_add(current_path().read(bytes + begin, end - begin), std::memory_order_relaxed);
  });
  return sum.load();
}

}  // extern "C"
