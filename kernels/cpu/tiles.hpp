// Many tokens by bf16 tiles or dot products: what such a path offers, and the operators made from it.
//
// Weights are the left operand, so that a decoded row lies in a tile as it lies in the matrix, and sums
// come as [rows][tokens]. Activations are the right operand and are packed once a call, as panels:
//   data[block of 16 tokens][term][k / 32][16 pairs of k][16 tokens][2] bf16
// A float32 is one bf16 term (its rounding) or two (and what the rounding left): float weights get two, so
// that they keep 16 bits. Tokens and columns beyond the last are zero.
#ifndef AUTOPLACE_TILES_HPP_
#define AUTOPLACE_TILES_HPP_

#include <cstdint>

#include "experts.hpp"
#include "path.hpp"

namespace autoplace {

constexpr int64_t kPanelTokens = 16;   // tokens of a block
constexpr int64_t kPanelColumns = 32;  // of K, in a tile
constexpr int64_t kRowStep = 32;       // rows multiplied together
constexpr int64_t kSumsTile = 256;     // floats: 16 rows of 16 tokens

struct Panels {
  uint16_t* data;
  int64_t k;
  int64_t terms;

  int64_t steps() const { return (k + kPanelColumns - 1) / kPanelColumns; }
  int64_t term_size() const { return steps() * kPanelColumns * kPanelTokens; }
  int64_t block_size() const { return terms * term_size(); }
  uint16_t* block(int64_t index) const { return data + index * block_size(); }
};

struct TileKernels {
  // Whether weights of a format times activations of a type are better multiplied this way.
  bool (*takes)(int format, int x_dtype);

  // Packs up to 16 rows of x, float32 or bf16, into one block.
  void (*pack)(const void* const* rows, int x_dtype, int64_t t, const Panels& x, int64_t block);

  // sums[rows / 16][num_blocks][16 rows][16 tokens], rows rounded up to 32, = rows [first, first + num_rows)
  // of w times blocks [block, block + num_blocks) of x. `first` is a multiple of 32.
  void (*multiply)(const Matrix& w, int64_t first, int64_t num_rows, const Panels& x, int64_t block,
                   int64_t num_blocks, float* sums);

  // Packs h = silu(gate) · up, laid out as `multiply` gives them, as columns [first, first + num_rows) of
  // `h`. Overwrites gate.
  void (*gate)(float* gate, const float* up, int64_t first, int64_t num_rows, const Panels& h, int64_t block,
               int64_t num_blocks);

  // y[i * stride + r] = sums of token i, row r, of one tile.
  void (*store)(const float* sums, int64_t num_rows, int64_t t, void* y, int y_dtype, int64_t stride);
  // y[i][r] += weights[i] · sums of token i, row r.
  void (*add)(const float* sums, int64_t num_rows, int64_t t, const float* weights, float* const* y);
};

// As `linear` and `experts` do, for any number of tokens.
void tile_linear(const TileKernels& tiles, const void* x, int x_dtype, int64_t t, const Matrix& w, void* y,
                 int y_dtype);
void tile_experts(const TileKernels& tiles, const void* x, int x_dtype, const Routing& routing,
                  const ExpertStack& gate, const ExpertStack& up, const ExpertStack& down, void* out, int out_dtype);
// Whether a path's tiles take these experts, and those in use have enough tokens each for decoding to pay.
bool tile_experts_pay(const TileKernels& tiles, int x_dtype, const Routing& routing, const ExpertStack& gate,
                      const ExpertStack& up, const ExpertStack& down);

}  // namespace autoplace

#endif  // AUTOPLACE_TILES_HPP_
