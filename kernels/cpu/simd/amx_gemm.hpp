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

// Tiles 0 … 3 hold sums, 4 and 5 weights, 6 and 7 activations. Not inlined: the compiler would unroll it for
// every format.
template <int Blocks>
__attribute__((noinline)) void multiply_steps(const uint16_t* a, const uint16_t* b0, const uint16_t* b1,
                                              int64_t count) {
  constexpr int64_t kStride = 64;
  for (const uint16_t* end = a + count * 2 * kTileWords; a != end; a += 2 * kTileWords) {
    tile_load<6>(b0, kStride);
    tile_load<4>(a, kStride);
    tile_multiply<0, 4, 6>();
    tile_load<5>(a + kTileWords, kStride);
    tile_multiply<2, 5, 6>();
    b0 += kTileWords;
    if constexpr (Blocks == 2) {
      tile_load<7>(b1, kStride);
      tile_multiply<1, 4, 7>();
      tile_multiply<3, 5, 7>();
      b1 += kTileWords;
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

// What a piece of 32 decoded rows is multiplied with. Products of both first terms, then of the weights'
// second with the activations' first, then of the activations' second with the weights' first.
struct Piece {
  const uint16_t* words;
  int64_t step, count;  // along K
  bool second_weights, second_x;
};

// `Blocks` blocks of tokens from `block`; the first piece of K begins new sums.
template <int Blocks>
inline void multiply_blocks(const Piece& piece, const Panels& x, int64_t block, int64_t num_blocks, float* sums) {
  if (piece.step == 0) {
    move_sums<Blocks>(sums, num_blocks, [](auto tile, float*) AUTOPLACE_LAMBDA_INLINE { tile_zero<tile.value>(); });
  } else {
    move_sums<Blocks>(sums, num_blocks,
                      [](auto tile, float* p) AUTOPLACE_LAMBDA_INLINE { tile_load<tile.value>(p, 64); });
  }
  const uint16_t* b0 = x.block(block) + piece.step * kTileWords;
  const uint16_t* b1 = b0 + x.block_size();
  multiply_steps<Blocks>(piece.words, b0, b1, piece.count);
  if (piece.second_weights) multiply_steps<Blocks>(piece.words + kPieceWords / 2, b0, b1, piece.count);
  if (piece.second_x) multiply_steps<Blocks>(piece.words, b0 + x.term_size(), b1 + x.term_size(), piece.count);
  move_sums<Blocks>(sums, num_blocks,
                    [](auto tile, float* p) AUTOPLACE_LAMBDA_INLINE { tile_store<tile.value>(p, 64); });
}

// Brings what is decoded next to the second cache while tiles are multiplied: part `index` of `count`.
struct NextRows {
  const Matrix& w;
  int64_t first, num_rows, step, num_steps;  // none where num_steps is not positive

  void prefetch(int64_t index, int64_t count) const {
    const BlockSize size = block_size(w.format);
    if (size.weights == 0) return;  // packed: its order is that of reading
    const int64_t begin = step * kPanelColumns / size.weights * size.bytes;
    const int64_t end = (step + num_steps) * kPanelColumns / size.weights * size.bytes;
    for (int64_t r = num_rows * index / count; r < num_rows * (index + 1) / count; ++r) {
      const char* row = reinterpret_cast<const char*>(w.row(first + r));
      for (int64_t i = begin; i < end; i += 64) _mm_prefetch(row + i, _MM_HINT_T1);
    }
  }
};

inline void multiply_piece(const Piece& piece, const Panels& x, int64_t block, int64_t num_blocks,
                           const NextRows& next, float* sums) {
  const int64_t pairs = (num_blocks + 1) / 2;
  for (int64_t pair = 0; pair < pairs; ++pair) {
    next.prefetch(pair, pairs);
    float* target = sums + 2 * pair * kSumsTile;
    if (2 * pair + 1 < num_blocks) {
      multiply_blocks<2>(piece, x, block + 2 * pair, num_blocks, target);
    } else {
      multiply_blocks<1>(piece, x, block + 2 * pair, num_blocks, target);
    }
  }
}

template <class Source>
inline void multiply_rows(const Matrix& w, int64_t first, int64_t num_rows, const Panels& x, int64_t block,
                          int64_t num_blocks, float* sums) {
  alignas(64) uint16_t words[kPieceWords];
  const Source source{w};
  const bool second_x = x.terms > 1 && is_float(w.format);
  const auto rows_from = [=](int64_t done) { return num_rows - done < kRowStep ? num_rows - done : kRowStep; };
  const auto steps_from = [&](int64_t step) {
    return x.steps() - step < Source::kMostSteps ? x.steps() - step : Source::kMostSteps;
  };
  configure_tiles();
  for (int64_t step = 0; step < x.steps(); step += Source::kMostSteps) {
    const Piece piece{words, step, steps_from(step), Source::kTerms == 2, second_x};
    for (int64_t done = 0; done < num_rows; done += kRowStep) {
      const bool last = done + kRowStep >= num_rows;
      const int64_t next_row = last ? 0 : done + kRowStep, next_step = last ? step + Source::kMostSteps : step;
      const NextRows next{w, first + next_row, rows_from(next_row), next_step, steps_from(next_step)};
      fill_tiles(source, first + done, rows_from(done), step, piece.count, words);
      multiply_piece(piece, x, block, num_blocks, next, sums + done / 16 * num_blocks * kSumsTile);
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
