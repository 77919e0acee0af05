// Which path runs: decided once from what the CPU and the operating system offer.
#include <atomic>
#include <cstring>
#include <initializer_list>

#include "path.hpp"

namespace autoplace {
#if defined(__x86_64__)
const TileKernels* bf16_tile_kernels();
#endif

namespace {

bool cpu_has(const char* name) {
  if (std::strcmp(name, "scalar") == 0) return true;
#if defined(__x86_64__)
  __builtin_cpu_init();
  const bool avx2 = __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") &&
                    __builtin_cpu_supports("f16c");
  if (std::strcmp(name, "avx2") == 0) return avx2;
  if (std::strcmp(name, "avx512") == 0 || std::strcmp(name, "amx") == 0) {
    return avx2 && __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
           __builtin_cpu_supports("avx512vl") && __builtin_cpu_supports("avx512dq") &&
           __builtin_cpu_supports("avx512vnni");
  }
#endif
  return false;
}

#if defined(__x86_64__)
// With AVX512-BF16's dot products where the CPU has them.
const Path* whole_avx512_path() {
  static const Path path = [] {
    Path made = *avx512_path();
    if (__builtin_cpu_supports("avx512bf16")) made.tiles = bf16_tile_kernels();
    return made;
  }();
  return &path;
}
#endif

const Path* find_path(const char* name) {
  if (!cpu_has(name)) return nullptr;
#if defined(__x86_64__)
  if (std::strcmp(name, "amx") == 0) return amx_path();
  if (std::strcmp(name, "avx512") == 0) return whole_avx512_path();
  if (std::strcmp(name, "avx2") == 0) return avx2_path();
#endif
  return scalar_path();
}

const Path* best_path() {
#if defined(AUTOPLACE_EMULATE_AMX)
  const auto names = {"avx512", "avx2"};
#else
  const auto names = {"amx", "avx512", "avx2"};
#endif
  for (const char* name : names) {
    if (const Path* path = find_path(name)) return path;
  }
  return scalar_path();
}

std::atomic<const Path*> g_path{nullptr};

}  // namespace

const Path& current_path() {
  const Path* path = g_path.load(std::memory_order_acquire);
  if (path == nullptr) {
    path = best_path();
    g_path.store(path, std::memory_order_release);
  }
  return *path;
}

bool set_path(const char* name) {
  const Path* path = find_path(name);
  if (path != nullptr) g_path.store(path, std::memory_order_release);
  return path != nullptr;
}

bool path_supported(const char* name) { return find_path(name) != nullptr; }

}  // namespace autoplace
