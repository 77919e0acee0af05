// Activations to panels, and sums from tiles: what happens before and after the tile products.
#ifndef AUTOPLACE_SIMD_AMX_PANELS_HPP_
#define AUTOPLACE_SIMD_AMX_PANELS_HPP_

#include "activations.hpp"
#include "amx_decode.hpp"

namespace autoplace {
namespace {

// out[c] = column c of a 16 × 16 matrix whose rows follow each other.
AUTOPLACE_INLINE void transpose_16x16(const float* src, __m512* out) {
  for (int q = 0; q < 4; ++q) {
    __m512 v[4];
    for (int j = 0; j < 4; ++j) {
      const float* row = src + j * 16 + 4 * q;
      v[j] = _mm512_castps128_ps512(_mm_load_ps(row));
      v[j] = _mm512_insertf32x4(v[j], _mm_load_ps(row + 4 * 16), 1);
      v[j] = _mm512_insertf32x4(v[j], _mm_load_ps(row + 8 * 16), 2);
      v[j] = _mm512_insertf32x4(v[j], _mm_load_ps(row + 12 * 16), 3);
    }
    const __m512d low = _mm512_castps_pd(_mm512_unpacklo_ps(v[0], v[1]));
    const __m512d high = _mm512_castps_pd(_mm512_unpackhi_ps(v[0], v[1]));
    const __m512d low2 = _mm512_castps_pd(_mm512_unpacklo_ps(v[2], v[3]));
    const __m512d high2 = _mm512_castps_pd(_mm512_unpackhi_ps(v[2], v[3]));
    out[4 * q] = _mm512_castpd_ps(_mm512_unpacklo_pd(low, low2));
    out[4 * q + 1] = _mm512_castpd_ps(_mm512_unpackhi_pd(low, low2));
    out[4 * q + 2] = _mm512_castpd_ps(_mm512_unpacklo_pd(high, high2));
    out[4 * q + 3] = _mm512_castpd_ps(_mm512_unpackhi_pd(high, high2));
  }
}

// 32 columns of 16 tokens, one term: words[token][32] → panel[pair of columns][token][2].
AUTOPLACE_INLINE void store_panel(const uint16_t* words, uint16_t* panel) {
  __m512 columns[16];
  transpose_16x16(reinterpret_cast<const float*>(words), columns);
  for (int i = 0; i < 16; ++i) store_words(panel + i * 32, _mm512_castps_si512(columns[i]));
}

constexpr int64_t kPackSteps = 8;  // read of a token at a time: whole lines, in their order

struct PackedRows {
  alignas(64) uint16_t words[2][kPackSteps][kPanelTokens][kPanelColumns];  // [term]
};

AUTOPLACE_INLINE void pack_columns(const void* row, int x_dtype, int64_t begin, __mmask32 mask, int64_t terms,
                                   uint16_t* first_term, uint16_t* second_term) {
  if (x_dtype == kApBF16) {
    store_words(first_term, _mm512_maskz_loadu_epi16(mask, static_cast<const uint16_t*>(row) + begin));
    if (terms > 1) store_words(second_term, _mm512_setzero_si512());
    return;
  }
  const float* x = static_cast<const float*>(row) + begin;
  const __m512 low = _mm512_maskz_loadu_ps(static_cast<__mmask16>(mask), x);
  const __m512 high = _mm512_maskz_loadu_ps(static_cast<__mmask16>(mask >> 16), x + 16);
  const __m512i first = to_words(low, high);
  store_words(first_term, first);
  if (terms > 1) store_words(second_term, rest_of(low, high, first));
}

inline void pack_panel(const void* const* rows, int x_dtype, int64_t t, const Panels& x, int64_t block) {
  PackedRows packed;
  if (t < kPanelTokens) std::memset(&packed, 0, sizeof(packed));
  for (int64_t step = 0; step < x.steps(); step += kPackSteps) {
    const int64_t count = x.steps() - step < kPackSteps ? x.steps() - step : kPackSteps;
    for (int64_t i = 0; i < t; ++i) {
      for (int64_t s = 0; s < count; ++s) {
        const int64_t begin = (step + s) * kPanelColumns, left = x.k - begin;
        const __mmask32 mask = left >= kPanelColumns ? 0xffffffffu : (1u << left) - 1;
        pack_columns(rows[i], x_dtype, begin, mask, x.terms, packed.words[0][s][i], packed.words[1][s][i]);
      }
    }
    for (int64_t term = 0; term < x.terms; ++term) {
      uint16_t* panel = x.block(block) + term * x.term_size() + step * kTileWords;
      for (int64_t s = 0; s < count; ++s) store_panel(packed.words[term][s][0], panel + s * kTileWords);
    }
  }
}

// Two rows of h for 16 tokens are one line of a panel.
AUTOPLACE_INLINE __m512i pair_words(__m512i words) {
  alignas(64) static const uint16_t kOrder[32] = {0, 16, 1, 17, 2,  18, 3,  19, 4,  20, 5,  21, 6,  22, 7,  23,
                                                  8, 24, 9, 25, 10, 26, 11, 27, 12, 28, 13, 29, 14, 30, 15, 31};
  return _mm512_permutexvar_epi16(_mm512_load_si512(kOrder), words);
}

// One tile of h, [16 rows][16 tokens], as eight pairs of columns of a panel.
AUTOPLACE_INLINE void pack_hidden_tile(const float* h, const Panels& panels, uint16_t* panel) {
  for (int pair = 0; pair < 8; ++pair) {
    const __m512 even = _mm512_load_ps(h + 32 * pair), odd = _mm512_load_ps(h + 32 * pair + 16);
    const __m512i first = to_words(even, odd);
    store_words(panel + 32 * pair, pair_words(first));
    if (panels.terms > 1) store_words(panel + panels.term_size() + 32 * pair, pair_words(rest_of(even, odd, first)));
  }
}

inline void gate_and_pack(float* gate, const float* up, int64_t first, int64_t num_rows, const Panels& h,
                          int64_t block, int64_t num_blocks) {
  const int64_t num_tiles = round_up(num_rows, kRowStep) / 16;
  for (int64_t tile = 0; tile < num_tiles; ++tile) {
    const int64_t column = first + 16 * tile;
    for (int64_t i = 0; i < num_blocks; ++i) {
      float* sums = gate + (tile * num_blocks + i) * kSumsTile;
      swiglu(sums, up + (tile * num_blocks + i) * kSumsTile, kSumsTile);
      pack_hidden_tile(sums, h, h.block(block + i) + column / 32 * kTileWords + column % 32 / 2 * 32);
    }
  }
}

inline void store_tile(const float* sums, int64_t num_rows, int64_t t, void* y, int y_dtype, int64_t stride) {
  __m512 tokens[16];
  transpose_16x16(sums, tokens);
  const __mmask16 mask = static_cast<__mmask16>((1u << num_rows) - 1);
  for (int64_t i = 0; i < t; ++i) {
    if (y_dtype == kApBF16) {
      const __m256i words = (__m256i)_mm512_cvtneps_pbh(tokens[i]);
      _mm256_mask_storeu_epi16(static_cast<uint16_t*>(y) + i * stride, mask, words);
    } else {
      _mm512_mask_storeu_ps(static_cast<float*>(y) + i * stride, mask, tokens[i]);
    }
  }
}

inline void add_tile(const float* sums, int64_t num_rows, int64_t t, const float* weights, float* const* y) {
  __m512 tokens[16];
  transpose_16x16(sums, tokens);
  const __mmask16 mask = static_cast<__mmask16>((1u << num_rows) - 1);
  for (int64_t i = 0; i < t; ++i) {
    const __m512 before = _mm512_maskz_loadu_ps(mask, y[i]);
    _mm512_mask_storeu_ps(y[i], mask, _mm512_fmadd_ps(tokens[i], _mm512_set1_ps(weights[i]), before));
  }
}

}  // namespace
}  // namespace autoplace

#endif  // AUTOPLACE_SIMD_AMX_PANELS_HPP_
