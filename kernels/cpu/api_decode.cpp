// The C ABI of one decoded token: checks that the parts of a layer fit together.
#include <algorithm>
#include <new>

#include "attention.hpp"
#include "buffers.hpp"
#include "cache_rows.hpp"
#include "feed_forward.hpp"
#include "linear.hpp"
#include "matrices.hpp"
#include "role_times.hpp"
#include "small_ops.hpp"

using namespace autoplace;

namespace {

bool is_activation(int dtype) { return dtype == kApF32 || dtype == kApBF16; }

bool is_norm(const ApNorm& norm, int64_t width) {
  return norm.weight != nullptr && norm.width == width && width > 0 && is_activation(norm.dtype);
}

bool is_norm_or_none(const ApNorm& norm, int64_t width) { return norm.weight == nullptr || is_norm(norm, width); }

bool is_rotation(int64_t dim, int64_t most) { return dim >= 0 && dim % 2 == 0 && dim <= most; }

bool has_queries(const ApMla& a, int64_t width) {
  const int64_t out = a.num_heads * (a.nope + a.rope);
  if (a.q.data != nullptr) return is_matrix(a.q, out, width);
  return is_matrix(a.q_a, a.q_a.n, width) && is_norm(a.q_a_norm, a.q_a.n) && is_matrix(a.q_b, out, a.q_a.n);
}

bool fits(const ApMla& a) {
  const int64_t width = a.input_norm.width, d = a.lora + a.rope;
  if (a.num_heads < 1 || a.lora < 1 || a.nope < 1 || a.v < 1 || !is_rotation(a.rope, a.rope)) return false;
  if (a.keys == nullptr || a.values == nullptr || !is_activation(a.kv_b_dtype)) return false;
  return is_norm(a.input_norm, width) && has_queries(a, width) && is_matrix(a.kv_a, d, width) &&
         is_norm(a.kv_a_norm, a.lora) && is_matrix(a.o, width, a.num_heads * a.v) && is_cache(a.cache, d);
}

bool fits(const ApGqa& a) {
  const int64_t width = a.input_norm.width, d = a.head_dim;
  if (a.num_kv_heads < 1 || d < 1 || a.num_heads % a.num_kv_heads != 0 || a.num_heads < 1) return false;
  const int64_t keys = a.num_kv_heads * d, queries = a.num_heads * d;
  return is_rotation(a.rope, d) && is_norm(a.input_norm, width) && is_norm_or_none(a.q_norm, d) &&
         is_norm_or_none(a.k_norm, d) && is_matrix(a.q, queries, width) && is_matrix(a.k, keys, width) &&
         is_matrix(a.v, keys, width) && is_matrix(a.o, width, queries) && is_cache(a.key_cache, keys) &&
         is_cache(a.value_cache, keys);
}

bool fits(const ApMlp& mlp, int64_t width) {
  const int64_t inner = mlp.gate.n;
  const bool plain = mlp.gate.bias == nullptr && mlp.up.bias == nullptr && mlp.down.bias == nullptr;
  return plain && is_matrix(mlp.gate, inner, width) && is_matrix(mlp.up, inner, width) &&
         is_matrix(mlp.down, width, inner);
}

bool fits(const ApRouter& router) {
  const int64_t experts = router.weight.n, groups = router.num_groups;
  if (experts < 1 || router.top_k < 1 || groups < 1 || experts % groups != 0) return false;
  if (groups == 1) return router.top_k <= experts;
  const int64_t used = router.num_groups_used;
  const bool enough = !router.sigmoid || experts / groups > 1;
  return enough && used >= 1 && used <= groups && router.top_k <= used * (experts / groups);
}

bool fits(const ApFeedForward& f) {
  const int64_t width = f.norm.width;
  if (!is_norm(f.norm, width)) return false;
  if (f.dense.gate.data != nullptr) return fits(f.dense, width);
  const bool shared = f.shared.gate.data == nullptr || fits(f.shared, width);
  const bool gate = f.shared_gate.data == nullptr || is_matrix(f.shared_gate, 1, width);
  return shared && gate && fits(f.router) && is_matrix(f.router.weight, f.router.weight.n, width) &&
         fits(f.experts, width);
}

// out = x + half(norm(x)); x and out of one type, perhaps the same memory.
template <class Half>
int with_residual(const ApNorm& norm, const void* x, int dtype, void* out, const Half& half) {
  static thread_local Buffer sums, inputs, outputs;
  try {
    float* sum = sums.get<float>(norm.width);
    float* input = inputs.get<float>(norm.width);
    float* output = outputs.get<float>(norm.width);
    widen(x, dtype, norm.width, sum);
    {
      const Timed timed(kApNorms);
      rms_norm(norm, sum, input);
    }
    half(input, output);
    add_to(sum, output, norm.width);
    narrow(sum, norm.width, out, dtype);
    return kApOk;
  } catch (const std::bad_alloc&) {
    return kApNoMemory;
  }
}

template <class Layer, class Attention>
int attend(const Layer& layer, const ApCacheRows& cache, const void* x, int dtype, int64_t position, void* out,
           const Attention& attention) {
  if (!is_activation(dtype)) return kApBadType;
  if (!fits(layer) || position < 0 || position >= cache.capacity) return kApBadShape;
  return with_residual(layer.input_norm, x, dtype, out, [&](const float* input, float* output) {
    const Timed timed(kApAttention);
    attention(input, output);
  });
}

}  // namespace

