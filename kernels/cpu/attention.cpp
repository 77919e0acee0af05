// Softmax over all positions in three steps, each over all threads:
//   1. queries are made: turned, and with latent attention multiplied by the key half of kv_b;
//   2. for each 8 heads that share keys and each 64 positions: a partial sum of values with its own largest
//      score; the cut does not depend on the number of threads, so neither does the result;
//   3. for each head: the partial sums are joined, and with latent attention multiplied by the value half.
#include "attention.hpp"

#include <algorithm>
#include <cmath>

#include "buffers.hpp"
#include "cache_rows.hpp"
#include "linear.hpp"
#include "matrices.hpp"
#include "small_ops.hpp"
#include "thread_pool.hpp"

namespace autoplace {
namespace {

constexpr int64_t kPositions = 64;
constexpr int64_t kHeads = 8;

// Of one head and one run of positions: Σ e^(score - most) · value, Σ e^(score - most).
struct Partial {
  float most, sum;
};

class Softmax {
 public:
  // `queries` [H, d] are scaled already.
  Softmax(const Attended& what, const float* queries) : what_(what), queries_(queries) {
    static thread_local Buffer partials, sums;
    runs_ = (what.length + kPositions - 1) / kPositions;
    const int64_t count = what.groups * what.per_group * runs_;
    partials_ = partials.get<Partial>(count);
    sums_ = sums.get<float>(count * what.v);
  }

  void compute() {
    const int64_t tiles = (what_.per_group + kHeads - 1) / kHeads;
    parallel_for(what_.groups * tiles * runs_, 1, [&](int64_t begin, int64_t end) {
      for (int64_t item = begin; item < end; ++item) {
        const int64_t group = item / (tiles * runs_), tile = item / runs_ % tiles;
        add_run(group, tile * kHeads, item % runs_);
      }
    });
  }

  // out [v] = attention of one head.
  void join(int64_t head, float* out) const {
    const Partial* parts = partials_ + head * runs_;
    const float* sums = sums_ + head * runs_ * what_.v;
    float most = parts[0].most, total = 0.0f;
    for (int64_t run = 1; run < runs_; ++run) most = std::max(most, parts[run].most);
    std::fill_n(out, what_.v, 0.0f);
    for (int64_t run = 0; run < runs_; ++run) {
      const float weight = std::exp(parts[run].most - most);
      total += weight * parts[run].sum;
      for (int64_t i = 0; i < what_.v; ++i) out[i] += weight * sums[run * what_.v + i];
    }
    for (int64_t i = 0; i < what_.v; ++i) out[i] /= total;
  }

 private:
  void add_run(int64_t group, int64_t first, int64_t run) {
    const AttentionLoops& loops = current_path().attention;
    const int64_t begin = run * kPositions, count = std::min(kPositions, what_.length - begin);
    const int64_t heads = std::min(kHeads, what_.per_group - first), head = group * what_.per_group + first;
    float* buffer = tile_scratch().other.get<float>(kPositions * std::max(what_.d, what_.v));
    float scores[kHeads * kPositions];
    int64_t stride;
    const float* rows = read_rows(what_.keys, begin, count, group * what_.d, what_.d, buffer, &stride);
    loops.scores(queries_ + head * what_.d, heads, what_.d, rows, count, stride, scores, kPositions);
    for (int64_t h = 0; h < heads; ++h) {
      float* own = scores + h * kPositions;
      const float most = *std::max_element(own, own + count);
      partials_[(head + h) * runs_ + run] = {most, loops.exponentials(own, count, most)};
    }
    if (!what_.values_are_keys) {
      rows = read_rows(what_.values, begin, count, group * what_.v, what_.v, buffer, &stride);
    }
    float* sums = sums_ + (head * runs_ + run) * what_.v;
    const int64_t sum_stride = runs_ * what_.v;
    for (int64_t h = 0; h < heads; ++h) std::fill_n(sums + h * sum_stride, what_.v, 0.0f);
    loops.mix(scores, heads, kPositions, rows, count, stride, what_.v, sums, sum_stride);
  }

