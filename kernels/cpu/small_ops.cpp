#include "small_ops.hpp"

#include <algorithm>
#include <cmath>
#include <limits>

#include "buffers.hpp"

namespace autoplace {
namespace {

// Where each call of this thread keeps what it needs of [E] or [width] floats.
struct Scratch {
  Buffer weight, probability, choice, rank;
};

Scratch& scratch() {
  static thread_local Scratch own;
  return own;
}

float sum_of_squares(const float* x, int64_t count) {
  float sums[8] = {};
  int64_t i = 0;
  for (; i + 8 <= count; i += 8) {
    for (int j = 0; j < 8; ++j) sums[j] += x[i + j] * x[i + j];
  }
  for (; i < count; ++i) sums[0] += x[i] * x[i];
  return ((sums[0] + sums[1]) + (sums[2] + sums[3])) + ((sums[4] + sums[5]) + (sums[6] + sums[7]));
}

void probabilities(const ApRouter& router, const float* scores, float* out) {
  const int64_t count = router.weight.n;
  if (router.sigmoid) {
    for (int64_t i = 0; i < count; ++i) out[i] = 1.0f / (1.0f + std::exp(-scores[i]));
    return;
  }
  const float most = *std::max_element(scores, scores + count);
  float sum = 0.0f;
  for (int64_t i = 0; i < count; ++i) sum += out[i] = std::exp(scores[i] - most);
  for (int64_t i = 0; i < count; ++i) out[i] /= sum;
}

// Index of the largest; the lowest of equal ones. A NaN is never the largest.
int64_t largest(const float* x, int64_t count) {
  int64_t best = 0;
  for (int64_t i = 1; i < count; ++i) {
    if (x[i] > x[best] || std::isnan(x[best])) best = i;
  }
  return best;
}

constexpr float kOut = -std::numeric_limits<float>::infinity();

// What a group is ranked by: its best expert with softmax (V2), the sum of its best two with sigmoid (V3).
float rank_of_group(const float* choice, int64_t size, bool best_two) {
  const int64_t first = largest(choice, size);
  if (!best_two) return choice[first];
  float second = kOut;
  for (int64_t i = 0; i < size; ++i) {
    if (i != first) second = std::max(second, choice[i]);
  }
  return choice[first] + second;
}

// Experts outside the best groups fall out of the choice.
void keep_best_groups(const ApRouter& router, float* choice) {
  const int64_t groups = router.num_groups, size = router.weight.n / groups;
  float* rank = scratch().rank.get<float>(groups);
  for (int64_t g = 0; g < groups; ++g) rank[g] = rank_of_group(choice + g * size, size, router.sigmoid != 0);
  for (int64_t used = 0; used < router.num_groups_used; ++used) {
    rank[largest(rank, groups)] = std::numeric_limits<float>::quiet_NaN();  // kept
  }
  for (int64_t g = 0; g < groups; ++g) {
    if (!std::isnan(rank[g])) std::fill_n(choice + g * size, size, kOut);
  }
}

}  // namespace

void rms_norm(const ApNorm& norm, const float* x, float* out) {
  float* weight = scratch().weight.get<float>(norm.width);
  widen(norm.weight, norm.dtype, norm.width, weight);
  const float mean = sum_of_squares(x, norm.width) / static_cast<float>(norm.width);
  const float scale = 1.0f / std::sqrt(mean + norm.eps);
  for (int64_t i = 0; i < norm.width; ++i) out[i] = x[i] * scale * weight[i];
}

void rotate(float* x, int64_t dim, const float* turns, bool interleaved) {
  const int64_t half = dim / 2, step = interleaved ? 2 : 1, apart = interleaved ? 1 : half;
  for (int64_t i = 0; i < half; ++i) {
    float &first = x[i * step], &second = x[i * step + apart];
    const float cosine = turns[2 * i], sine = turns[2 * i + 1], before = first;
    first = before * cosine - second * sine;
    second = before * sine + second * cosine;
  }
}

void choose_experts(const ApRouter& router, const float* scores, int64_t* ids, float* weights) {
  const int64_t count = router.weight.n;
  float* probability = scratch().probability.get<float>(count);
  float* choice = scratch().choice.get<float>(count);
  probabilities(router, scores, probability);
  for (int64_t i = 0; i < count; ++i) choice[i] = probability[i] + (router.bias ? router.bias[i] : 0.0f);
  if (router.num_groups > 1) keep_best_groups(router, choice);
  float sum = 0.0f;
  for (int64_t i = 0; i < router.top_k; ++i) {
    ids[i] = largest(choice, count);
    weights[i] = probability[ids[i]];
    sum += weights[i];
    choice[ids[i]] = std::numeric_limits<float>::quiet_NaN();  // taken
  }
  const float scale = router.normalise ? router.scaling / (sum + 1e-20f) : router.scaling;
  for (int64_t i = 0; i < router.top_k; ++i) weights[i] *= scale;
}

void add_to(float* x, const float* y, int64_t count) {
  for (int64_t i = 0; i < count; ++i) x[i] += y[i];
}

void widen(const void* src, int dtype, int64_t count, float* dst) {
  if (dtype == kApBF16) {
    current_path().to_float(static_cast<const uint16_t*>(src), count, dst);
  } else if (src != dst) {
    std::copy_n(static_cast<const float*>(src), count, dst);
  }
}

void narrow(const float* src, int64_t count, void* dst, int dtype) {
  if (dtype == kApBF16) {
    current_path().to_bf16(src, count, static_cast<uint16_t*>(dst));
  } else {
    std::copy_n(src, count, static_cast<float*>(dst));
  }
}

}  // namespace autoplace
