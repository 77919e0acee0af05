// The tile products of the amx path; everything else of it is the avx512 path's. Compiled with the target
// flags that native.py names for it, and null where the compiler does not know them.
#include "tiles.hpp"
#if defined(__x86_64__) && defined(__AMX_BF16__) && defined(__AVX512BF16__)
#include <type_traits>

#include "simd/amx_gemm.hpp"
#include "simd/amx_panels.hpp"

namespace autoplace {
namespace {
bool takes(int format, int) { return !is_interleaved(format); }

constexpr TileKernels kKernels = {takes, pack_panel, multiply, gate_and_pack, store_tile, add_tile};
}  // namespace

const TileKernels* amx_tile_kernels() { return &kKernels; }

}  // namespace autoplace
#else
namespace autoplace {
const TileKernels* amx_tile_kernels() { return nullptr; }
}  // namespace autoplace
#endif