  const Attended& what_;
  const float* queries_;
  int64_t runs_;
  Partial* partials_;  // [H, runs]
  float* sums_;        // [H, runs, v]
};

// Memory of the calling thread for one layer's vectors.
struct Vectors {
  Buffer query, low, row, value_row, absorbed, latent, heads;
};

Vectors& vectors() {
  static thread_local Vectors own;
  return own;
}

// q · keys for the keys [nope, lora] of one head: [lora].
void absorb(const ApMla& layer, int64_t head, const float* q, float* out) {
  const AttentionLoops& loops = current_path().attention;
  const int64_t first = head * layer.nope * layer.lora;
  std::fill_n(out, layer.lora, 0.0f);
  if (layer.kv_b_dtype == kApBF16) {
    loops.mix_bfloats(q, static_cast<const uint16_t*>(layer.keys) + first, layer.nope, layer.lora, out);
  } else {
    const float* keys = static_cast<const float*>(layer.keys) + first;
    loops.mix(q, 1, layer.nope, keys, layer.nope, layer.lora, layer.lora, out, layer.lora);
  }
}

// All queries [H, lora + rope], turned, absorbed and scaled, of q [H, nope + rope].
void make_queries(const ApMla& layer, float* q, const float* turns, float* out) {
  const int64_t width = layer.nope + layer.rope, d = layer.lora + layer.rope;
  parallel_for(layer.num_heads, 1, [&](int64_t begin, int64_t end) {
    for (int64_t head = begin; head < end; ++head) {
      float *own = q + head * width, *query = out + head * d;
      absorb(layer, head, own, query);
      std::copy_n(own + layer.nope, layer.rope, query + layer.lora);
      rotate(query + layer.lora, layer.rope, turns, layer.interleaved != 0);
      for (int64_t i = 0; i < d; ++i) query[i] *= layer.scale;
    }
  });
}

float* queries_of(const ApMla& layer, const float* x) {
  Vectors& own = vectors();
  float* q = own.query.get<float>(layer.num_heads * (layer.nope + layer.rope));
  if (layer.q.data != nullptr) {
    multiply(layer.q, x, q);
    return q;
  }
  float* low = own.low.get<float>(layer.q_a.n);
  multiply(layer.q_a, x, low);
  rms_norm(layer.q_a_norm, low, low);
  multiply(layer.q_b, low, q);
  return q;
}

void write_latent(const ApMla& layer, const float* x, int64_t position, const float* turns) {
  float* row = vectors().row.get<float>(layer.lora + layer.rope);
  multiply(layer.kv_a, x, row);
  rms_norm(layer.kv_a_norm, row, row);
  rotate(row + layer.lora, layer.rope, turns, layer.interleaved != 0);
  write_row(layer.cache, position, row);
}

// heads [H, v] = values [v, lora] of each head · its joined latent.
void join_latents(const ApMla& layer, const Softmax& softmax, float* heads) {
  const int64_t bytes = matrix_bytes(layer.kv_b_dtype, layer.v, layer.lora);
  float* latents = vectors().latent.get<float>(layer.num_heads * layer.lora);
  parallel_for(layer.num_heads, 1, [&](int64_t begin, int64_t end) {
    for (int64_t head = begin; head < end; ++head) {
      float* latent = latents + head * layer.lora;
      softmax.join(head, latent);
      const uint8_t* values = static_cast<const uint8_t*>(layer.values) + head * bytes;
      const Matrix matrix = matrix_view(values, layer.kv_b_dtype, layer.v, layer.lora);
      const Activation activation{latent, nullptr, nullptr, nullptr, nullptr, nullptr};
      current_path().gemv(matrix, 0, layer.v, &activation, 1, heads + head * layer.v, layer.v);
    }
  });
}

// Turns the first elements of each head [d], normed first where the family does.
void turn_heads(const ApGqa& layer, const ApNorm& norm, float* heads, int64_t count, const float* turns) {
  for (int64_t h = 0; h < count; ++h) {
    float* head = heads + h * layer.head_dim;
    if (norm.weight != nullptr) rms_norm(norm, head, head);
    rotate(head, layer.rope, turns, layer.interleaved != 0);
  }
}

}  // namespace

void mla(const ApMla& layer, const float* x, int64_t position, const float* turns, float* out) {
  Vectors& own = vectors();
  float* q = queries_of(layer, x);
  write_latent(layer, x, position, turns);
  const int64_t d = layer.lora + layer.rope;
  float* queries = own.absorbed.get<float>(layer.num_heads * d);
  make_queries(layer, q, turns, queries);
  const Attended what{layer.cache, layer.cache, position + 1, 1, layer.num_heads, d, layer.lora, true};
  Softmax softmax(what, queries);
  softmax.compute();
  float* heads = own.heads.get<float>(layer.num_heads * layer.v);
  join_latents(layer, softmax, heads);
  multiply(layer.o, heads, out);
}

void gqa(const ApGqa& layer, const float* x, int64_t position, const float* turns, float* out) {
  Vectors& own = vectors();
  const int64_t d = layer.head_dim;
  float* q = own.query.get<float>(layer.num_heads * d);
  float* k = own.row.get<float>(layer.num_kv_heads * d);
  float* v = own.value_row.get<float>(layer.num_kv_heads * d);
  multiply(layer.q, x, q);
  multiply(layer.k, x, k);
  multiply(layer.v, x, v);
  turn_heads(layer, layer.q_norm, q, layer.num_heads, turns);
  turn_heads(layer, layer.k_norm, k, layer.num_kv_heads, turns);
  write_row(layer.key_cache, position, k);
  write_row(layer.value_cache, position, v);
  for (int64_t i = 0; i < layer.num_heads * d; ++i) q[i] *= layer.scale;
  const int64_t per_group = layer.num_heads / layer.num_kv_heads;
  const Attended what{layer.key_cache, layer.value_cache, position + 1, layer.num_kv_heads, per_group, d, d, false};
  Softmax softmax(what, q);
  softmax.compute();
  float* heads = own.heads.get<float>(layer.num_heads * d);
  for (int64_t head = 0; head < layer.num_heads; ++head) softmax.join(head, heads + head * d);
  multiply(layer.o, heads, out);
}

}  // namespace autoplace
