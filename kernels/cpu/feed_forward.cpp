#include "feed_forward.hpp"

#include <cmath>

#include "buffers.hpp"
#include "experts.hpp"
#include "linear.hpp"
#include "matrices.hpp"
#include "role_times.hpp"
#include "small_ops.hpp"

namespace autoplace {
namespace {

ExpertStack stack_of(const ApMatrix& w) {
  return {matrix_view(w.data, w.format, w.n, w.k), matrix_bytes(w.format, w.n, w.k)};
}

void run_experts(const ApMlp& mlp, const float* x, const Routing& routing, float* out) {
  experts(x, kApF32, routing, stack_of(mlp.gate), stack_of(mlp.up), stack_of(mlp.down), out, kApF32);
}

// A single MLP is one expert that every token chooses.
void run_mlp(const ApMlp& mlp, const float* x, float* out) {
  const int64_t id = 0;
  const float weight = 1.0f;
  run_experts(mlp, x, {&id, &weight, 1, 1, 1}, out);
}

struct Vectors {
  Buffer scores, ids, weights, shared;
};

void add_shared(const ApFeedForward& layer, const float* x, Buffer& buffer, float* out) {
  const int64_t width = layer.shared.down.n;
  float* shared = buffer.get<float>(width);
  run_mlp(layer.shared, x, shared);
  if (layer.shared_gate.data != nullptr) {
    float score;
    multiply(layer.shared_gate, x, &score);
    const float share = 1.0f / (1.0f + std::exp(-score));
    for (int64_t i = 0; i < width; ++i) shared[i] *= share;
  }
  add_to(out, shared, width);
}

}  // namespace

void feed_forward(const ApFeedForward& layer, const float* x, float* out) {
  static thread_local Vectors own;
  if (layer.dense.gate.data != nullptr) {
    const Timed timed(kApDense);
    run_mlp(layer.dense, x, out);
    return;
  }
  const ApRouter& router = layer.router;
  int64_t* ids = own.ids.get<int64_t>(router.top_k);
  float* weights = own.weights.get<float>(router.top_k);
  {
    const Timed timed(kApRouter);
    float* scores = own.scores.get<float>(router.weight.n);
    multiply(router.weight, x, scores);
    choose_experts(router, scores, ids, weights);
  }
  {
    const Timed timed(kApExperts);
    run_experts(layer.experts, x, {ids, weights, 1, router.top_k, router.weight.n}, out);
  }
  if (layer.shared.gate.data != nullptr) {
    const Timed timed(kApShared);
    add_shared(layer, x, own.shared, out);
  }
}

}  // namespace autoplace
