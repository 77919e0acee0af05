// BF16 weights times bf16 activations by AVX512-BF16's dot products of pairs: the panels and sums of tiles.hpp,
// 8 rows × 32 tokens in 16 registers of sums.
#ifndef AUTOPLACE_SIMD_BF16_GEMM_HPP_
#define AUTOPLACE_SIMD_BF16_GEMM_HPP_

#include "amx_decode.hpp"

namespace autoplace {
namespace {

constexpr int kDotRows = 8;

AUTOPLACE_INLINE __m512bh both_of_pair(const uint16_t* pair) {
  int bits;
  std::memcpy(&bits, pair, 4);
  return (__m512bh)_mm512_set1_epi32(bits);
}

// sums of kDotRows rows of a tile += `count` steps; sums of the second block are kSumsTile behind.
template <int Blocks>
inline void dot_steps(const uint16_t* a, const uint16_t* const* b, int64_t count, float* sums) {
  __m512 total[Blocks][kDotRows];
  for (int j = 0; j < Blocks; ++j) {
    for (int r = 0; r < kDotRows; ++r) total[j][r] = _mm512_load_ps(sums + j * kSumsTile + r * kPanelTokens);
  }
  for (int64_t i = 0; i < count; ++i) {
    for (int pair = 0; pair < 16; ++pair) {
      __m512bh x[Blocks];
      for (int j = 0; j < Blocks; ++j) x[j] = (__m512bh)_mm512_load_si512(b[j] + i * kTileWords + pair * 32);
      for (int r = 0; r < kDotRows; ++r) {
        const __m512bh w = both_of_pair(a + i * 2 * kTileWords + r * kPanelColumns + 2 * pair);
        for (int j = 0; j < Blocks; ++j) total[j][r] = _mm512_dpbf16_ps(total[j][r], w, x[j]);
      }
    }
  }
  for (int j = 0; j < Blocks; ++j) {
    for (int r = 0; r < kDotRows; ++r) _mm512_store_ps(sums + j * kSumsTile + r * kPanelTokens, total[j][r]);
  }
}

// 32 decoded rows times one or two blocks, for each term of x.
template <int Blocks>
inline void dot_blocks(const uint16_t* words, const Panels& x, int64_t block, int64_t step, int64_t count,
                       int64_t num_blocks, float* sums) {
  for (int64_t row = 0; row < kRowStep; row += kDotRows) {
    float* target = sums + row / 16 * num_blocks * kSumsTile + row % 16 * kPanelTokens;
    if (step == 0) {
      for (int j = 0; j < Blocks; ++j) std::memset(target + j * kSumsTile, 0, kDotRows * kPanelTokens * 4);
    }
    for (int64_t term = 0; term < x.terms; ++term) {
      const uint16_t* b[2] = {x.block(block) + term * x.term_size() + step * kTileWords, nullptr};
      b[1] = b[0] + x.block_size();
      dot_steps<Blocks>(tile_row(const_cast<uint16_t*>(words), 0, row), b, count, target);
    }
  }
}

// As TileKernels::multiply, for BF16 weights.
inline void multiply_pairs(const Matrix& w, int64_t first, int64_t num_rows, const Panels& x, int64_t block,
                           int64_t num_blocks, float* sums) {
  alignas(64) uint16_t words[kPieceWords];
  const FloatSource<kBF16> source{w};
  for (int64_t step = 0; step < x.steps(); step += kPieceSteps) {
    const int64_t count = x.steps() - step < kPieceSteps ? x.steps() - step : kPieceSteps;
    for (int64_t done = 0; done < num_rows; done += kRowStep) {
      const int64_t rows = num_rows - done < kRowStep ? num_rows - done : kRowStep;
      fill_tiles(source, first + done, rows, step, count, words);
      float* target = sums + done / 16 * num_blocks * kSumsTile;
      int64_t i = 0;
      for (; i + 2 <= num_blocks; i += 2) {
        dot_blocks<2>(words, x, block + i, step, count, num_blocks, target + i * kSumsTile);
      }
      if (i < num_blocks) dot_blocks<1>(words, x, block + i, step, count, num_blocks, target + i * kSumsTile);
    }
  }
}

}  // namespace
}  // namespace autoplace

#endif  // AUTOPLACE_SIMD_BF16_GEMM_HPP_
