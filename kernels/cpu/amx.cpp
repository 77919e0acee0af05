// Whether the amx path may be used: the CPU has it, the operating system lets us, and it multiplies right.
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <vector>

#include "path.hpp"
#include "tiles.hpp"

#if defined(__x86_64__)
#include <cpuid.h>
#if defined(__linux__)
#include <sys/syscall.h>
#include <unistd.h>
#endif

namespace autoplace {

const TileKernels* amx_tile_kernels();

namespace {

bool cpu_has_avx512_bf16() {
  unsigned a = 0, b = 0, c = 0, d = 0;
  return __get_cpuid_count(7, 1, &a, &b, &c, &d) && (a >> 5 & 1u);
}

#if defined(AUTOPLACE_EMULATE_AMX)

bool cpu_has_tiles() { return true; }
bool system_allows_tiles() {
  const char* wish = std::getenv("AUTOPLACE_EMULATED_AMX");
  return wish == nullptr || std::strcmp(wish, "refused") != 0;
}

#else

// AMX-TILE and AMX-BF16, and a palette of eight tiles of 16 rows of 64 bytes.
bool cpu_has_tiles() {
  unsigned a = 0, b = 0, c = 0, d = 0;
  if (!__get_cpuid_count(7, 0, &a, &b, &c, &d) || !(d >> 22 & 1u) || !(d >> 24 & 1u)) return false;
  if (!__get_cpuid_count(0x1d, 1, &a, &b, &c, &d)) return false;
  return (b & 0xffffu) >= 64 && (b >> 16) >= 8 && (c & 0xffffu) >= 16;
}

// The kernel saves tiles (XCR0), and grants them to processes that ask (Linux 5.16 and later).
bool system_allows_tiles() {
  unsigned a = 0, b = 0, c = 0, d = 0;
  if (!__get_cpuid(1, &a, &b, &c, &d) || !(c >> 27 & 1u)) return false;
  unsigned low, high;
  asm volatile("xgetbv" : "=a"(low), "=d"(high) : "c"(0));
  if ((low & 0x60000u) != 0x60000u) return false;
#if defined(__linux__) && defined(SYS_arch_prctl)
  constexpr int kRequestPermission = 0x1023, kTileData = 18;  // ARCH_REQ_XCOMP_PERM, XFEATURE_XTILEDATA
  return syscall(SYS_arch_prctl, kRequestPermission, kTileData) == 0;
#else
  return false;
#endif
}

#endif

// A small product by tiles and in float64, with a row, a column and a token more than whole tiles. Weights are
// whole numbers, so that only x is rounded: to 2^-16 of each product.
bool multiplies_right(const TileKernels& tiles) {
  constexpr int64_t kRows = 33, kColumns = 65, kTokens = 17;
  std::vector<float> w(kRows * kColumns), x(kTokens * kColumns);
  for (size_t i = 0; i < w.size(); ++i) w[i] = static_cast<float>((i * 7 + i / 65) % 23) - 11.0f;
  for (size_t i = 0; i < x.size(); ++i) x[i] = static_cast<float>((i * 5 + i / 65) % 19) / 3.0f - 3.0f;
  Panels panels{nullptr, kColumns, 2};
  struct alignas(64) Line {
    uint8_t bytes[64];
  };
  std::vector<Line> panel(static_cast<size_t>(2 * panels.block_size() * 2 / 64)), sums(64 * 32 * 4 / 64);
  panels.data = reinterpret_cast<uint16_t*>(panel.data());
  float* result = reinterpret_cast<float*>(sums.data());
  for (int64_t block = 0; block < 2; ++block) {
    const void* rows[kPanelTokens];
    const int64_t count = block == 0 ? kPanelTokens : kTokens - kPanelTokens;
    for (int64_t i = 0; i < count; ++i) rows[i] = x.data() + (block * kPanelTokens + i) * kColumns;
    tiles.pack(rows, kApF32, count, panels, block);
  }
  const Matrix matrix{kF32, reinterpret_cast<const uint8_t*>(w.data()), kRows, kColumns, kColumns * 4};
  tiles.multiply(matrix, 0, kRows, panels, 0, 2, result);
  for (int64_t r = 0; r < kRows; ++r) {
    for (int64_t t = 0; t < kTokens; ++t) {
      double exact = 0.0, size = 0.0;
      for (int64_t i = 0; i < kColumns; ++i) {
        const double product = double{w[r * kColumns + i]} * double{x[t * kColumns + i]};
        exact += product;
        size += std::fabs(product);
      }
      const float got = result[(r / 16 * 2 + t / 16) * kSumsTile + r % 16 * 16 + t % 16];
      if (!(std::fabs(got - exact) <= 2e-5 * size)) return false;
    }
  }
  return true;
}

// Null, with a line of warning, where AMX is there but cannot be trusted.
const TileKernels* checked_kernels() {
  const TileKernels* tiles = amx_tile_kernels();
  if (tiles == nullptr || !cpu_has_tiles() || !cpu_has_avx512_bf16()) return nullptr;
  const char* problem = nullptr;
  if (!system_allows_tiles()) {
    problem = "the operating system does not allow it";
  } else if (!multiplies_right(*tiles)) {
    problem = "it multiplied wrongly";
  }
  if (problem == nullptr) return tiles;
  std::fprintf(stderr, "autoplace: this CPU has AMX, but %s; the avx512 path is used\n", problem);
  return nullptr;
}

}  // namespace

const Path* amx_path() {
  static const TileKernels* const tiles = checked_kernels();
  static const Path path = [] {
    Path made = *avx512_path();
    made.name = "amx";
    made.tiles = tiles;
    return made;
  }();
  return tiles == nullptr ? nullptr : &path;
}

}  // namespace autoplace
#endif
