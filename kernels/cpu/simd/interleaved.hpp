// Products with interleaved rows (interleave.hpp): a vector runs across rows, scales and codes are read as
// they lie, and activations are broadcast four at a time.
//
// A source stands for one unit: a block of 16 rows, `kVectorRows` of them from `half`. Its groups of weights,
// each with its own scale, are visited as `kParts` parts of `kGroups` groups:
//   group(part, h)          the group's number within the block
//   line<h, step>(part)     codes of its weights [4·step, 4·step + 4)
//   scale[g], min[g]        of each group g
#ifndef AUTOPLACE_SIMD_INTERLEAVED_HPP_
#define AUTOPLACE_SIMD_INTERLEAVED_HPP_

#include "../interleave.hpp"
#include "gemm.hpp"

namespace autoplace {
namespace {

// ---- A unit's pieces

template <int Format>
struct Unit {
  static constexpr BlockPieces kPieces = block_pieces(Format);
  static constexpr int kHalvesAt = kPieces.num_bytes * 16;
  static constexpr int kWordsAt = kHalvesAt + kPieces.num_halves * 32;
  static constexpr int kBytes = kWordsAt + kPieces.num_words * 64;

  const uint8_t* data;
  int64_t half;

  AUTOPLACE_INLINE Floats halves(int index) const {
    return load_halves(data + kHalvesAt + index * 32 + half * 2);
  }
  AUTOPLACE_INLINE Ints halves_as_ints(int index) const {
    return load_words_as_ints(data + kHalvesAt + index * 32 + half * 2);
  }
  AUTOPLACE_INLINE Ints words(int64_t index) const { return load_ints(data + kWordsAt + index * 64 + half * 4); }
};

template <int Groups, bool Mins>
struct ScaleTable {
  Floats scale[Groups];
  Floats min[Mins ? Groups : 1];
};

template <int N>
AUTOPLACE_INLINE Ints byte_of(Ints words) {
  return and_ints(shift_right<8 * N>(words), all_ints(255));
}

// A byte of every word as a number of its own.
template <int N, bool Signed>
AUTOPLACE_INLINE Ints number_of(Ints words) {
  if constexpr (Signed) return shift_right_signed<24>(shift_left<24 - 8 * N>(words));
  return byte_of<N>(words);
}

// Two bits of every byte, moved from `From` to bit `To`, for codes that are put together.
template <int From, int To>
AUTOPLACE_INLINE Ints bits_to(Ints v, char mask) {
  if constexpr (From < To) return and_ints(shift_left<To - From>(v), all_bytes(mask));
  if constexpr (From > To) return and_ints(shift_right<From - To>(v), all_bytes(mask));
  return and_ints(v, all_bytes(mask));
}

// ---- Formats

template <int Format>
struct Interleaved;

// Formats whose groups have integer scales, and mins, that share the block's: packed_scales() reads them four to
// a word, group 4·i + j as byte j of word i, `kScaleBias` too large.
struct IntegerScales {
  static constexpr bool kIntegerScales = true, kSignedScales = false;
  static constexpr int kScaleBias = 0;
};

template <class F, class U>
AUTOPLACE_INLINE void read_integer_scales(const U& unit, Floats* scale, Floats* min) {
  constexpr int kWords = F::kBlock / F::kScaleGroup / 4;
  Ints scales[kWords], mins[kWords];
  F::packed_scales(unit, scales, mins);
  const Floats d = unit.halves(0);
  const Floats dmin = F::kHasMin ? unit.halves(1) : d;
  for (int word = 0; word < kWords; ++word) {
    unroll<4>([&](auto i) AUTOPLACE_LAMBDA_INLINE {
      const Ints value = number_of<i.value, F::kSignedScales>(scales[word]);
      scale[4 * word + i.value] = mul(d, to_floats(sub_ints(value, all_ints(F::kScaleBias))));
      if constexpr (F::kHasMin) min[4 * word + i.value] = mul(dmin, to_floats(byte_of<i.value>(mins[word])));
    });
  }
}

// Blocks of 32 weights: one scale, one group.
template <int Format>
struct Interleaved32 {
  static constexpr int kBlock = 32, kScaleGroup = 32, kParts = 1, kGroups = 1;
  static constexpr int kOffset = 0, kMaxCode = 15;
  static constexpr bool kSigned = false, kHasMin = false, kIntegerScales = false;

