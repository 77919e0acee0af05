// One token times interleaved rows where there is no VNNI: 16 rows at a time, two vectors that share what is
// broadcast of x.
//
// A group's products are summed in 16 bits. Codes with an offset begin at -offset · Σq, which keeps the sum
// within 16 bits (in between it may wrap around). Its two halves are added by the instruction that also
// multiplies them with the group's integer scale, so that a group costs one conversion to float.
#ifndef AUTOPLACE_SIMD_INTERLEAVED_ONE_HPP_
#define AUTOPLACE_SIMD_INTERLEAVED_ONE_HPP_

#include "interleaved.hpp"

#if !AUTOPLACE_VNNI

namespace autoplace {
namespace {

constexpr int kVectors = kTileRows / kVectorRows;

// Groups whose 16-bit sums would overflow, or whose codes are signed, are left to multiply_unit.
template <class F>
constexpr bool sums_fit() {
  constexpr int kReach = F::kOffset > F::kMaxCode - F::kOffset ? F::kOffset : F::kMaxCode - F::kOffset;
  return !F::kSigned && 2 * 127 * kReach * (F::kScaleGroup / 4) <= 32767 * (F::kOffset == 0 ? 2 : 1);
}

// For byte n of every word of 32 bits: where it goes to become two 16-bit numbers, in their low halves, or in
// their high halves.
struct Twice {
  alignas(32) int8_t low[4][32], high[4][32];

  constexpr Twice() : low(), high() {
    for (int n = 0; n < 4; ++n) {
      for (int i = 0; i < 32; ++i) {
        const int8_t byte = static_cast<int8_t>(i % 16 / 4 * 4 + n), none = -1;
        low[n][i] = i % 2 == 0 ? byte : none;
        high[n][i] = i % 2 == 0 ? none : byte;
      }
    }
  }
};
constexpr Twice kTwice;

AUTOPLACE_INLINE Ints twice(Ints words, int64_t n) { return _mm256_shuffle_epi8(words, load_ints(kTwice.low[n])); }

template <class F>
AUTOPLACE_INLINE Ints scale_pair(const Ints* scales, int64_t group) {
  const int64_t word = group / 4, byte = group % 4;
  if constexpr (F::kSignedScales) {
    return _mm256_srai_epi16(_mm256_shuffle_epi8(scales[word], load_ints(kTwice.high[byte])), 8);
  }
  const Ints pair = twice(scales[word], byte);
  return F::kScaleBias == 0 ? pair : _mm256_sub_epi16(pair, _mm256_set1_epi16(F::kScaleBias));
}

// -offset · (Σ of q at even pairs, Σ at odd pairs) of a group, in 16 bits.
template <class F>
AUTOPLACE_INLINE Ints first_sum(const Activation& x, int64_t group) {
  if constexpr (F::kOffset == 0) return zero_ints();
  constexpr int kSixteens = F::kScaleGroup / 16;
  Ints sum = four_bytes(reinterpret_cast<const int8_t*>(x.pairs + 2 * kSixteens * group));
  if constexpr (kSixteens == 2) {
    sum = _mm256_add_epi16(sum, four_bytes(reinterpret_cast<const int8_t*>(x.pairs + 4 * group + 2)));
  }
  return _mm256_mullo_epi16(sum, _mm256_set1_epi16(-F::kOffset));
}

// Sums of one unit of 16 rows.
template <int Format>
class UnitOfOne {
  using F = Interleaved<Format>;
  static constexpr int kPerBlock = F::kBlock / F::kScaleGroup, kWords = (kPerBlock + 3) / 4;
  static constexpr int kSteps = F::kScaleGroup / 4;
  // Without an offset a group may need two sums of 16 bits.
  static constexpr int kRun = F::kOffset == 0 && 2 * 127 * F::kMaxCode * kSteps > 32767 ? kSteps / 2 : kSteps;

 public:
  AUTOPLACE_INLINE UnitOfOne(const uint8_t* data, int64_t index, const Activation& x)
      : units_{{data, 0}, {data, kVectorRows}}, index_(index), x_(x) {}

  AUTOPLACE_INLINE void add_to(Floats* total) {
    if constexpr (F::kIntegerScales) {
      for (int v = 0; v < kVectors; ++v) {
        F::packed_scales(units_[v], scales_[v], mins_[v]);
        sum_[v] = less_[v] = zero_floats();
      }
    }
    for (int64_t part = 0; part < F::kParts; ++part) add_part(part, total);
    if constexpr (F::kIntegerScales) {
      for (int v = 0; v < kVectors; ++v) {
        total[v] = mul_add(units_[v].halves(0), sum_[v], total[v]);
        if constexpr (F::kHasMin) total[v] = sub_mul(total[v], units_[v].halves(1), less_[v]);
      }
    }
  }

