#include "buffers.hpp"

#include "thread_pool.hpp"

namespace autoplace {

void Activations::prepare(int64_t t, int64_t k, bool quantized) {
  t_ = t;
  k_ = k;
  quantized_ = quantized;
  rows_.assign(static_cast<size_t>(t), Activation{});
  if (!quantized) return;
  const int64_t padded = round_up(k, kSuperBlock);
  int8_t* q = codes_.get<int8_t>(t * padded);
  const int64_t groups = padded / kGroup;
  float* scales = scales_.get<float>(t * groups * 4);
  int16_t* pairs = pairs_.get<int16_t>(t * groups * 4);
  for (Activation& row : rows_) {
    row.q = q;
    row.d = scales;
    row.sum32 = scales + groups;
    row.sum16 = scales + 2 * groups;
    row.pairs = pairs;
    q += padded;
    scales += 4 * groups;
    pairs += 4 * groups;
  }
}

void Activations::set_rows(const float* x) {
  for (Activation& row : rows_) {
    row.x = x;
    x += k_;
  }
}

void Activations::quantize_range(int64_t row, int64_t begin, int64_t count) {
  const Activation& a = rows_[static_cast<size_t>(row)];
  const bool last = begin + count >= k_;
  const int64_t padded = last ? round_up(k_, kSuperBlock) - begin : count;
  const int64_t group = begin / kGroup;
  const Quantised out = {const_cast<int8_t*>(a.q) + begin, const_cast<float*>(a.d) + group,
                         const_cast<float*>(a.sum32) + group, const_cast<float*>(a.sum16) + 2 * group,
                         const_cast<int16_t*>(a.pairs) + 4 * group};
  current_path().quantize(a.x + begin, count, padded, out);
}

void Activations::load(const void* x, int x_dtype, int64_t t, int64_t k, bool quantized) {
  prepare(t, k, quantized);
  const bool widen = x_dtype == kApBF16;
  float* own = widen ? own_rows() : nullptr;
  set_rows(widen ? own : static_cast<const float*>(x));
  if (!widen && !quantized) return;
  const auto body = [&](int64_t begin, int64_t end) {
    for (int64_t row = begin; row < end; ++row) {
      if (widen) current_path().to_float(static_cast<const uint16_t*>(x) + row * k, k, own + row * k);
      if (quantized) quantize_range(row, 0, k);
    }
  };
  constexpr int64_t kAlone = 4;  // fewer tokens are done before another thread has woken up
  if (t <= kAlone) {
    body(0, t);
  } else {
    parallel_for(t, 4, body);
  }
}

TileScratch& tile_scratch() {
  static thread_local TileScratch scratch;
  return scratch;
}

}  // namespace autoplace