  static AUTOPLACE_INLINE int64_t group(int64_t, int) { return 0; }
  static AUTOPLACE_INLINE void read_scales(const Unit<Format>& unit, Floats* scale, Floats*) {
    scale[0] = unit.halves(0);
  }
  // Nibbles from word `First` on: the low ones are the first 16 weights.
  template <int First, int Step>
  static AUTOPLACE_INLINE Ints nibbles(const Unit<Format>& unit) {
    const Ints v = unit.words(First + Step % 4);
    return Step < 4 ? low4(v) : high4(v);
  }
};

// Those whose second half is added to every weight.
template <int Format>
struct WithMin32 : Interleaved32<Format> {
  static constexpr bool kHasMin = true;
  static AUTOPLACE_INLINE void read_scales(const Unit<Format>& unit, Floats* scale, Floats* min) {
    scale[0] = unit.halves(0);
    min[0] = sub_mul(zero_floats(), unit.halves(1), all(1.0f));
  }
};

template <>
struct Interleaved<kQ4_0> : Interleaved32<kQ4_0> {
  static constexpr int kOffset = 8;
  template <int, int Step>
  static AUTOPLACE_INLINE Ints line(const Unit<kQ4_0>& unit, int64_t) {
    return nibbles<0, Step>(unit);
  }
};

template <>
struct Interleaved<kQ4_1> : WithMin32<kQ4_1> {
  template <int, int Step>
  static AUTOPLACE_INLINE Ints line(const Unit<kQ4_1>& unit, int64_t) {
    return nibbles<0, Step>(unit);
  }
};

// The fifth bits of four weights: bit `Step` of every byte of the word before the nibbles.
template <int Step, class U>
AUTOPLACE_INLINE Ints fifth_bits_of(const U& unit) {
  return bits_to<Step, 4>(unit.words(0), 16);
}

template <>
struct Interleaved<kQ5_0> : Interleaved32<kQ5_0> {
  static constexpr int kOffset = 16, kMaxCode = 31;
  template <int, int Step>
  static AUTOPLACE_INLINE Ints line(const Unit<kQ5_0>& unit, int64_t) {
    return or_ints(nibbles<1, Step>(unit), fifth_bits_of<Step>(unit));
  }
};

template <>
struct Interleaved<kQ5_1> : WithMin32<kQ5_1> {
  static constexpr int kMaxCode = 31;
  template <int, int Step>
  static AUTOPLACE_INLINE Ints line(const Unit<kQ5_1>& unit, int64_t) {
    return or_ints(nibbles<1, Step>(unit), fifth_bits_of<Step>(unit));
  }
};

// Signed codes, kept unsigned by an offset of 128 where the products want that (VNNI).
constexpr int kSignedOffset = AUTOPLACE_VNNI ? 128 : 0;

template <>
struct Interleaved<kQ8_0> : Interleaved32<kQ8_0> {
  static constexpr int kOffset = kSignedOffset, kMaxCode = 127;
  static constexpr bool kSigned = !AUTOPLACE_VNNI;
  template <int, int Step>
  static AUTOPLACE_INLINE Ints line(const Unit<kQ8_0>& unit, int64_t) {
    const Ints codes = unit.words(Step);
    return AUTOPLACE_VNNI ? codes : flip_sign_bit(codes);
  }
};

AUTOPLACE_INLINE Ints look_up_codes(const int8_t* values, Ints nibbles) {
  const __m128i table = load128(values);
  const __m128i shifted = AUTOPLACE_VNNI ? _mm_xor_si128(table, _mm_set1_epi8(-128)) : table;
  return shuffle_bytes(shifted, nibbles);
}

template <int Format>
struct Codebook : Interleaved32<Format> {
  static constexpr int kOffset = kSignedOffset, kMaxCode = 127;
  static constexpr bool kSigned = !AUTOPLACE_VNNI;
};

template <>
struct Interleaved<kIQ4_NL> : Codebook<kIQ4_NL> {
  template <int, int Step>
  static AUTOPLACE_INLINE Ints line(const Unit<kIQ4_NL>& unit, int64_t) {
    return look_up_codes(kIq4Values, nibbles<0, Step>(unit));
  }
};

template <>
struct Interleaved<kMXFP4> : Codebook<kMXFP4> {
  static AUTOPLACE_INLINE void read_scales(const Unit<kMXFP4>& unit, Floats* scale, Floats*) {
    const Ints e = load_bytes_as_ints(unit.data + unit.half);
    const Ints normal = shift_left<23>(sub_ints(e, all_ints(1)));
    const Ints denormal = shift_left_by(all_ints(0x00200000), e);  // exponents 0 and 1
    scale[0] = as_floats(select_greater(e, all_ints(1), normal, denormal));
  }
  template <int, int Step>
  static AUTOPLACE_INLINE Ints line(const Unit<kMXFP4>& unit, int64_t) {
    return look_up_codes(kMxfp4Values, nibbles<0, Step>(unit));
  }
};

// Q4_K and Q5_K: pairs of groups, one in the low nibbles and one in the high ones of the same bytes. Scales and
// mins lie in the first three words, as in k_scales.
template <int Format>
struct PairsOfGroups : IntegerScales {
  static constexpr int kBlock = 256, kScaleGroup = 32, kParts = 4, kGroups = 2, kOffset = 0;
  static constexpr bool kSigned = false, kHasMin = true;
  static AUTOPLACE_INLINE int64_t group(int64_t part, int h) { return 2 * part + h; }
  static AUTOPLACE_INLINE void packed_scales(const Unit<Format>& unit, Ints* scales, Ints* mins) {
    const Ints p0 = unit.words(0), p1 = unit.words(1), p2 = unit.words(2);
    const Ints six = all_bytes(0x3f), four = all_bytes(0x0f), two = all_bytes(0x30);
    scales[0] = and_ints(p0, six);
    scales[1] = or_ints(and_ints(p2, four), and_ints(shift_right<2>(p0), two));
    mins[0] = and_ints(p1, six);
    mins[1] = or_ints(and_ints(shift_right<4>(p2), four), and_ints(shift_right<2>(p1), two));
  }
};

template <>
struct Interleaved<kQ4_K> : PairsOfGroups<kQ4_K> {
  static constexpr int kMaxCode = 15;
  template <int H, int Step>
  static AUTOPLACE_INLINE Ints line(const Unit<kQ4_K>& unit, int64_t part) {
    const Ints v = unit.words(3 + 8 * part + Step);
    return H == 0 ? low4(v) : high4(v);
  }
};

template <>
struct Interleaved<kQ5_K> : PairsOfGroups<kQ5_K> {
  static constexpr int kMaxCode = 31;
  template <int H, int Step>
  static AUTOPLACE_INLINE Ints line(const Unit<kQ5_K>& unit, int64_t part) {
    const Ints v = unit.words(11 + 8 * part + Step);
    const Ints fifth = bits_to<2 * (Step % 4) + H, 4>(unit.words(3 + 2 * part + Step / 4), 16);
    return or_ints(H == 0 ? low4(v) : high4(v), fifth);
  }
};

// Formats whose 16 scale groups are found by halves of 128 weights and of 16 bytes: part = 2·half + side.
struct SixteenGroups : IntegerScales {
  static constexpr int kBlock = 256, kScaleGroup = 16, kParts = 4, kGroups = 4, kOffset = 0;
  static constexpr bool kSigned = false, kHasMin = false;
  static AUTOPLACE_INLINE int64_t group(int64_t part, int h) { return part / 2 * 8 + part % 2 + 2 * h; }
};

template <>
struct Interleaved<kQ6_K> : SixteenGroups {
  static constexpr int kOffset = 32, kMaxCode = 63;
  static constexpr bool kSignedScales = true;
  static AUTOPLACE_INLINE void packed_scales(const Unit<kQ6_K>& unit, Ints* scales, Ints*) {
    for (int word = 0; word < 4; ++word) scales[word] = unit.words(48 + word);
  }
  template <int H, int Step>
  static AUTOPLACE_INLINE Ints line(const Unit<kQ6_K>& unit, int64_t part) {
    const int64_t half = part / 2, first = 4 * (part % 2) + Step;
    const Ints low = unit.words(16 * half + 8 * (H % 2) + first);
    const Ints high = unit.words(32 + 8 * half + first);
    return or_ints(H < 2 ? low4(low) : high4(low), bits_to<2 * H, 4>(high, 48));
  }
};

template <>
struct Interleaved<kQ2_K> : SixteenGroups {
  static constexpr int kMaxCode = 3;
  static constexpr bool kHasMin = true;
  static AUTOPLACE_INLINE void packed_scales(const Unit<kQ2_K>& unit, Ints* scales, Ints* mins) {
    for (int word = 0; word < 4; ++word) {
      scales[word] = low4(unit.words(word));
      mins[word] = high4(unit.words(word));
    }
  }
  template <int H, int Step>
  static AUTOPLACE_INLINE Ints line(const Unit<kQ2_K>& unit, int64_t part) {
    return bits_to<2 * H, 0>(unit.words(4 + 8 * (part / 2) + 4 * (part % 2) + Step), 3);
  }
};

template <>
struct Interleaved<kQ3_K> : SixteenGroups {
  static constexpr int kOffset = 4, kMaxCode = 7;
  static constexpr int kScaleBias = 32;
  static AUTOPLACE_INLINE void packed_scales(const Unit<kQ3_K>& unit, Ints* scales, Ints*) {
    const Ints low0 = unit.words(24), low1 = unit.words(25), high = unit.words(26);
    const Ints two = all_bytes(0x30);
    scales[0] = or_ints(low4(low0), and_ints(shift_left<4>(high), two));
    scales[1] = or_ints(low4(low1), and_ints(shift_left<2>(high), two));
    scales[2] = or_ints(high4(low0), and_ints(high, two));
    scales[3] = or_ints(high4(low1), and_ints(shift_right<2>(high), two));
  }
  // The third bit of weights 128·half + 32·H + l is bit 4·half + H of byte l.
  template <int H, int Step>
  static AUTOPLACE_INLINE Ints line(const Unit<kQ3_K>& unit, int64_t part) {
    const int64_t half = part / 2, first = 4 * (part % 2) + Step;
    const Ints low = bits_to<2 * H, 0>(unit.words(8 + 8 * half + first), 3);
    const Ints high = shift_right_by_count(unit.words(first), 4 * half);
    return or_ints(low, bits_to<H, 2>(high, 4));
  }
};

template <>
struct Interleaved<kIQ4_XS> {
  static constexpr int kBlock = 256, kScaleGroup = 32, kParts = 8, kGroups = 1;
  static constexpr int kOffset = kSignedOffset, kMaxCode = 127;
  static constexpr bool kSigned = !AUTOPLACE_VNNI, kHasMin = false, kIntegerScales = false;
  static AUTOPLACE_INLINE int64_t group(int64_t part, int) { return part; }
  static AUTOPLACE_INLINE void read_scales(const Unit<kIQ4_XS>& unit, Floats* scale, Floats*) {
    const Floats d = unit.halves(0);
    const Ints high = unit.halves_as_ints(1), low = unit.words(0);
    unroll<8>([&](auto i) AUTOPLACE_LAMBDA_INLINE {
      const Ints four = and_ints(shift_right<4 * i.value>(low), all_ints(15));
      const Ints two = and_ints(shift_left<4>(shift_right<2 * i.value>(high)), all_ints(48));
      scale[i.value] = mul(d, to_floats(sub_ints(or_ints(four, two), all_ints(32))));
    });
  }
  template <int, int Step>
  static AUTOPLACE_INLINE Ints line(const Unit<kIQ4_XS>& unit, int64_t part) {
    const Ints v = unit.words(1 + 4 * part + Step % 4);
    return look_up_codes(kIq4Values, Step < 4 ? low4(v) : high4(v));
  }
};

// ---- Products

template <class F, int T>
struct TokenPointers {
  const int8_t* q[T];
  const float* d[T];
  const float* sum[T];

