// Rows of weights times panels of activations by tiles: 32 rows × 32 tokens in four tiles of sums.
//
// For each piece of K, 32 rows are decoded to the first cache and multiplied with all tokens, whose panels
// stay in the second cache for the next 32 rows. Sums are kept between pieces.
#ifndef AUTOPLACE_SIMD_AMX_GEMM_HPP_
#define AUTOPLACE_SIMD_AMX_GEMM_HPP_

#include "amx_decode.hpp"
#include "amx_instructions.hpp"

namespace autoplace {
namespace {

// Tiles 0 … 3 hold sums, 4 and 5 weights, 6 and 7 activations.
template <int Blocks>
AUTOPLACE_INLINE void multiply_steps(const uint16_t* a, const uint16_t* b0, const uint16_t* b1, int64_t count) {
  constexpr int64_t kStride = 64;
  for (int64_t i = 0; i < count; ++i) {
    tile_load<6>(b0 + i * kTileWords, kStride);
    tile_load<4>(a + 2 * i * kTileWords, kStride);
    tile_multiply<0, 4, 6>();
    tile_load<5>(a + (2 * i + 1) * kTileWords, kStride);
    tile_multiply<2, 5, 6>();
    if constexpr (Blocks == 2) {
      tile_load<7>(b1 + i * kTileWords, kStride);
      tile_multiply<1, 4, 7>();
      tile_multiply<3, 5, 7>();
    }
  }
}

template <int Blocks, class Move>
AUTOPLACE_INLINE void move_sums(float* sums, int64_t num_blocks, Move&& move) {
  move(Index<0>{}, sums);
  move(Index<2>{}, sums + num_blocks * kSumsTile);
  if constexpr (Blocks == 2) {
    move(Index<1>{}, sums + kSumsTile);
    move(Index<3>{}, sums + (num_blocks + 1) * kSumsTile);
  }
}

// `Blocks` blocks of tokens from `block`, for `count` steps of K from `step`.
template <int Blocks, int Terms>
inline void multiply_blocks(const uint16_t* words, const Panels& x, int64_t block, int64_t step, int64_t count,
                            int64_t num_blocks, float* sums) {
  if (step == 0) {
    move_sums<Blocks>(sums, num_blocks, [](auto tile, float*) AUTOPLACE_LAMBDA_INLINE { tile_zero<tile.value>(); });
  } else {
    move_sums<Blocks>(sums, num_blocks,
                      [](auto tile, float* p) AUTOPLACE_LAMBDA_INLINE { tile_load<tile.value>(p, 64); });
  }
  const uint16_t* b0 = x.block(block) + step * kTileWords;
  const uint16_t* b1 = b0 + x.block_size();
  multiply_steps<Blocks>(words, b0, b1, count);
  if constexpr (Terms == 2) multiply_steps<Blocks>(words + kPieceWords / 2, b0, b1, count);
  move_sums<Blocks>(sums, num_blocks,
                    [](auto tile, float* p) AUTOPLACE_LAMBDA_INLINE { tile_store<tile.value>(p, 64); });
}

// The part of float weights' products that the second term of x makes.
template <int Blocks>
inline void add_second_term(const uint16_t* words, const Panels& x, int64_t block, int64_t step, int64_t count,
                            int64_t num_blocks, float* sums) {
  move_sums<Blocks>(sums, num_blocks,
                    [](auto tile, float* p) AUTOPLACE_LAMBDA_INLINE { tile_load<tile.value>(p, 64); });
  const uint16_t* b0 = x.block(block) + x.term_size() + step * kTileWords;
  multiply_steps<Blocks>(words, b0, b0 + x.block_size(), count);
  move_sums<Blocks>(sums, num_blocks,
                    [](auto tile, float* p) AUTOPLACE_LAMBDA_INLINE { tile_store<tile.value>(p, 64); });
}

template <class Source>
inline void multiply_piece(const uint16_t* words, const Panels& x, int64_t block, int64_t step, int64_t count,
                           int64_t num_blocks, bool both_terms, float* sums) {
  const auto run = [&](auto blocks, int64_t i) AUTOPLACE_LAMBDA_INLINE {
    constexpr int kBlocks = decltype(blocks)::value;
    float* target = sums + i * kSumsTile;
    multiply_blocks<kBlocks, Source::kTerms>(words, x, block + i, step, count, num_blocks, target);
    if (both_terms) add_second_term<kBlocks>(words, x, block + i, step, count, num_blocks, target);
  };
  int64_t i = 0;
  for (; i + 2 <= num_blocks; i += 2) run(Index<2>{}, i);
  if (i < num_blocks) run(Index<1>{}, i);
}

template <class Source>
inline void multiply_rows(const Matrix& w, int64_t first, int64_t num_rows, const Panels& x, int64_t block,
                          int64_t num_blocks, float* sums) {
  alignas(64) uint16_t words[kPieceWords];
  const Source source{w};
  const bool both_terms = x.terms > 1 && is_float(w.format);
  configure_tiles();
  for (int64_t step = 0; step < x.steps(); step += Source::kMostSteps) {
    const int64_t left = x.steps() - step, count = left < Source::kMostSteps ? left : Source::kMostSteps;
    for (int64_t done = 0; done < num_rows; done += kRowStep) {
      const int64_t rows = num_rows - done < kRowStep ? num_rows - done : kRowStep;
      fill_tiles(source, first + done, rows, step, count, words);
      multiply_piece<Source>(words, x, block, step, count, num_blocks, both_terms,
                             sums + done / 16 * num_blocks * kSumsTile);
    }
  }
  tile_release();
}

inline void multiply(const Matrix& w, int64_t first, int64_t num_rows, const Panels& x, int64_t block,
                     int64_t num_blocks, float* sums) {
  const auto run = [&](auto* source) AUTOPLACE_LAMBDA_INLINE {
    multiply_rows<std::remove_pointer_t<decltype(source)>>(w, first, num_rows, x, block, num_blocks, sums);
  };
  switch (w.format) {
    case kF32: return run(static_cast<FloatSource<kF32>*>(nullptr));
    case kF16: return run(static_cast<FloatSource<kF16>*>(nullptr));
    case kBF16: return run(static_cast<FloatSource<kBF16>*>(nullptr));
    case kMarlin4: return run(static_cast<MarlinRowSource<4>*>(nullptr));
    case kMarlin8: return run(static_cast<MarlinRowSource<8>*>(nullptr));
    case kQ4_0: return run(static_cast<BlockSource<Decoder<kQ4_0>>*>(nullptr));
    case kQ4_1: return run(static_cast<BlockSource<Decoder<kQ4_1>>*>(nullptr));
    case kQ5_0: return run(static_cast<BlockSource<Decoder<kQ5_0>>*>(nullptr));
    case kQ5_1: return run(static_cast<BlockSource<Decoder<kQ5_1>>*>(nullptr));
    case kQ8_0: return run(static_cast<BlockSource<Decoder<kQ8_0>>*>(nullptr));
    case kQ2_K: return run(static_cast<BlockSource<Decoder<kQ2_K>>*>(nullptr));
    case kQ3_K: return run(static_cast<BlockSource<Decoder<kQ3_K>>*>(nullptr));
    case kQ4_K: return run(static_cast<BlockSource<Decoder<kQ4_K>>*>(nullptr));
    case kQ5_K: return run(static_cast<BlockSource<Decoder<kQ5_K>>*>(nullptr));
    case kQ6_K: return run(static_cast<BlockSource<Decoder<kQ6_K>>*>(nullptr));
    case kIQ4_NL: return run(static_cast<BlockSource<Decoder<kIQ4_NL>>*>(nullptr));
    case kIQ4_XS: return run(static_cast<BlockSource<Decoder<kIQ4_XS>>*>(nullptr));
    case kMXFP4: return run(static_cast<BlockSource<Decoder<kMXFP4>>*>(nullptr));
    default: return;
  }
}

}  // namespace
}  // namespace autoplace

#endif  // AUTOPLACE_SIMD_AMX_GEMM_HPP_
