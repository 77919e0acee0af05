// Weights to tiles of bf16: the left operand of a product. A row of a tile is 32 weights of a row.
#ifndef AUTOPLACE_SIMD_AMX_DECODE_HPP_
#define AUTOPLACE_SIMD_AMX_DECODE_HPP_

#include "../path.hpp"
#include "../tiles.hpp"
#include "decode.hpp"

namespace autoplace {
namespace {

constexpr int64_t kTileWords = 16 * kPanelColumns;     // bf16 values of a tile
constexpr int64_t kPieceSteps = 16;                    // tiles along K that are decoded at a time
constexpr int64_t kPieceWords = kPieceSteps * 2 * kTileWords;  // of 32 rows: 32 KiB, for the first cache

// Where the 32 weights of a row and a step lie: words[step][2 tiles][16 rows][32].
AUTOPLACE_INLINE uint16_t* tile_row(uint16_t* words, int64_t step, int64_t row) {
  return words + step * 2 * kTileWords + row * kPanelColumns;
}

AUTOPLACE_INLINE void store_words(uint16_t* target, __m512i words) { _mm512_store_si512(target, words); }

// 32 floats, rounded to nearest even.
AUTOPLACE_INLINE __m512i to_words(__m512 low, __m512 high) {
  return (__m512i)_mm512_cvtne2ps_pbh(high, low);
}
AUTOPLACE_INLINE __m512 low_floats(__m512i words) {
  return _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(_mm512_castsi512_si256(words)), 16));
}
AUTOPLACE_INLINE __m512 high_floats(__m512i words) {
  return low_floats(_mm512_castsi256_si512(_mm512_extracti64x4_epi64(words, 1)));
}
// What rounding to `words` left of 32 floats.
AUTOPLACE_INLINE __m512i rest_of(__m512 low, __m512 high, __m512i words) {
  return to_words(_mm512_sub_ps(low, low_floats(words)), _mm512_sub_ps(high, high_floats(words)));
}

template <bool Signed>
AUTOPLACE_INLINE __m512 codes_to_floats(__m128i codes) {
  return _mm512_cvtepi32_ps(Signed ? _mm512_cvtepi8_epi32(codes) : _mm512_cvtepu8_epi32(codes));
}

// scale · code - min for 32 codes, a scale for each half.
template <bool Signed>
AUTOPLACE_INLINE __m512i scaled_words(__m256i codes, const float* scale, const float* min, int second) {
  const __m512 low = codes_to_floats<Signed>(_mm256_castsi256_si128(codes));
  const __m512 high = codes_to_floats<Signed>(_mm256_extracti128_si256(codes, 1));
  return to_words(_mm512_fmsub_ps(low, _mm512_set1_ps(scale[0]), _mm512_set1_ps(min[0])),
                  _mm512_fmsub_ps(high, _mm512_set1_ps(scale[second]), _mm512_set1_ps(min[second])));
}

// A source fills words with steps [step, step + count) of kRows rows; count <= kMostSteps. With two terms, what
// rounding left follows kPieceWords / 2 behind.
template <class D>
struct BlockSource {
  static constexpr int kTerms = 1;
  static constexpr int64_t kRows = 1, kMostSteps = kPieceSteps;
  const Matrix& w;

  void fill(int64_t row, int64_t step, int64_t count, uint16_t* words, int64_t r) const {
    RowReader<D> reader;
    reader.row = w.row(row);
    reader.k = w.k;
    const int64_t first = step / 8;
    for (int64_t block = 0; block < (count + 7) / 8; ++block) {
      superblock(reader.superblock(first + block), tile_row(words, 8 * block, r));
    }
  }

  static AUTOPLACE_INLINE void superblock(const uint8_t* b, uint16_t* target) {
    constexpr int kPerStep = 32 / D::kScaleGroup;
    alignas(64) float scale[16], min[16];
    __m256 s[2] = {}, m[2] = {};
    D::scales(b, s, m);
    for (int i = 0; i < kPerStep; ++i) {
      if constexpr (D::kOffset != 0) m[i] = _mm256_mul_ps(s[i], _mm256_set1_ps(static_cast<float>(D::kOffset)));
      _mm256_store_ps(scale + 8 * i, s[i]);
      _mm256_store_ps(min + 8 * i, m[i]);
    }
    D::codes(b, [&](auto i, __m256i codes) AUTOPLACE_LAMBDA_INLINE {
      constexpr int kFirst = i.value * kPerStep;
      store_words(target + i.value * 2 * kTileWords,
                  scaled_words<D::kSigned>(codes, scale + kFirst, min + kFirst, kPerStep - 1));
    });
  }
};

template <int Format>
AUTOPLACE_INLINE __m512 load_16_floats(const uint8_t* p, __mmask16 mask) {
  if constexpr (Format == kF32) return _mm512_maskz_loadu_ps(mask, p);
  const __m256i halves = _mm256_maskz_loadu_epi16(mask, p);
  return Format == kF16 ? _mm512_cvtph_ps(halves) : low_floats(_mm512_castsi256_si512(halves));
}

template <int Format>
struct FloatSource {
  static constexpr int kTerms = Format == kBF16 ? 1 : 2;
  static constexpr int64_t kRows = 1, kMostSteps = kPieceSteps / kTerms;
  static constexpr int64_t kSize = Format == kF32 ? 4 : 2;
  const Matrix& w;

