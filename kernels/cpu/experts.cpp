// Two passes over the experts in use, each split finely over all threads:
//   1. for each expert and some rows of I: h = silu(gate · x) · (up · x), quantised where it is computed;
//   2. for some rows of H: out = Σ over experts of weight · (down · h), so that no two threads add to
//      the same element and the order of the sum never changes.
#include "experts.hpp"

#include <algorithm>
#include <vector>

#include "buffers.hpp"
#include "thread_pool.hpp"
#include "tiles.hpp"

namespace autoplace {
namespace {

constexpr int64_t kMostRows = 128;  // of a matrix at a time: long streams for the memory at batch 1
constexpr int64_t kHead = 4096;     // bytes asked for before a matrix is begun

// Rows a thread takes at a time, a multiple of `least` and at most 128: enough pieces for all threads.
int64_t rows_at_a_time(int64_t total_rows, int64_t num_tokens, int64_t least) {
  if (num_tokens > kMaxGemvTokens) return least;
  const int64_t fair = total_rows / (8 * num_threads());
  return std::max(least, std::min(fair, kMostRows) / least * least);
}

// Asks for the first bytes of rows that come next, while others are being multiplied.
void prefetch_rows(const Matrix& w, int64_t first) {
  const uint8_t* rows = w.row(first);
  if (is_marlin(w.format)) rows = w.data + first / kTileRows * marlin_shape(w.format, w.n, w.k).tile_bytes();
  for (int64_t i = 0; i < kHead; i += 64) __builtin_prefetch(rows + i, 0, 2);
}

// Pairs of token and expert, sorted by expert: pairs [begin, end) belong to `expert`.
struct Group {
  int64_t expert, begin, end;
};

struct Plan {
  std::vector<Group> groups;
  std::vector<int64_t> token;  // of each pair
  std::vector<float> weight;
};

Plan plan_by_expert(const Routing& routing) {
  const int64_t num_pairs = routing.num_tokens * routing.per_token;
  std::vector<int64_t> start(static_cast<size_t>(routing.num_experts + 1), 0);
  for (int64_t i = 0; i < num_pairs; ++i) ++start[static_cast<size_t>(routing.ids[i] + 1)];
  Plan plan;
  for (int64_t e = 0; e < routing.num_experts; ++e) {
    const int64_t begin = start[static_cast<size_t>(e)], count = start[static_cast<size_t>(e + 1)];
    start[static_cast<size_t>(e + 1)] = begin + count;
    if (count > 0) plan.groups.push_back({e, begin, begin + count});
  }
  plan.token.resize(static_cast<size_t>(num_pairs));
  plan.weight.resize(static_cast<size_t>(num_pairs));
  for (int64_t i = 0; i < num_pairs; ++i) {
    const int64_t pair = start[static_cast<size_t>(routing.ids[i])]++;
    plan.token[static_cast<size_t>(pair)] = i / routing.per_token;
    plan.weight[static_cast<size_t>(pair)] = routing.weights[i];
  }
  return plan;
}

// out[i * stride + r] = rows [first, first + num_rows) of w times activation i; stride is at least 16 and
// `out` has room for num_rows rounded up to 16 in each row.
void multiply(const Matrix& w, int64_t first, int64_t num_rows, const Activation* const* x, int64_t t, float* out,
              int64_t stride) {
  const Path& path = current_path();
  if (t <= kMaxGemvTokens) {
    Activation few[kMaxGemvTokens];
    for (int64_t i = 0; i < t; ++i) few[i] = *x[i];
    path.gemv(w, first, num_rows, few, t, out, stride);
    return;
  }
  TileScratch& scratch = tile_scratch();
  float* tile_out = scratch.out.get<float>(t * kTileRows);
  for (int64_t done = 0; done < num_rows; done += kTileRows) {
    const int64_t rows = std::min(kTileRows, num_rows - done);
    path.gemm(w, first + done, rows, x, t, tile_out, scratch.tile.get<uint8_t>(kScratchBytes));
    for (int64_t i = 0; i < t; ++i) std::copy_n(tile_out + i * kTileRows, rows, out + i * stride + done);
  }
}

class ExpertsCall {
 public:
  ExpertsCall(const Activations& x, Activations& hidden, const Plan& plan, const ExpertStack& gate,
              const ExpertStack& up, const ExpertStack& down)
      : x_(x), hidden_(hidden), plan_(plan), gate_(gate), up_(up), down_(down) {
    const size_t num_pairs = plan.token.size();
    for (size_t pair = 0; pair < num_pairs; ++pair) {
      inputs_.push_back(&x[plan.token[pair]]);
      hidden_rows_.push_back(&hidden[static_cast<int64_t>(pair)]);
    }
  }