extern "C" {

int ap_mla(const ApMla* layer, const void* x, int dtype, int64_t position, const float* turns, void* out) {
  return attend(*layer, layer->cache, x, dtype, position, out, [&](const float* input, float* output) {
    mla(*layer, input, position, turns, output);
  });
}

int ap_gqa(const ApGqa* layer, const void* x, int dtype, int64_t position, const float* turns, void* out) {
  if (position >= layer->value_cache.capacity) return kApBadShape;
  return attend(*layer, layer->key_cache, x, dtype, position, out, [&](const float* input, float* output) {
    gqa(*layer, input, position, turns, output);
  });
}

int ap_feed_forward(const ApFeedForward* layer, const void* x, int dtype, void* out) {
  if (!is_activation(dtype)) return kApBadType;
  if (!fits(*layer)) return kApBadShape;
  return with_residual(layer->norm, x, dtype, out,
                       [&](const float* input, float* output) { feed_forward(*layer, input, output); });
}

int ap_layers(const ApLayer* layers, int64_t count, const void* x, int dtype, int64_t position, const float* turns,
              void* out) {
  for (int64_t i = 0; i < count; ++i) {
    const ApLayer& layer = layers[i];
    int problem = layer.mla != nullptr ? ap_mla(layer.mla, x, dtype, position, turns, out)
                                       : ap_gqa(layer.gqa, x, dtype, position, turns, out);
    if (problem == kApOk) problem = ap_feed_forward(layer.feed_forward, out, dtype, out);
    if (problem != kApOk) return problem;
    x = out;
  }
  return kApOk;
}

int ap_rms_norm(const ApNorm* norm, const void* x, int dtype, int64_t num_tokens, void* out) {
  static thread_local Buffer buffer;
  if (!is_activation(dtype)) return kApBadType;
  if (!is_norm(*norm, norm->width) || num_tokens < 0) return kApBadShape;
  try {
    const int64_t row_bytes = norm->width * (dtype == kApBF16 ? 2 : 4);
    float* row = buffer.get<float>(norm->width);
    for (int64_t t = 0; t < num_tokens; ++t) {
      widen(static_cast<const uint8_t*>(x) + t * row_bytes, dtype, norm->width, row);
      rms_norm(*norm, row, row);
      narrow(row, norm->width, static_cast<uint8_t*>(out) + t * row_bytes, dtype);
    }
    return kApOk;
  } catch (const std::bad_alloc&) {
    return kApNoMemory;
  }
}

int ap_choose_experts(const ApRouter* router, const float* scores, int64_t* ids, float* weights) {
  if (!fits(*router)) return kApBadShape;
  try {
    choose_experts(*router, scores, ids, weights);
    return kApOk;
  } catch (const std::bad_alloc&) {
    return kApNoMemory;
  }
}

void ap_time_roles(int on) { role_times() = {on != 0, {}}; }

void ap_role_times(double seconds[kApRoles]) { std::copy_n(role_times().seconds, kApRoles, seconds); }

}  // extern "C"
