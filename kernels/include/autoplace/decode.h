// The C ABI of one decoded token: what lies between the big products, half a layer to a call.
//
// D model width, H heads, E experts. All pointers stay the caller's; a struct describes one layer and is
// read at every call. Activations cross as float32 or bf16 and are float32 inside.
#ifndef AUTOPLACE_DECODE_H_
#define AUTOPLACE_DECODE_H_

#include "autoplace/kernels.h"

#ifdef __cplusplus
extern "C" {
#endif
#pragma GCC visibility push(default)

// y = W · x + bias for W [n, k] in any format of ap_linear. No matrix: `data` is null.
typedef struct {
  const void* data;
  const void* bias;  // [n] float32 or bf16, or null
  int64_t n, k;
  int32_t format, bias_dtype;
} ApMatrix;

// x / rms(x) · weight over `width` elements. No norm: `weight` is null.
typedef struct {
  const void* weight;
  int64_t width;
  int32_t dtype;  // float32 or bf16
  float eps;
} ApNorm;

// [capacity, width] rows of the cache by position: float32, half, bf16, or q8_0 as int8 [capacity, width]
// with half scales [capacity, width / 32].
typedef struct {
  void* values;
  void* scales;
  int64_t width, capacity;
  int32_t format;  // GGML's number: 0, 1, 30 or 8
} ApCacheRows;

// DeepSeek's latent attention. q, or q_a with q_a_norm and q_b. kv_b is apart: keys [H, nope, lora] and
// values [H, v, lora], float32 or bf16. A row of the cache is the normed latent and the turned key.
typedef struct {
  ApNorm input_norm, q_a_norm, kv_a_norm;
  ApMatrix q, q_a, q_b, kv_a, o;
  const void *keys, *values;
  ApCacheRows cache;
  int64_t num_heads, lora, nope, rope, v;
  int32_t kv_b_dtype, interleaved;
  float scale;
} ApMla;

// Grouped-query attention; the norms of q and k are over one head. The first `rope` elements are turned.
typedef struct {
  ApNorm input_norm, q_norm, k_norm;
  ApMatrix q, k, v, o;
  ApCacheRows key_cache, value_cache;
  int64_t num_heads, num_kv_heads, head_dim, rope;
  int32_t interleaved;
  float scale;
} ApGqa;

// down · (silu(gate · x) * (up · x)); as experts, each is a stack of E.
typedef struct {
  ApMatrix gate, up, down;
} ApMlp;

typedef struct {
  ApMatrix weight;         // [E, D]
  const float* bias;       // [E] takes part in choosing only, or null
  int64_t top_k, num_groups, num_groups_used;
  int32_t sigmoid, normalise;
  float scaling;
} ApRouter;

// Either `dense`, or a router with experts and perhaps a shared expert, itself perhaps under a gate [1, D].
typedef struct {
  ApNorm norm;
  ApMlp dense, experts, shared;
  ApMatrix shared_gate;
  ApRouter router;
} ApFeedForward;

// out = x + attention(norm(x)) for one token x [D] at `position`, whose row of the cache it writes;
// `turns` [rope / 2][2] are the cosines and sines. out may be x. kApBadShape where the parts do not fit
// together or the position is outside the cache.
int ap_mla(const ApMla* layer, const void* x, int dtype, int64_t position, const float* turns, void* out);
int ap_gqa(const ApGqa* layer, const void* x, int dtype, int64_t position, const float* turns, void* out);

// out = x + feed_forward(norm(x)). out may be x.
int ap_feed_forward(const ApFeedForward* layer, const void* x, int dtype, void* out);

// One layer: its attention, either kind, and its other half; the other kind is null.
typedef struct {
  const ApMla* mla;
  const ApGqa* gqa;
  const ApFeedForward* feed_forward;
} ApLayer;

// out = x after layers[0] … layers[count - 1], in turn. out may be x. Stops at the first that fails.
int ap_layers(const ApLayer* layers, int64_t count, const void* x, int dtype, int64_t position, const float* turns,
              void* out);

// out[T, width] = norm of each row of x.
int ap_rms_norm(const ApNorm* norm, const void* x, int dtype, int64_t num_tokens, void* out);

// The experts of one token and their weights from its scores [E]; `router->weight` needs only n = E.
int ap_choose_experts(const ApRouter* router, const float* scores, int64_t* ids, float* weights);

// Where the time of the calls above goes, counted while it is switched on (which sets all to zero).
enum { kApAttention, kApRouter, kApExperts, kApShared, kApDense, kApNorms, kApRoles };
void ap_time_roles(int on);
void ap_role_times(double seconds[kApRoles]);

#pragma GCC visibility pop
#ifdef __cplusplus
}
#endif

#endif  // AUTOPLACE_DECODE_H_