  void compute_hidden(float* h, bool quantize) {
    const int64_t width = gate_.first.n;
    const int64_t num_groups = static_cast<int64_t>(plan_.groups.size());
    const int64_t step = rows_at_a_time(num_groups * width, x_.count(), kGroup);
    const int64_t chunks = (width + step - 1) / step;
    parallel_for(num_groups * chunks, 1, [&](int64_t begin, int64_t end) {
      for (int64_t item = begin; item < end; ++item) {
        const int64_t first = item % chunks * step;
        hidden_chunk(plan_.groups[static_cast<size_t>(item / chunks)], first, std::min(step, width - first), h, quantize);
      }
    });
  }

  // `out` is [T, H] float32.
  void combine(float* out, int64_t num_tokens) {
    const int64_t width = down_.first.n;
    parallel_for(width, rows_at_a_time(width, num_tokens, kTileRows), [&](int64_t begin, int64_t end) {
      for (int64_t t = 0; t < num_tokens; ++t) std::fill(out + t * width + begin, out + t * width + end, 0.0f);
      const size_t last = plan_.groups.size() - 1;
      for (size_t g = 0; g <= last; ++g) {
        if (g < last) prefetch_rows(down_[plan_.groups[g + 1].expert], begin);
        add_expert(plan_.groups[g], begin, end - begin, out);
      }
    });
  }

 private:
  void hidden_chunk(const Group& group, int64_t first, int64_t rows, float* h, bool quantize) {
    const int64_t width = gate_.first.n, stride = round_up(rows, kTileRows);
    const int64_t t = group.end - group.begin;
    float* gate = tile_scratch().other.get<float>(2 * t * stride);
    float* up = gate + t * stride;
    const Activation* const* inputs = inputs_.data() + group.begin;
    prefetch_rows(up_[group.expert], first);
    multiply(gate_[group.expert], first, rows, inputs, t, gate, stride);
    multiply(up_[group.expert], first, rows, inputs, t, up, stride);
    for (int64_t i = 0; i < t; ++i) {
      float* row = gate + i * stride;
      current_path().swiglu(row, up + i * stride, rows);
      std::copy_n(row, rows, h + (group.begin + i) * width + first);
      if (quantize) hidden_.quantize_range(group.begin + i, first, rows);
    }
  }

  void add_expert(const Group& group, int64_t first, int64_t rows, float* out) {
    const int64_t width = down_.first.n, t = group.end - group.begin;
    const int64_t stride = round_up(rows, kTileRows);
    float* values = tile_scratch().other.get<float>(t * stride);
    multiply(down_[group.expert], first, rows, hidden_rows_.data() + group.begin, t, values, stride);
    for (int64_t i = 0; i < t; ++i) {
      const size_t pair = static_cast<size_t>(group.begin + i);
      float* sum = out + plan_.token[pair] * width + first;
      for (int64_t r = 0; r < rows; ++r) sum[r] += plan_.weight[pair] * values[i * stride + r];
    }
  }

  const Activations& x_;
  Activations& hidden_;
  const Plan& plan_;
  const ExpertStack &gate_, &up_, &down_;
  std::vector<const Activation*> inputs_, hidden_rows_;
};

}  // namespace

void experts(const void* x, int x_dtype, const Routing& routing, const ExpertStack& gate, const ExpertStack& up,
             const ExpertStack& down, void* out, int out_dtype) {
  const TileKernels* tiles = current_path().tiles;
  if (tiles != nullptr && tile_experts_pay(*tiles, x_dtype, routing, gate, up, down)) {
    return tile_experts(*tiles, x, x_dtype, routing, gate, up, down, out, out_dtype);
  }
  static thread_local Activations inputs, hidden;
  static thread_local Buffer sums;
  const bool quantizes = current_path().quantizes;
  const bool quantize_x = quantizes && !(is_float(gate.first.format) && is_float(up.first.format));
  const bool quantize_h = quantizes && !is_float(down.first.format);
  const int64_t t = routing.num_tokens, width = down.first.n;
  inputs.load(x, x_dtype, t, gate.first.k, quantize_x);
  const Plan plan = plan_by_expert(routing);
  hidden.prepare(t * routing.per_token, gate.first.n, quantize_h);
  float* h = hidden.own_rows();
  hidden.set_rows(h);
  ExpertsCall call(inputs, hidden, plan, gate, up, down);
  call.compute_hidden(h, quantize_h);
  float* result = out_dtype == kApF32 ? static_cast<float*>(out) : sums.get<float>(t * width);
  call.combine(result, t);
  if (out_dtype == kApBF16) current_path().to_bf16(result, t * width, static_cast<uint16_t*>(out));
}

}  // namespace autoplace