  AUTOPLACE_INLINE TokenPointers(const Activation* const* x) {
    for (int t = 0; t < T; ++t) {
      q[t] = x[t]->q;
      d[t] = x[t]->d;
      sum[t] = F::kScaleGroup == 16 ? x[t]->sum16 : x[t]->sum32;
    }
  }
};

// total[t] += one unit times columns [unit · kBlock, …) of T tokens.
template <class F, int T, class U>
AUTOPLACE_INLINE void multiply_unit(const U& unit, int64_t index, const TokenPointers<F, T>& x, Floats* total) {
  constexpr int kPerBlock = F::kBlock / F::kScaleGroup;
  constexpr bool kLess = F::kHasMin || F::kOffset != 0;
  ScaleTable<kPerBlock, F::kHasMin> table;
  if constexpr (F::kIntegerScales) {
    read_integer_scales<F>(unit, table.scale, table.min);
  } else {
    F::read_scales(unit, table.scale, table.min);
  }
  const int8_t* q[T];
  constexpr int64_t kShare = U::kBytes * kVectorRows / kTileRows / F::kParts;
  const uint8_t* share = unit.data + unit.half * (U::kBytes / kTileRows);
  for (int64_t part = 0; part < F::kParts; ++part) {
    prefetch_ahead<kShare>(share + part * kShare);
    unroll<F::kGroups>([&](auto h) AUTOPLACE_LAMBDA_INLINE {
      const int64_t within = F::group(part, h.value), group = index * kPerBlock + within;
      Ints dots[T];
      for (int t = 0; t < T; ++t) {
        dots[t] = zero_ints();
        q[t] = x.q[t] + group * F::kScaleGroup;
      }
      const auto line = [&](auto step) AUTOPLACE_LAMBDA_INLINE {
        return F::template line<h.value, decltype(step)::value>(unit, part);
      };
      accumulate<T, F::kScaleGroup / 4, F::kSigned, F::kMaxCode>(q, line, dots);
      const Floats scale = table.scale[within];
      for (int t = 0; t < T; ++t) {
        const Floats scaled = mul(to_floats(dots[t]), all(x.d[t][group * F::kScaleGroup / kGroup]));
        total[t] = mul_add(scaled, scale, total[t]);
      }
      if constexpr (kLess) {
        const Floats min = F::kHasMin ? table.min[within] : mul(scale, all(static_cast<float>(F::kOffset)));
        for (int t = 0; t < T; ++t) total[t] = sub_mul(total[t], min, all(x.sum[t][group]));
      }
    });
  }
}

// out[t * 16 + r], for the strip of 16 rows from `first` and T tokens.
template <int Format, int T>
inline void multiply_strip(const uint8_t* strip, int64_t num_units, const Activation* const* x, float* out) {
  using F = Interleaved<Format>;
  const TokenPointers<F, T> tokens(x);
  for (int64_t half = 0; half < kTileRows; half += kVectorRows) {
    Floats total[T];
    for (int t = 0; t < T; ++t) total[t] = zero_floats();
    for (int64_t index = 0; index < num_units; ++index) {
      const Unit<Format> unit{strip + index * Unit<Format>::kBytes, half};
      multiply_unit<F, T>(unit, index, tokens, total);
    }
    for (int t = 0; t < T; ++t) store_floats(out + t * kTileRows + half, total[t]);
  }
}

}  // namespace
}  // namespace autoplace

#endif  // AUTOPLACE_SIMD_INTERLEAVED_HPP_