  void fill(int64_t row, int64_t step, int64_t count, uint16_t* words, int64_t r) const {
    const uint8_t* source = w.row(row);
    for (int64_t i = 0; i < count; ++i) {
      const int64_t begin = (step + i) * kPanelColumns;
      const int64_t left = w.k - begin < kPanelColumns ? w.k - begin : kPanelColumns;
      const __mmask32 mask = left == kPanelColumns ? 0xffffffffu : (1u << left) - 1;
      uint16_t* target = tile_row(words, i, r);
      if constexpr (Format == kBF16) {
        store_words(target, _mm512_maskz_loadu_epi16(mask, source + begin * kSize));
      } else {
        const __m512 low = load_16_floats<Format>(source + begin * kSize, static_cast<__mmask16>(mask));
        const __m512 high = load_16_floats<Format>(source + (begin + 16) * kSize, static_cast<__mmask16>(mask >> 16));
        const __m512i first = to_words(low, high);
        store_words(target, first);
        store_words(target + kPieceWords / 2, rest_of(low, high, first));
      }
    }
  }
};

// Four lines [16 rows][4 codes] → 16 codes of row 4·l + j in lane l of rows[j].
AUTOPLACE_INLINE void turn_lines(const uint8_t* lines, __m512i* rows) {
  __m512i v[4];
  for (int i = 0; i < 4; ++i) v[i] = _mm512_loadu_si512(lines + 64 * i);
  const __m512i low = _mm512_unpacklo_epi32(v[0], v[1]), high = _mm512_unpackhi_epi32(v[0], v[1]);
  const __m512i low2 = _mm512_unpacklo_epi32(v[2], v[3]), high2 = _mm512_unpackhi_epi32(v[2], v[3]);
  rows[0] = _mm512_unpacklo_epi64(low, low2);
  rows[1] = _mm512_unpackhi_epi64(low, low2);
  rows[2] = _mm512_unpacklo_epi64(high, high2);
  rows[3] = _mm512_unpackhi_epi64(high, high2);
}

template <int Bits>
struct MarlinRowSource {
  static constexpr int kTerms = 1;
  static constexpr int64_t kRows = 16;  // those beyond the last are there, as zeros
  static constexpr int64_t kMostSteps = kPieceSteps;
  const Matrix& w;

  void fill(int64_t row, int64_t step, int64_t count, uint16_t* words, int64_t r) const {
    const MarlinShape shape = marlin_shape(w.format, w.n, w.k);
    const int64_t tile = row / kTileRows;
    constexpr int64_t kStepBytes = kPanelColumns * kTileRows * Bits / 8;
    const uint8_t* codes = w.data + tile * shape.tile_bytes() + step * kStepBytes;
    const uint8_t* scales = w.data + shape.code_bytes() + tile * shape.groups() * kTileRows * 2;
    for (int64_t i = 0; i < count; ++i) {
      const int64_t group = (step + i) * kPanelColumns / kMarlinGroup;
      fill_step(codes + i * kStepBytes, scales + group * kTileRows * 2, tile_row(words, i, r));
    }
  }

  static AUTOPLACE_INLINE void fill_step(const uint8_t* codes, const uint8_t* scales, uint16_t* target) {
    alignas(64) uint8_t rows[Bits / 4][4][4][16];  // [half of the step][j][l]
    for (int half = 0; half < Bits / 4; ++half) {
      __m512i turned[4];
      turn_lines(codes + half * 256, turned);
      for (int j = 0; j < 4; ++j) _mm512_store_si512(rows[half][j], turned[j]);
    }
    for (int r = 0; r < 16; ++r) {
      const float scale = bfloat_to_float(load_u16(scales + 2 * r));
      const float min = Bits == 4 ? 8.0f * scale : 0.0f;
      const __m128i first = load128(rows[0][r % 4][r / 4]), second = load128(rows[Bits / 8][r % 4][r / 4]);
      const __m256i ordered = Bits == 4 ? nibbles_in_order(first) : _mm256_set_m128i(second, first);
      store_words(target + r * kPanelColumns, scaled_words<Bits == 8>(ordered, &scale, &min, 0));
    }
  }

  // A byte's low nibble is k = 8·s + j, its high one k = 8·s + 4 + j.
  static AUTOPLACE_INLINE __m256i nibbles_in_order(__m128i packed) {
    const __m128i low = _mm_and_si128(packed, _mm_set1_epi8(15));
    const __m128i high = _mm_and_si128(_mm_srli_epi16(packed, 4), _mm_set1_epi8(15));
    return _mm256_set_m128i(_mm_unpackhi_epi32(low, high), _mm_unpacklo_epi32(low, high));
  }
};

// Rows [first, first + num_rows) of 32; the others are zero.
template <class Source>
inline void fill_tiles(const Source& source, int64_t first, int64_t num_rows, int64_t step, int64_t count,
                       uint16_t* words) {
  int64_t r = 0;
  for (; r < num_rows; r += Source::kRows) source.fill(first + r, step, count, words, r);
  for (; r < kRowStep; ++r) {
    for (int64_t i = 0; i < count; ++i) {
      for (int term = 0; term < Source::kTerms; ++term) {
        store_words(tile_row(words, i, r) + term * (kPieceWords / 2), _mm512_setzero_si512());
      }
    }
  }
}

}  // namespace
}  // namespace autoplace

#endif  // AUTOPLACE_SIMD_AMX_DECODE_HPP_
