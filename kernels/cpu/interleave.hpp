// Sixteen rows side by side: a GGUF matrix with its bytes in another order, so that one vector runs across
// rows and no sum over lanes is needed. The size stays the same.
//
// A unit is one block of each of 16 rows. It holds, one after the other, the pieces of the block, each
// piece for the 16 rows: single bytes, then 16-bit words, then 32-bit words (four bytes of four
// consecutive weights, in every format). Rows are taken 16 at a time, the units of such a strip follow one
// another, so N must be a multiple of 16.
//
// Three formats are changed so that products need fewer instructions: Q8_0's codes have their sign bit
// flipped (they become unsigned); the fifth bits of Q5_0, Q5_1 and Q5_K are put in the order of use.
#ifndef AUTOPLACE_INTERLEAVE_HPP_
#define AUTOPLACE_INTERLEAVE_HPP_

#include "linear.hpp"

namespace autoplace {

// Where the pieces of a block lie: `num_bytes` (0 or 1) at its front, 16-bit words at `halves`, and 32-bit
// words from `first_word` on.
struct BlockPieces {
  int num_bytes;
  int num_halves;
  int halves[2];
  int first_word;
  int num_words;
};

constexpr BlockPieces block_pieces(int format) {
  switch (format) {
    case kQ4_0: return {0, 1, {0, 0}, 2, 4};
    case kQ4_1: return {0, 2, {0, 2}, 4, 4};
    case kQ5_0: return {0, 1, {0, 0}, 2, 5};
    case kQ5_1: return {0, 2, {0, 2}, 4, 5};
    case kQ8_0: return {0, 1, {0, 0}, 2, 8};
    case kQ2_K: return {0, 2, {80, 82}, 0, 20};
    case kQ3_K: return {0, 1, {108, 0}, 0, 27};
    case kQ4_K: return {0, 2, {0, 2}, 4, 35};
    case kQ5_K: return {0, 2, {0, 2}, 4, 43};
    case kQ6_K: return {0, 1, {208, 0}, 0, 52};
    case kIQ4_NL: return {0, 1, {0, 0}, 2, 4};
    case kIQ4_XS: return {0, 2, {0, 2}, 4, 33};
    case kMXFP4: return {1, 0, {0, 0}, 1, 4};
    default: return {0, 0, {0, 0}, 0, 0};
  }
}

// Whether a matrix can be interleaved: blocks, and whole strips of 16 rows.
bool can_interleave(int format, int64_t n, int64_t k);

// Rearranges [N, K] with all threads.
void interleave(const uint8_t* src, int format, int64_t n, int64_t k, uint8_t* dst);

// Undoes it.
void deinterleave(const Matrix& w, uint8_t* dst);

// The block at `index` of a row, as it was.
void restore_block(const Matrix& w, int64_t row, int64_t index, uint8_t* block);

}  // namespace autoplace

#endif  // AUTOPLACE_INTERLEAVE_HPP_
