// The tile instructions of AMX-BF16. As assembler of our own, because GCC's intrinsics do not say that a
// tile load reads memory, so that the stores before it may be moved behind it or dropped.
#ifndef AUTOPLACE_SIMD_AMX_INSTRUCTIONS_HPP_
#define AUTOPLACE_SIMD_AMX_INSTRUCTIONS_HPP_

#include <cstdint>

#include "primitives.hpp"

#if defined(AUTOPLACE_EMULATE_AMX)
#include "amx_emulated.hpp"
#else

namespace autoplace {
namespace {

AUTOPLACE_INLINE void tile_configure(const void* config) {
  asm volatile("ldtilecfg (%0)" ::"r"(config) : "memory");
}
AUTOPLACE_INLINE void tile_release() { asm volatile("tilerelease" ::: "memory"); }

template <int Tile>
AUTOPLACE_INLINE void tile_zero() {
  asm volatile("tilezero %%tmm%c0" ::"i"(Tile));
}
template <int Tile>
AUTOPLACE_INLINE void tile_load(const void* base, int64_t stride) {
  asm volatile("tileloadd (%0,%1,1), %%tmm%c2" ::"r"(base), "r"(stride), "i"(Tile) : "memory");
}
template <int Tile>
AUTOPLACE_INLINE void tile_store(void* base, int64_t stride) {
  asm volatile("tilestored %%tmm%c2, (%0,%1,1)" ::"r"(base), "r"(stride), "i"(Tile) : "memory");
}
// Sum += A · B; assembler names the operands in reverse.
template <int Sum, int A, int B>
AUTOPLACE_INLINE void tile_multiply() {
  asm volatile("tdpbf16ps %%tmm%c2, %%tmm%c1, %%tmm%c0" ::"i"(Sum), "i"(A), "i"(B));
}

}  // namespace
}  // namespace autoplace
#endif

namespace autoplace {
namespace {

// All eight tiles: 16 rows of 64 bytes.
AUTOPLACE_INLINE void configure_tiles() {
  alignas(64) uint8_t config[64] = {1};
  for (int i = 0; i < 8; ++i) {
    config[16 + 2 * i] = 64;
    config[48 + i] = 16;
  }
  tile_configure(config);
}

}  // namespace
}  // namespace autoplace

#endif  // AUTOPLACE_SIMD_AMX_INSTRUCTIONS_HPP_
