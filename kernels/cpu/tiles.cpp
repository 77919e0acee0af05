// Work is split by rows of weights: each is decoded once for all tokens, up to kMostTokens of them. The order
// of every sum is that of K, then of experts, whatever the split.
#include "tiles.hpp"

#include <algorithm>
#include <vector>

#include "buffers.hpp"
#include "thread_pool.hpp"

namespace autoplace {
namespace {

constexpr int64_t kMostTokens = 1024;                // a piece of their panels fits a second cache of 2 MiB
constexpr int64_t kMostSums = int64_t{1} << 17;      // floats of sums that a thread holds at a time
constexpr int64_t kMostRows = 256;
constexpr int64_t kMinTokensPerExpert = 4;

int64_t blocks_of(int64_t tokens) { return (tokens + kPanelTokens - 1) / kPanelTokens; }

// A multiple of 32 rows: few enough for the sums and for every thread to find some, else many, so that
// panels are read from the second cache rather than from memory.
int64_t rows_at_once(int64_t num_rows, int64_t num_blocks, int64_t num_sums) {
  const int64_t blocks = std::min(num_blocks, blocks_of(kMostTokens));
  const int64_t fit = kMostSums / (num_sums * blocks * kPanelTokens);
  const int64_t fair = num_rows / (3 * num_threads());
  return std::max(kRowStep, std::min({fit, fair, kMostRows}) / kRowStep * kRowStep);
}

int64_t terms_for(int format, int x_dtype) { return is_float(format) && x_dtype == kApF32 ? 2 : 1; }

Panels make_panels(Buffer& buffer, int64_t k, int64_t terms, int64_t num_blocks) {
  Panels panels{nullptr, k, terms};
  panels.data = buffer.get<uint16_t>(num_blocks * panels.block_size());
  return panels;
}

// Calls body(first block, number of blocks) for batches of at most kMostTokens.
template <class Body>
void in_batches(int64_t num_blocks, Body&& body) {
  const int64_t most = blocks_of(kMostTokens);
  for (int64_t done = 0; done < num_blocks; done += most) body(done, std::min(most, num_blocks - done));
}

int64_t sums_size(int64_t num_rows, int64_t num_blocks) {
  return round_up(num_rows, kRowStep) * std::min(num_blocks, blocks_of(kMostTokens)) * kPanelTokens;
}

// Pairs of token and expert, sorted by expert; each group begins a block of its own.
struct Group {
  int64_t expert, begin, end, block;

  int64_t num_blocks() const { return blocks_of(end - begin); }
};

struct Plan {
  std::vector<Group> groups;
  std::vector<int64_t> token;  // of each pair
  std::vector<float> weight;
  std::vector<int64_t> group_of_block;
};

std::vector<int64_t> tokens_of_experts(const Routing& routing) {
  std::vector<int64_t> counts(static_cast<size_t>(routing.num_experts), 0);
  for (int64_t i = 0; i < routing.num_tokens * routing.per_token; ++i) ++counts[static_cast<size_t>(routing.ids[i])];
  return counts;
}

Plan plan_of(const Routing& routing) {
  const size_t num_pairs = static_cast<size_t>(routing.num_tokens * routing.per_token);
  std::vector<int64_t> next = tokens_of_experts(routing);
  Plan plan{{}, std::vector<int64_t>(num_pairs), std::vector<float>(num_pairs), {}};
  int64_t pair = 0, block = 0;
  for (int64_t e = 0; e < routing.num_experts; ++e) {
    const int64_t count = next[static_cast<size_t>(e)];
    next[static_cast<size_t>(e)] = pair;
    if (count == 0) continue;
    plan.group_of_block.insert(plan.group_of_block.end(), static_cast<size_t>(blocks_of(count)),
                               static_cast<int64_t>(plan.groups.size()));
    plan.groups.push_back({e, pair, pair + count, block});
    pair += count;
    block += blocks_of(count);
  }
  for (size_t i = 0; i < num_pairs; ++i) {
    const size_t at = static_cast<size_t>(next[static_cast<size_t>(routing.ids[i])]++);
    plan.token[at] = static_cast<int64_t>(i) / routing.per_token;
    plan.weight[at] = routing.weights[i];
  }
  return plan;
}

class TileExperts {
 public:
  TileExperts(const TileKernels& tiles, const Plan& plan, const ExpertStack& gate, const ExpertStack& up,
              const ExpertStack& down)
      : tiles_(tiles), plan_(plan), gate_(gate), up_(up), down_(down) {}

