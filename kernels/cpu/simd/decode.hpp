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
  const __m128i v = load128(qs);
  return low_nibbles(_mm256_set_m128i(_mm_srli_epi16(v, 4), v));
}

AUTOPLACE_INLINE __m256i look_up(const int8_t* values, __m256i index) {
  return _mm256_shuffle_epi8(_mm256_broadcastsi128_si256(load128(values)), index);
}

// 32 bits to the fifth bit (16) of 32 bytes.
AUTOPLACE_INLINE __m256i fifth_bits(const uint8_t* qh) {
#if defined(__AVX512BW__) && defined(__AVX512VL__)
  return _mm256_maskz_set1_epi8(load_u32(qh), 16);
#else
  const __m256i spread = _mm256_setr_epi64x(0, 0x0101010101010101, 0x0202020202020202, 0x0303030303030303);
  const __m256i bit = _mm256_set1_epi64x(static_cast<int64_t>(0x8040201008040201ull));
  const __m256i bytes = _mm256_shuffle_epi8(_mm256_set1_epi32(static_cast<int>(load_u32(qh))), spread);
  const __m256i set = _mm256_cmpeq_epi8(_mm256_and_si256(bytes, bit), bit);
  return _mm256_and_si256(set, _mm256_set1_epi8(16));
#endif
}

template <int Stride>
AUTOPLACE_INLINE __m256 gather_halves(const uint8_t* b) {
  auto at = [b](int i) { return static_cast<short>(load_u16(b + i * Stride)); };
  return _mm256_cvtph_ps(_mm_setr_epi16(at(0), at(1), at(2), at(3), at(4), at(5), at(6), at(7)));
}

AUTOPLACE_INLINE __m256 negate(__m256 v) { return _mm256_xor_ps(v, _mm256_set1_ps(-0.0f)); }

// What the formats with blocks of 32 share: a float16 scale at the front of each block.
template <int Bytes>
struct Blocks32 {
  static constexpr int kBlock = 32, kBytes = Bytes, kScaleGroup = 32;
  static constexpr bool kSigned = false, kHasMin = false;
  static constexpr int kOffset = 0, kMaxCode = 15;
  static AUTOPLACE_INLINE void scales(const uint8_t* b, __m256* s, __m256*) { s[0] = gather_halves<Bytes>(b); }
};

template <>
struct Decoder<kQ4_0> : Blocks32<18> {
  static constexpr int kOffset = 8;
  template <class Emit>
  static AUTOPLACE_INLINE void codes(const uint8_t* b, Emit&& emit) {
    unroll<8>([&](auto i) { emit(i, expand_nibbles(b + i.value * kBytes + 2)); });
  }
};

template <>
struct Decoder<kQ4_1> : Blocks32<20> {
  static constexpr bool kHasMin = true;
  static AUTOPLACE_INLINE void scales(const uint8_t* b, __m256* s, __m256* m) {
    s[0] = gather_halves<kBytes>(b);
    m[0] = negate(gather_halves<kBytes>(b + 2));
  }
  template <class Emit>
  static AUTOPLACE_INLINE void codes(const uint8_t* b, Emit&& emit) {
    unroll<8>([&](auto i) { emit(i, expand_nibbles(b + i.value * kBytes + 4)); });
  }
};

template <>
struct Decoder<kQ5_0> : Blocks32<22> {
  static constexpr int kOffset = 16, kMaxCode = 31;
  template <class Emit>
  static AUTOPLACE_INLINE void codes(const uint8_t* b, Emit&& emit) {
    unroll<8>([&](auto i) {
      const uint8_t* block = b + i.value * kBytes;
      emit(i, _mm256_or_si256(expand_nibbles(block + 6), fifth_bits(block + 2)));
    });
  }
};

template <>
struct Decoder<kQ5_1> : Blocks32<24> {
  static constexpr bool kHasMin = true;
  static constexpr int kMaxCode = 31;
  static AUTOPLACE_INLINE void scales(const uint8_t* b, __m256* s, __m256* m) {
    s[0] = gather_halves<kBytes>(b);
    m[0] = negate(gather_halves<kBytes>(b + 2));
  }
  template <class Emit>
  static AUTOPLACE_INLINE void codes(const uint8_t* b, Emit&& emit) {
    unroll<8>([&](auto i) {
      const uint8_t* block = b + i.value * kBytes;
      emit(i, _mm256_or_si256(expand_nibbles(block + 8), fifth_bits(block + 4)));
    });
  }
};

template <>
struct Decoder<kQ8_0> : Blocks32<34> {
  static constexpr bool kSigned = true;
  template <class Emit>
  static AUTOPLACE_INLINE void codes(const uint8_t* b, Emit&& emit) {
    unroll<8>([&](auto i) { emit(i, load256(b + i.value * kBytes + 2)); });
  }
};

template <>
struct Decoder<kIQ4_NL> : Blocks32<18> {
  static constexpr bool kSigned = true;
  template <class Emit>
  static AUTOPLACE_INLINE void codes(const uint8_t* b, Emit&& emit) {
    unroll<8>([&](auto i) { emit(i, look_up(kIq4Values, expand_nibbles(b + i.value * kBytes + 2))); });
  }
};

template <>
struct Decoder<kMXFP4> : Blocks32<17> {
  static constexpr bool kSigned = true;
  static AUTOPLACE_INLINE void scales(const uint8_t* b, __m256* s, __m256*) {
    const auto at = [b](int i) { return static_cast<int>(b[i * kBytes]); };
    const __m256i e = _mm256_setr_epi32(at(0), at(1), at(2), at(3), at(4), at(5), at(6), at(7));
    const __m256i normal = _mm256_slli_epi32(_mm256_sub_epi32(e, _mm256_set1_epi32(1)), 23);
    const __m256i denormal = _mm256_sllv_epi32(_mm256_set1_epi32(0x00200000), e);
    const __m256i is_normal = _mm256_cmpgt_epi32(e, _mm256_set1_epi32(1));
    s[0] = _mm256_castsi256_ps(_mm256_blendv_epi8(denormal, normal, is_normal));
  }
  template <class Emit>
  static AUTOPLACE_INLINE void codes(const uint8_t* b, Emit&& emit) {
    unroll<8>([&](auto i) { emit(i, look_up(kMxfp4Values, expand_nibbles(b + i.value * kBytes + 1))); });
  }
};

// The 6-bit scales and mins that Q4_K and Q5_K share, eight bytes each.
AUTOPLACE_INLINE void k_scales(const uint8_t* b, __m256* s, __m256* m) {
  const uint32_t p0 = load_u32(b + 4), p1 = load_u32(b + 8), p2 = load_u32(b + 12);
  const uint32_t scale_low = p0 & 0x3f3f3f3fu;
  const uint32_t scale_high = (p2 & 0x0f0f0f0fu) | ((p0 >> 2) & 0x30303030u);
  const uint32_t min_low = p1 & 0x3f3f3f3fu;
  const uint32_t min_high = ((p2 >> 4) & 0x0f0f0f0fu) | ((p1 >> 2) & 0x30303030u);
  const auto pair = [](uint32_t low, uint32_t high) {
    return _mm_cvtsi64_si128(static_cast<int64_t>(low | (uint64_t{high} << 32)));
  };
  s[0] = _mm256_mul_ps(_mm256_set1_ps(load_f16(b)), bytes_to_floats(pair(scale_low, scale_high)));
  m[0] = _mm256_mul_ps(_mm256_set1_ps(load_f16(b + 2)), bytes_to_floats(pair(min_low, min_high)));
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
