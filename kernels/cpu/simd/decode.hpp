// A decoder per format: 256 weights as eight vectors of byte codes in their natural order, and scales.
//
//   weight = scale · (code - kOffset) - min,  a scale for each 16 or 32 weights
//   codes(b, emit)   calls emit(Index<i>, codes of weights [32·i, 32·i + 32)) for i = 0 … 7
//   scales(b, s, m)  fills 8 or 16 scales, and mins where kHasMin
// kSigned: the codes are int8; otherwise they are at most kMaxCode. Formats with blocks of 32 are seen
// as eight blocks at a time.
#ifndef AUTOPLACE_SIMD_DECODE_HPP_
#define AUTOPLACE_SIMD_DECODE_HPP_

#include "../scalar_decode.hpp"
#include "primitives.hpp"

namespace autoplace {
namespace {

template <int Format>
struct Decoder;

AUTOPLACE_INLINE __m256 bytes_to_floats(__m128i bytes) {
  return _mm256_cvtepi32_ps(_mm256_cvtepu8_epi32(bytes));
}
AUTOPLACE_INLINE __m256 signed_bytes_to_floats(__m128i bytes) {
  return _mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(bytes));
}
AUTOPLACE_INLINE __m256i low_nibbles(__m256i v) { return _mm256_and_si256(v, _mm256_set1_epi8(15)); }
AUTOPLACE_INLINE __m256i high_nibbles(__m256i v) {
  return _mm256_and_si256(_mm256_srli_epi16(v, 4), _mm256_set1_epi8(15));
}

// Moves bit `From` of every byte (or the bits under `mask` after the move) to bit `To`.
template <int From, int To>
AUTOPLACE_INLINE __m256i move_bits(__m256i v, char mask) {
  const __m256i m = _mm256_set1_epi8(mask);
  if constexpr (From < To) return _mm256_and_si256(_mm256_slli_epi16(v, To - From), m);
  if constexpr (From > To) return _mm256_and_si256(_mm256_srli_epi16(v, From - To), m);
  return _mm256_and_si256(v, m);
}

// 16 bytes of nibbles: the low ones are the first 16 codes.
AUTOPLACE_INLINE __m256i expand_nibbles(const uint8_t* qs) {
  const __m256i twice = _mm256_broadcastsi128_si256(load128(qs));
  return low_nibbles(_mm256_srlv_epi32(twice, _mm256_setr_epi32(0, 0, 0, 0, 4, 4, 4, 4)));
}

AUTOPLACE_INLINE __m256i look_up(const int8_t* values, __m256i index) {
  return _mm256_shuffle_epi8(_mm256_broadcastsi128_si256(load128(values)), index);
}

// Adds 16 to the codes, below 16, whose bit is set in the 32 bits at `qh`.
AUTOPLACE_INLINE __m256i add_fifth_bits(__m256i codes, const uint8_t* qh) {
#if AUTOPLACE_VNNI
  return _mm256_mask_add_epi8(codes, load_u32(qh), codes, _mm256_set1_epi8(16));
#else
  const __m256i spread = _mm256_setr_epi64x(0, 0x0101010101010101, 0x0202020202020202, 0x0303030303030303);
  const __m256i bit = _mm256_set1_epi64x(static_cast<int64_t>(0x8040201008040201ull));
  const __m256i bytes = _mm256_shuffle_epi8(_mm256_set1_epi32(static_cast<int>(load_u32(qh))), spread);
  const __m256i set = _mm256_cmpeq_epi8(_mm256_and_si256(bytes, bit), bit);
  return _mm256_or_si256(codes, _mm256_and_si256(set, _mm256_set1_epi8(16)));
#endif
}

#if AUTOPLACE_VNNI
// Which 16-bit word of which 64-byte piece holds byte i·Stride (and, where that is even, the byte after it),
// for i = 0 … 7. The last piece ends where the eight blocks end.
template <int Stride>
struct WordPlan {
  static constexpr int kPieces = 7 * Stride / 64 + 1;
  int offset[kPieces] = {};
  uint8_t mask[kPieces] = {};
  alignas(16) int16_t index[kPieces][8] = {};