  void pack(const void* x, int x_dtype, const Panels& panels) {
    const int64_t row_bytes = panels.k * (x_dtype == kApBF16 ? 2 : 4);
    parallel_for(num_blocks(), 1, [&](int64_t begin, int64_t end) {
      for (int64_t block = begin; block < end; ++block) {
        const Group& group = plan_.groups[static_cast<size_t>(plan_.group_of_block[static_cast<size_t>(block)])];
        const int64_t pair = group.begin + (block - group.block) * kPanelTokens;
        const int64_t t = std::min(kPanelTokens, group.end - pair);
        const void* rows[kPanelTokens];
        for (int64_t i = 0; i < t; ++i) {
          rows[i] = static_cast<const uint8_t*>(x) + plan_.token[static_cast<size_t>(pair + i)] * row_bytes;
        }
        tiles_.pack(rows, x_dtype, t, panels, block);
      }
    });
  }

  void compute_hidden(const Panels& x, const Panels& hidden) {
    const int64_t width = gate_.first.n, most = most_blocks();
    const int64_t chunk = rows_at_once(width * static_cast<int64_t>(plan_.groups.size()), most, 2);
    const int64_t chunks = (width + chunk - 1) / chunk;
    parallel_for(static_cast<int64_t>(plan_.groups.size()) * chunks, 1, [&](int64_t begin, int64_t end) {
      for (int64_t item = begin; item < end; ++item) {
        const int64_t first = item % chunks * chunk, rows = std::min(chunk, width - first);
        hidden_rows(plan_.groups[static_cast<size_t>(item / chunks)], first, rows, x, hidden);
      }
    });
  }

  // out [T, H] of the wanted type; `sums` is [T, H] float32, and `out` itself where that is wanted.
  void combine(const Panels& hidden, int64_t num_tokens, float* sums, void* out, int out_dtype) {
    const int64_t width = down_.first.n;
    parallel_for(width, rows_at_once(width, most_blocks(), 1), [&](int64_t begin, int64_t end) {
      for (int64_t t = 0; t < num_tokens; ++t) std::fill(sums + t * width + begin, sums + t * width + end, 0.0f);
      for (const Group& group : plan_.groups) add_expert(group, begin, end - begin, hidden, sums);
      if (out_dtype != kApBF16) return;
      for (int64_t t = 0; t < num_tokens; ++t) {
        const int64_t at = t * width + begin;
        current_path().to_bf16(sums + at, end - begin, static_cast<uint16_t*>(out) + at);
      }
    });
  }

  int64_t num_blocks() const { return static_cast<int64_t>(plan_.group_of_block.size()); }

 private:
  int64_t most_blocks() const {
    int64_t most = 1;
    for (const Group& group : plan_.groups) most = std::max(most, group.num_blocks());
    return most;
  }

  void hidden_rows(const Group& group, int64_t first, int64_t rows, const Panels& x, const Panels& hidden) {
    const int64_t size = sums_size(rows, group.num_blocks());
    float* gate = tile_scratch().other.get<float>(2 * size);
    in_batches(group.num_blocks(), [&](int64_t begin, int64_t count) {
      const int64_t block = group.block + begin;
      tiles_.multiply(gate_[group.expert], first, rows, x, block, count, gate);
      tiles_.multiply(up_[group.expert], first, rows, x, block, count, gate + size);
      tiles_.gate(gate, gate + size, first, rows, hidden, block, count);
    });
  }

  void add_expert(const Group& group, int64_t first, int64_t rows, const Panels& hidden, float* out) {
    float* sums = tile_scratch().other.get<float>(sums_size(rows, group.num_blocks()));
    in_batches(group.num_blocks(), [&](int64_t begin, int64_t count) {
      tiles_.multiply(down_[group.expert], first, rows, hidden, group.block + begin, count, sums);
      for (int64_t i = 0; i < count; ++i) {
        add_block(group, begin + i, first, rows, sums + i * kSumsTile, count * kSumsTile, out);
      }
    });
  }

