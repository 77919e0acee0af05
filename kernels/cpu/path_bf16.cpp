// What AVX512-BF16 adds to the avx512 path: many bf16 activations times BF16 weights, whose products are exact
// in float32. Compiled with the target flags that native.py names for it, and null where the compiler does not
// know them.
#include "tiles.hpp"
#if defined(__x86_64__) && defined(__AVX512BF16__)
#include "simd/amx_panels.hpp"
#include "simd/bf16_gemm.hpp"

namespace autoplace {
namespace {

bool takes(int format, int x_dtype) { return format == kBF16 && x_dtype == kApBF16; }

constexpr TileKernels kKernels = {takes, pack_panel, multiply_pairs, gate_and_pack, store_tile, add_tile};

}  // namespace

const TileKernels* bf16_tile_kernels() { return &kKernels; }

}  // namespace autoplace
#else
namespace autoplace {
const TileKernels* bf16_tile_kernels() { return nullptr; }
}  // namespace autoplace
#endif