 private:
  AUTOPLACE_INLINE void add_part(int64_t part, Floats* total) {
    constexpr int64_t kShare = Unit<Format>::kBytes / F::kParts;
    prefetch_ahead<kShare>(units_[0].data + part * kShare);
    Ints dots[F::kGroups][kVectors];
    unroll<kSteps / kRun>([&](auto run) AUTOPLACE_LAMBDA_INLINE {
      Ints sums[F::kGroups][kVectors];
      for (int g = 0; g < F::kGroups; ++g) {
        for (int v = 0; v < kVectors; ++v) sums[g][v] = first_sum<F>(x_, group(part, g));
      }
      unroll<kRun>([&](auto i) AUTOPLACE_LAMBDA_INLINE {
        unroll<F::kGroups>([&](auto g) AUTOPLACE_LAMBDA_INLINE {
          constexpr int kStep = run.value * kRun + i.value;
          const Ints four = four_bytes(x_.q + group(part, g.value) * F::kScaleGroup + 4 * kStep);
          for (int v = 0; v < kVectors; ++v) {
            const Ints codes = F::template line<g.value, kStep>(units_[v], part);
            add_in_order(sums[g.value][v], _mm256_maddubs_epi16(codes, four));
          }
        });
      });
      for (int g = 0; g < F::kGroups; ++g) {
        for (int v = 0; v < kVectors; ++v) {
          const Ints dot = _mm256_madd_epi16(sums[g][v], factor(part, g, v));
          dots[g][v] = run.value == 0 ? dot : _mm256_add_epi32(dots[g][v], dot);
        }
      }
    });
    for (int g = 0; g < F::kGroups; ++g) add_group(group(part, g), F::group(part, g), dots[g], total);
  }

  AUTOPLACE_INLINE int64_t group(int64_t part, int g) const { return index_ * kPerBlock + F::group(part, g); }

  AUTOPLACE_INLINE Ints factor(int64_t part, int g, int v) const {
    if constexpr (F::kIntegerScales) return scale_pair<F>(scales_[v], F::group(part, g));
    return _mm256_set1_epi16(1);
  }

  AUTOPLACE_INLINE void add_group(int64_t group, int64_t within, const Ints* dots, Floats* total) {
    const Floats d = all(x_.d[group * F::kScaleGroup / kGroup]);
    const float* sums = F::kScaleGroup == 16 ? x_.sum16 : x_.sum32;
    for (int v = 0; v < kVectors; ++v) {
      if constexpr (F::kIntegerScales) {
        sum_[v] = mul_add(to_floats(dots[v]), d, sum_[v]);
        if constexpr (F::kHasMin) {
          const Ints min = shift_right<16>(twice(mins_[v][within / 4], within % 4));
          less_[v] = mul_add(to_floats(min), all(sums[group]), less_[v]);
        }
      } else {
        Floats scale, min;
        F::read_scales(units_[v], &scale, &min);
        total[v] = mul_add(to_floats(dots[v]), mul(scale, d), total[v]);
        if constexpr (F::kHasMin) total[v] = sub_mul(total[v], min, all(sums[group]));
      }
    }
  }

  Unit<Format> units_[kVectors];
  int64_t index_;
  const Activation& x_;
  Ints scales_[kVectors][kWords], mins_[kVectors][kWords];
  Floats sum_[kVectors], less_[kVectors];
};

// out[r], for a strip of 16 rows. Units go by once, so that memory is asked for evenly.
template <int Format>
inline void multiply_strip_by_one(const uint8_t* strip, int64_t num_units, const Activation& x, float* out) {
  using F = Interleaved<Format>;
  Floats total[kVectors] = {zero_floats(), zero_floats()};
  for (int64_t index = 0; index < num_units; ++index) {
    const uint8_t* unit = strip + index * Unit<Format>::kBytes;
    if constexpr (sums_fit<F>()) {
      UnitOfOne<Format>(unit, index, x).add_to(total);
    } else {
      const Activation* one = &x;
      const TokenPointers<F, 1> token(&one);
      for (int v = 0; v < kVectors; ++v) {
        multiply_unit<F, 1>(Unit<Format>{unit, v * kVectorRows}, index, token, total + v);
      }
    }
  }
  for (int v = 0; v < kVectors; ++v) store_floats(out + v * kVectorRows, total[v]);
}

}  // namespace
}  // namespace autoplace

#endif  // !AUTOPLACE_VNNI

#endif  // AUTOPLACE_SIMD_INTERLEAVED_ONE_HPP_