  void add_block(const Group& group, int64_t block, int64_t first, int64_t rows, const float* sums, int64_t stride,
                 float* out) {
    const int64_t pair = group.begin + block * kPanelTokens, t = std::min(kPanelTokens, group.end - pair);
    float* targets[kPanelTokens];
    for (int64_t i = 0; i < t; ++i) {
      targets[i] = out + plan_.token[static_cast<size_t>(pair + i)] * down_.first.n + first;
    }
    for (int64_t done = 0; done < rows; done += kTileRows, sums += stride) {
      tiles_.add(sums, std::min(kTileRows, rows - done), t, plan_.weight.data() + pair, targets);
      for (int64_t i = 0; i < t; ++i) targets[i] += kTileRows;
    }
  }

  const TileKernels& tiles_;
  const Plan& plan_;
  const ExpertStack &gate_, &up_, &down_;
};

}  // namespace

bool tile_experts_pay(const TileKernels& tiles, int x_dtype, const Routing& routing, const ExpertStack& gate,
                      const ExpertStack& up, const ExpertStack& down) {
  const bool taken = tiles.takes(gate.first.format, x_dtype) && tiles.takes(up.first.format, x_dtype) &&
                     tiles.takes(down.first.format, kApBF16);
  if (!taken || routing.num_tokens <= kMaxGemvTokens) return false;
  int64_t in_use = 0;
  for (int64_t count : tokens_of_experts(routing)) in_use += count > 0;
  return routing.num_tokens * routing.per_token >= kMinTokensPerExpert * in_use;
}

void tile_linear(const TileKernels& tiles, const void* x, int x_dtype, int64_t t, const Matrix& w, void* y,
                 int y_dtype) {
  static thread_local Buffer buffer;
  const int64_t num_blocks = blocks_of(t), x_bytes = w.k * (x_dtype == kApBF16 ? 2 : 4);
  const Panels panels = make_panels(buffer, w.k, terms_for(w.format, x_dtype), num_blocks);
  parallel_for(num_blocks, 1, [&](int64_t begin, int64_t end) {
    for (int64_t block = begin; block < end; ++block) {
      const void* rows[kPanelTokens];
      const int64_t first = block * kPanelTokens, count = std::min(kPanelTokens, t - first);
      for (int64_t i = 0; i < count; ++i) rows[i] = static_cast<const uint8_t*>(x) + (first + i) * x_bytes;
      tiles.pack(rows, x_dtype, count, panels, block);
    }
  });
  parallel_for(w.n, rows_at_once(w.n, num_blocks, 1), [&](int64_t begin, int64_t end) {
    float* sums = tile_scratch().out.get<float>(sums_size(end - begin, num_blocks));
    const int64_t y_bytes = y_dtype == kApBF16 ? 2 : 4;
    in_batches(num_blocks, [&](int64_t block, int64_t count) {
      tiles.multiply(w, begin, end - begin, panels, block, count, sums);
      for (int64_t i = 0; i < count; ++i) {
        const int64_t token = (block + i) * kPanelTokens;
        for (int64_t done = 0; done < end - begin; done += kTileRows) {
          tiles.store(sums + (done / kTileRows * count + i) * kSumsTile, std::min(kTileRows, end - begin - done),
                      std::min(kPanelTokens, t - token),
                      static_cast<uint8_t*>(y) + (token * w.n + begin + done) * y_bytes, y_dtype, w.n);
        }
      }
    });
  });
}

void tile_experts(const TileKernels& tiles, const void* x, int x_dtype, const Routing& routing,
                  const ExpertStack& gate, const ExpertStack& up, const ExpertStack& down, void* out, int out_dtype) {
  static thread_local Buffer x_buffer, hidden_buffer, sums_buffer;
  const Plan plan = plan_of(routing);
  TileExperts call(tiles, plan, gate, up, down);
  const int64_t x_terms = std::max(terms_for(gate.first.format, x_dtype), terms_for(up.first.format, x_dtype));
  const Panels inputs = make_panels(x_buffer, gate.first.k, x_terms, call.num_blocks());
  const Panels hidden =
      make_panels(hidden_buffer, gate.first.n, terms_for(down.first.format, kApF32), call.num_blocks());
  call.pack(x, x_dtype, inputs);
  call.compute_hidden(inputs, hidden);
  const int64_t t = routing.num_tokens;
  float* sums = out_dtype == kApF32 ? static_cast<float*>(out) : sums_buffer.get<float>(t * down.first.n);
  call.combine(hidden, t, sums, out, out_dtype);
}

}  // namespace autoplace
