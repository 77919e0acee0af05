// Many tokens times 16 rows: the tile is decoded once and multiplied with all tokens.
#ifndef AUTOPLACE_SIMD_GEMM_HPP_
#define AUTOPLACE_SIMD_GEMM_HPP_

#include "tile.hpp"

namespace autoplace {
namespace {

// A source gives, for `kVectorRows` rows from `half`, the codes and scales of weight groups:
//   line(group, Index<step>)  codes of weights [4·step, 4·step + 4) of a group of kScaleGroup
//   scale(group), min(group)  vectors across rows
// TileSource knows only what the product depends on, so that formats share their code.
template <bool Signed, bool Mins, int ScaleGroup, int MaxCode>
struct TileSource {
  static constexpr bool kSigned = Signed, kMins = Mins;
  static constexpr int kScaleGroup = ScaleGroup, kMaxCode = MaxCode;
  const Tile* tile;
  int64_t half;

  template <int Step>
  AUTOPLACE_INLINE Ints line(int64_t group, Index<Step>) const {
    return load_ints(tile->codes[group * (kScaleGroup / 4) + Step][half]);
  }
  AUTOPLACE_INLINE Floats scale(int64_t group) const { return load_floats(tile->scale[group] + half); }
  AUTOPLACE_INLINE Floats min(int64_t group) const { return load_floats(tile->min[group] + half); }
};

#if AUTOPLACE_VNNI
template <class D>
using SourceOf = TileSource<false, true, D::kScaleGroup, 255>;  // sums cannot overflow
#else
template <class D>
using SourceOf = TileSource<D::kSigned, D::kHasMin || D::kOffset != 0, D::kScaleGroup, D::kMaxCode>;
#endif

// out[t * 16 + row] += Σ over `num_groups` groups, for tokens x[0] … x[T - 1] from column `begin`.
template <int T, class Source>
inline void multiply_tile(const Source& source, int64_t begin, int64_t num_groups, const Activation* const* x,
                          float* out) {
  constexpr int kGroupSize = Source::kScaleGroup;
  const int8_t* q[T];
  const float* d[T];
  const float* sum[T];
  Floats total[T];
  for (int t = 0; t < T; ++t) {
    q[t] = x[t]->q + begin;
    d[t] = x[t]->d + begin / kGroup;
    sum[t] = kGroupSize == 16 ? x[t]->sum16 + begin / 16 : x[t]->sum32 + begin / 32;
    total[t] = load_floats(out + t * kTileRows);
  }
  for (int64_t g = 0; g < num_groups; ++g) {
    Ints dots[T];
    for (int t = 0; t < T; ++t) dots[t] = zero_ints();
    const auto line = [&](auto step) AUTOPLACE_LAMBDA_INLINE { return source.line(g, step); };
    accumulate<T, kGroupSize / 4, Source::kSigned, Source::kMaxCode>(q, line, dots);
    const Floats scale = source.scale(g);
    for (int t = 0; t < T; ++t) {
      const Floats scaled = mul(to_floats(dots[t]), all(d[t][g * kGroupSize / kGroup]));
      total[t] = mul_add(scaled, scale, total[t]);
      q[t] += kGroupSize;
    }
    if constexpr (Source::kMins) {
      const Floats min = source.min(g);
      for (int t = 0; t < T; ++t) total[t] = sub_mul(total[t], min, all(sum[t][g]));
    }
  }
  for (int t = 0; t < T; ++t) store_floats(out + t * kTileRows, total[t]);
}

// Runs multiply(Index<T>{}, first token) over all tokens, most of them `kMost` at a time.
template <int kMost, class Multiply>
AUTOPLACE_INLINE void in_token_batches(int64_t t, Multiply&& multiply) {
  int64_t done = 0;
  for (; done + kMost <= t; done += kMost) multiply(Index<kMost>{}, done);
  if constexpr (kMost > 4) {
    for (; done + 4 <= t; done += 4) multiply(Index<4>{}, done);
  }
  for (; done + 2 <= t; done += 2) multiply(Index<2>{}, done);
  if (done < t) multiply(Index<1>{}, done);
}

// Rows that lie in strips of 16, times few tokens: strip(row, x, sums) fills sums[t * 16 + r] from `row` on.
template <class Strip>
AUTOPLACE_INLINE void gemv_by_strips(int64_t num_rows, const Activation* x, int64_t t, float* out, int64_t stride,
                                     Strip&& strip) {
  const Activation* tokens[kMaxGemvTokens];
  for (int64_t i = 0; i < t; ++i) tokens[i] = x + i;
  alignas(64) float sums[kMaxGemvTokens * kTileRows];
  for (int64_t done = 0; done < num_rows; done += kTileRows) {
    strip(done, tokens, sums);
    const int64_t count = num_rows - done < kTileRows ? num_rows - done : kTileRows;
    for (int64_t i = 0; i < t; ++i) {
      std::memcpy(out + i * stride + done, sums + i * kTileRows, static_cast<size_t>(count) * 4);
    }
  }
}

template <class D>
inline void gemm_blocks(const Matrix& w, int64_t first, int64_t num_rows, const Activation* const* x, int64_t t,
                        float* out, void* scratch) {
  Tile* tile = static_cast<Tile*>(scratch);
  std::memset(out, 0, static_cast<size_t>(t * kTileRows) * 4);
  constexpr int64_t kBlocks = kPieceK / kSuperBlock;
  const int64_t num_blocks = (w.k + kSuperBlock - 1) / kSuperBlock;
  for (int64_t begin = 0; begin < num_blocks; begin += kBlocks) {
    const int64_t end = begin + kBlocks < num_blocks ? begin + kBlocks : num_blocks;
    fill_tile<D>(w, first, num_rows, begin, end, tile);
    const int64_t num_groups = (end - begin) * (kSuperBlock / D::kScaleGroup);
    in_token_batches<kTileTokens>(t, [&](auto batch, int64_t i) {
      for (int64_t half = 0; half < kTileRows; half += kVectorRows) {
        const SourceOf<D> source{tile, half};
        multiply_tile<batch.value>(source, begin * kSuperBlock, num_groups, x + i, out + i * kTileRows + half);
      }
    });
  }
}

}  // namespace
}  // namespace autoplace

#endif  // AUTOPLACE_SIMD_GEMM_HPP_