  constexpr WordPlan() {
    for (int piece = 0; piece < kPieces; ++piece) {
      const int latest = 8 * Stride / 2 * 2 - 64;
      offset[piece] = 64 * piece < latest ? 64 * piece : latest;
      for (int i = 0; i < 8; ++i) {
        if (i * Stride / 64 != piece) continue;
        mask[piece] = static_cast<uint8_t>(mask[piece] | 1 << i);
        index[piece][i] = static_cast<int16_t>((i * Stride - offset[piece]) / 2);
      }
    }
  }
};
#endif

// The 16-bit words that hold byte i·Stride: eight blocks' first bytes.
template <int Stride>
AUTOPLACE_INLINE __m128i gather_words(const uint8_t* b) {
#if AUTOPLACE_VNNI
  static constexpr WordPlan<Stride> kPlan;
  __m512i words = _mm512_setzero_si512();
  unroll<WordPlan<Stride>::kPieces>([&](auto piece) AUTOPLACE_LAMBDA_INLINE {
    constexpr int kPiece = piece.value;
    const __m512i index = _mm512_castsi128_si512(load128(kPlan.index[kPiece]));
    const __m512i source = _mm512_loadu_si512(b + kPlan.offset[kPiece]);
    words = _mm512_mask_permutexvar_epi16(words, kPlan.mask[kPiece], index, source);
  });
  return _mm512_castsi512_si128(words);
#else
  const auto at = [b](int i) { return static_cast<short>(load_u16(b + i * Stride / 2 * 2)); };
  return _mm_setr_epi16(at(0), at(1), at(2), at(3), at(4), at(5), at(6), at(7));
#endif
}

template <int Stride>
AUTOPLACE_INLINE __m256 gather_halves(const uint8_t* b) {
  return _mm256_cvtph_ps(gather_words<Stride>(b));
}

AUTOPLACE_INLINE __m256 negate(__m256 v) { return _mm256_xor_ps(v, _mm256_set1_ps(-0.0f)); }

// What the formats with blocks of 32 share: a float16 scale at the front of each block. `block(b)` gives
// the codes of one, `block_scale(b)` its scale.
template <class Self, int Bytes>
struct Blocks32 {
  static constexpr int kBlock = 32, kBytes = Bytes, kScaleGroup = 32;
  static constexpr bool kSigned = false, kHasMin = false;
  static constexpr int kOffset = 0, kMaxCode = 15;
  static AUTOPLACE_INLINE float block_scale(const uint8_t* b) { return load_f16(b); }
  static AUTOPLACE_INLINE void scales(const uint8_t* b, __m256* s, __m256*) { s[0] = gather_halves<Bytes>(b); }
  template <class Emit>
  static AUTOPLACE_INLINE void codes(const uint8_t* b, Emit&& emit) {
    unroll<8>([&](auto i) AUTOPLACE_LAMBDA_INLINE { emit(i, Self::block(b + i.value * Bytes)); });
  }
};

template <>
struct Decoder<kQ4_0> : Blocks32<Decoder<kQ4_0>, 18> {
  static constexpr int kOffset = 8;
  static AUTOPLACE_INLINE __m256i block(const uint8_t* b) { return expand_nibbles(b + 2); }
};

template <>
struct Decoder<kQ4_1> : Blocks32<Decoder<kQ4_1>, 20> {
  static constexpr bool kHasMin = true;
  static AUTOPLACE_INLINE void scales(const uint8_t* b, __m256* s, __m256* m) {
    s[0] = gather_halves<kBytes>(b);
    m[0] = negate(gather_halves<kBytes>(b + 2));
  }
  static AUTOPLACE_INLINE __m256i block(const uint8_t* b) { return expand_nibbles(b + 4); }
};

template <>
struct Decoder<kQ5_0> : Blocks32<Decoder<kQ5_0>, 22> {
  static constexpr int kOffset = 16, kMaxCode = 31;
  static AUTOPLACE_INLINE __m256i block(const uint8_t* b) { return add_fifth_bits(expand_nibbles(b + 6), b + 2); }
};

template <>
struct Decoder<kQ5_1> : Blocks32<Decoder<kQ5_1>, 24> {
  static constexpr bool kHasMin = true;
  static constexpr int kMaxCode = 31;
  static AUTOPLACE_INLINE void scales(const uint8_t* b, __m256* s, __m256* m) {
    s[0] = gather_halves<kBytes>(b);
    m[0] = negate(gather_halves<kBytes>(b + 2));
  }
  static AUTOPLACE_INLINE __m256i block(const uint8_t* b) { return add_fifth_bits(expand_nibbles(b + 8), b + 4); }
};

template <>
struct Decoder<kQ8_0> : Blocks32<Decoder<kQ8_0>, 34> {
  static constexpr bool kSigned = true;
  static constexpr int kMaxCode = 127;
  static AUTOPLACE_INLINE __m256i block(const uint8_t* b) { return load256(b + 2); }
};

template <>
struct Decoder<kIQ4_NL> : Blocks32<Decoder<kIQ4_NL>, 18> {
  static constexpr bool kSigned = true;
  static AUTOPLACE_INLINE __m256i block(const uint8_t* b) { return look_up(kIq4Values, expand_nibbles(b + 2)); }
};

template <>
struct Decoder<kMXFP4> : Blocks32<Decoder<kMXFP4>, 17> {
  static constexpr bool kSigned = true;
  static AUTOPLACE_INLINE float block_scale(const uint8_t* b) { return e8m0_half(b[0]); }
  static AUTOPLACE_INLINE void scales(const uint8_t* b, __m256* s, __m256*) {
    const __m256i words = _mm256_cvtepu16_epi32(gather_words<kBytes>(b));
    const __m256i bytes = _mm256_srlv_epi32(words, _mm256_setr_epi32(0, 8, 0, 8, 0, 8, 0, 8));
    const __m256i e = _mm256_and_si256(bytes, _mm256_set1_epi32(255));
    const __m256i normal = _mm256_slli_epi32(_mm256_sub_epi32(e, _mm256_set1_epi32(1)), 23);
    const __m256i denormal = _mm256_sllv_epi32(_mm256_set1_epi32(0x00200000), e);
    const __m256i is_normal = _mm256_cmpgt_epi32(e, _mm256_set1_epi32(1));
    s[0] = _mm256_castsi256_ps(_mm256_blendv_epi8(denormal, normal, is_normal));
  }
  static AUTOPLACE_INLINE __m256i block(const uint8_t* b) { return look_up(kMxfp4Values, expand_nibbles(b + 1)); }
};

// The 6-bit scales and mins that Q4_K and Q5_K share, eight each, in 12 bytes after d and dmin: the first
// four of each lie in the low bits of a byte, the others in a nibble and the two high bits of those bytes.
AUTOPLACE_INLINE void k_scales(const uint8_t* b, __m256* s, __m256* m) {
  const __m128i head = load128(b);
  const __m128i low_of = _mm_setr_epi8(4, 5, 6, 7, 12, 13, 14, 15, 8, 9, 10, 11, 12, 13, 14, 15);
  const __m128i high_of = _mm_setr_epi8(-1, -1, -1, -1, 4, 5, 6, 7, -1, -1, -1, -1, 8, 9, 10, 11);
  const __m128i low = _mm_srlv_epi32(_mm_shuffle_epi8(head, low_of), _mm_setr_epi32(0, 0, 0, 4));
  const __m128i high = _mm_srli_epi16(_mm_shuffle_epi8(head, high_of), 2);
  const __m128i kept = _mm_and_si128(low, _mm_setr_epi32(0x3f3f3f3f, 0x0f0f0f0f, 0x3f3f3f3f, 0x0f0f0f0f));
  const __m128i packed = _mm_or_si128(kept, _mm_and_si128(high, _mm_set1_epi8(0x30)));
  const __m128 d = _mm_cvtph_ps(head);  // d and dmin
  s[0] = _mm256_mul_ps(_mm256_broadcastss_ps(d), bytes_to_floats(packed));
  m[0] = _mm256_mul_ps(_mm256_broadcastss_ps(_mm_movehdup_ps(d)), bytes_to_floats(_mm_srli_si128(packed, 8)));
}

template <>
struct Decoder<kQ4_K> {
  static constexpr int kBlock = 256, kBytes = 144, kScaleGroup = 32, kOffset = 0, kMaxCode = 15;
  static constexpr bool kSigned = false, kHasMin = true;
  static AUTOPLACE_INLINE void scales(const uint8_t* b, __m256* s, __m256* m) { k_scales(b, s, m); }
  template <class Emit>
  static AUTOPLACE_INLINE void codes(const uint8_t* b, Emit&& emit) {
    unroll<4>([&](auto j) {
      const __m256i v = load256(b + 16 + 32 * j.value);
      emit(Index<2 * j.value>{}, low_nibbles(v));
      emit(Index<2 * j.value + 1>{}, high_nibbles(v));
    });
  }
};

template <>
struct Decoder<kQ5_K> {
  static constexpr int kBlock = 256, kBytes = 176, kScaleGroup = 32, kOffset = 0, kMaxCode = 31;
  static constexpr bool kSigned = false, kHasMin = true;
  static AUTOPLACE_INLINE void scales(const uint8_t* b, __m256* s, __m256* m) { k_scales(b, s, m); }
  template <class Emit>
  static AUTOPLACE_INLINE void codes(const uint8_t* b, Emit&& emit) {
    const __m256i high = load256(b + 16);
    unroll<4>([&](auto j) {
      constexpr int kFirst = 2 * j.value;
      const __m256i v = load256(b + 48 + 32 * j.value);
      emit(Index<kFirst>{}, _mm256_or_si256(low_nibbles(v), move_bits<kFirst, 4>(high, 16)));
      emit(Index<kFirst + 1>{}, _mm256_or_si256(high_nibbles(v), move_bits<kFirst + 1, 4>(high, 16)));
    });
  }
};

template <>
struct Decoder<kQ6_K> {
  static constexpr int kBlock = 256, kBytes = 210, kScaleGroup = 16, kOffset = 32, kMaxCode = 63;
  static constexpr bool kSigned = false, kHasMin = false;
  static AUTOPLACE_INLINE void scales(const uint8_t* b, __m256* s, __m256*) {
    const __m256 d = _mm256_set1_ps(load_f16(b + 208));
    const __m128i packed = load128(b + 192);
    s[0] = _mm256_mul_ps(d, signed_bytes_to_floats(packed));
    s[1] = _mm256_mul_ps(d, signed_bytes_to_floats(_mm_srli_si128(packed, 8)));
  }
  template <class Emit>
  static AUTOPLACE_INLINE void codes(const uint8_t* b, Emit&& emit) {
    unroll<2>([&](auto half) {
      constexpr int kFirst = 4 * half.value;
      const __m256i low0 = load256(b + 64 * half.value);
      const __m256i low1 = load256(b + 64 * half.value + 32);
      const __m256i high = load256(b + 128 + 32 * half.value);
      emit(Index<kFirst>{}, _mm256_or_si256(low_nibbles(low0), move_bits<0, 4>(high, 48)));
      emit(Index<kFirst + 1>{}, _mm256_or_si256(low_nibbles(low1), move_bits<2, 4>(high, 48)));
      emit(Index<kFirst + 2>{}, _mm256_or_si256(high_nibbles(low0), move_bits<4, 4>(high, 48)));
      emit(Index<kFirst + 3>{}, _mm256_or_si256(high_nibbles(low1), move_bits<6, 4>(high, 48)));
    });
  }
};

template <>
struct Decoder<kQ3_K> {
  static constexpr int kBlock = 256, kBytes = 110, kScaleGroup = 16, kOffset = 4, kMaxCode = 7;
  static constexpr bool kSigned = false, kHasMin = false;
  static AUTOPLACE_INLINE void scales(const uint8_t* b, __m256* s, __m256*) {
    const uint32_t low0 = load_u32(b + 96), low1 = load_u32(b + 100), high = load_u32(b + 104);
    const auto six = [high](uint32_t low, int shift) {
      return static_cast<int>((low & 0x0f0f0f0fu) | (((high >> shift) & 0x03030303u) << 4));
    };
    const __m128i packed = _mm_setr_epi32(six(low0, 0), six(low1, 2), six(low0 >> 4, 4), six(low1 >> 4, 6));
    const __m128i centred = _mm_sub_epi8(packed, _mm_set1_epi8(32));
    const __m256 d = _mm256_set1_ps(load_f16(b + 108));
    s[0] = _mm256_mul_ps(d, signed_bytes_to_floats(centred));
    s[1] = _mm256_mul_ps(d, signed_bytes_to_floats(_mm_srli_si128(centred, 8)));
  }
  template <class Emit>
  static AUTOPLACE_INLINE void codes(const uint8_t* b, Emit&& emit) {
    const __m256i high = load256(b);
    unroll<8>([&](auto i) {
      constexpr int kShift = 2 * (i.value % 4);
      const __m256i v = load256(b + 32 + 32 * (i.value / 4));
      emit(i, _mm256_or_si256(move_bits<kShift, 0>(v, 3), move_bits<i.value, 2>(high, 4)));
    });
  }
};

template <>
struct Decoder<kQ2_K> {
  static constexpr int kBlock = 256, kBytes = 84, kScaleGroup = 16, kOffset = 0, kMaxCode = 3;
  static constexpr bool kSigned = false, kHasMin = true;
  static AUTOPLACE_INLINE void scales(const uint8_t* b, __m256* s, __m256* m) {
    const __m256 d = _mm256_set1_ps(load_f16(b + 80)), dmin = _mm256_set1_ps(load_f16(b + 82));
    const __m128i packed = load128(b), mask = _mm_set1_epi8(15);
    const __m128i scale = _mm_and_si128(packed, mask);
    const __m128i min = _mm_and_si128(_mm_srli_epi16(packed, 4), mask);
    s[0] = _mm256_mul_ps(d, bytes_to_floats(scale));
    s[1] = _mm256_mul_ps(d, bytes_to_floats(_mm_srli_si128(scale, 8)));
    m[0] = _mm256_mul_ps(dmin, bytes_to_floats(min));
    m[1] = _mm256_mul_ps(dmin, bytes_to_floats(_mm_srli_si128(min, 8)));
  }
  template <class Emit>
  static AUTOPLACE_INLINE void codes(const uint8_t* b, Emit&& emit) {
    unroll<8>([&](auto i) {
      const __m256i v = load256(b + 16 + 32 * (i.value / 4));
      emit(i, move_bits<2 * (i.value % 4), 0>(v, 3));
    });
  }
};

template <>
struct Decoder<kIQ4_XS> {
  static constexpr int kBlock = 256, kBytes = 136, kScaleGroup = 32, kOffset = 0, kMaxCode = 127;
  static constexpr bool kSigned = true, kHasMin = false;
  static AUTOPLACE_INLINE void scales(const uint8_t* b, __m256* s, __m256*) {
    const __m256i low_shift = _mm256_setr_epi32(0, 4, 8, 12, 16, 20, 24, 28);
    const __m256i high_shift = _mm256_setr_epi32(0, 2, 4, 6, 8, 10, 12, 14);
    const __m256i low = _mm256_srlv_epi32(_mm256_set1_epi32(static_cast<int>(load_u32(b + 4))), low_shift);
    const __m256i high = _mm256_srlv_epi32(_mm256_set1_epi32(load_u16(b + 2)), high_shift);
    const __m256i six = _mm256_or_si256(_mm256_and_si256(low, _mm256_set1_epi32(15)),
                                        _mm256_slli_epi32(_mm256_and_si256(high, _mm256_set1_epi32(3)), 4));
    const __m256i centred = _mm256_sub_epi32(six, _mm256_set1_epi32(32));
    s[0] = _mm256_mul_ps(_mm256_set1_ps(load_f16(b)), _mm256_cvtepi32_ps(centred));
  }
  template <class Emit>
  static AUTOPLACE_INLINE void codes(const uint8_t* b, Emit&& emit) {
    unroll<8>([&](auto i) { emit(i, look_up(kIq4Values, expand_nibbles(b + 8 + 16 * i.value))); });
  }
};

// Where the 256 weights from superblock `index` of a row lie; a row's last ones, where fewer remain,
// are copied beside zeros, so that decoders never read past a row.
template <class D>
struct RowReader {
  const uint8_t* row;
  int64_t k;
  alignas(64) uint8_t tail[D::kBlock == 32 ? 8 * D::kBytes + 32 : 1];

  AUTOPLACE_INLINE const uint8_t* superblock(int64_t index) {
    constexpr int64_t kBytes = kSuperBlock / D::kBlock * D::kBytes;
    const uint8_t* source = row + index * kBytes;
    if constexpr (D::kBlock == 32) {
      const int64_t left = k - index * kSuperBlock;
      if (left < kSuperBlock) {
        std::memset(tail, 0, sizeof(tail));
        std::memcpy(tail, source, static_cast<size_t>(left / 32 * D::kBytes));
        return tail;
      }
    }
    return source;
  }
};

}  // namespace
}  // namespace autoplace

#endif  // AUTOPLACE_SIMD_DECODE_HPP_
