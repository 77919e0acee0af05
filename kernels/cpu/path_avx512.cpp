// The avx512 path. Compiled with the target flags that native.py names for it, and empty elsewhere.
#if defined(__x86_64__)
#include "path.hpp"
#include "simd/path.inc"

namespace autoplace {
namespace {
constexpr Path kPath = {"avx512",     true,         quantize, swiglu,  gemv, gemm,
                        dequantize, marlin_group, to_float, to_bf16, read_all, kAttentionLoops};
}  // namespace

const Path* avx512_path() { return &kPath; }

}  // namespace autoplace
#endif
