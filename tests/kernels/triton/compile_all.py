"""Compiles every kernel for a GPU that need not be there.

    python -m tests.kernels.triton.compile_all 80 90

Run without TRITON_INTERPRET. Raises where Triton, LLVM or ptxas refuse a kernel.
"""

import re
import sys
from typing import Any

import torch
import triton
import triton.language as tl
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource

from autoplace.kernels.triton import dequantize, pack, pack_kernels, products
from autoplace.kernels.triton import dequantize_kernels as from_blocks
from autoplace.kernels.triton import product_kernels as kernels

POINTERS = {
    **dict.fromkeys(("x", "out"), "*bf16"),
    **dict.fromkeys(("ids",), "*i64"),
    **dict.fromkeys(("scales", "gate_scales", "up_scales"), "*bf16"),
    **dict.fromkeys(("order", "starts", "block_expert", "block_first"), "*i32"),
    **dict.fromkeys(("parts", "weights", "levels"), "*fp32"),
    "blocks": "*u8",
}


def compiled(
    fn: Any, target: GPUTarget, constants: dict[str, Any], *, source: str = "", **options: Any
) -> Any:
    """Bits in the constants say what `data`, `gate` and `up` point to."""
    if source:  # packing
        types = {"source": source, "levels": "*fp32", "words": "*i32", "scales": "*i16"}
        return _compiled(fn, target, constants, types, options)
    bits = max((v for k, v in constants.items() if k.endswith("BITS")), default=0)
    words = "*i32" if bits else "*bf16"
    types = {**POINTERS, **dict.fromkeys(("data", "gate", "up"), words)}
    return _compiled(fn, target, constants, types, options)


def _compiled(
    fn: Any,
    target: GPUTarget,
    constants: dict[str, Any],
    types: dict[str, str],
    options: dict[str, Any],
) -> Any:
    names = fn.arg_names
    signature = {n: "constexpr" if n in constants else types.get(n, "i32") for n in names}
    values = {(names.index(name),): value for name, value in constants.items()}
    return triton.compile(
        ASTSource(fn, signature, constexprs=values), target=target, options=options
    )


def compile_products(target: GPUTarget, bits: int) -> None:
    row = products._row_block(bits)
    fused: dict[str, Any] = {"enable_fp_fusion": True}
    pair = {"GATE_BITS": bits, "UP_BITS": bits}
    for routed in (False, True):
        constants = {"ROUTED": routed, "SPLIT": 4, "BITS": bits, "BLOCK_K": row}
        compiled(kernels.rows_kernel, target, constants, num_warps=4, **fused)
    compiled(kernels.swiglu_rows_kernel, target, {**pair, "BLOCK_K": row}, num_warps=4, **fused)
    for num_rows, two in ((16, False), (32, True), (64, True), (512, False)):
        tiling = products._tiling(num_rows, torch.bfloat16, two_matrices=two)
        tile = {"BLOCK_M": tiling.rows, "BLOCK_N": tiling.columns, "DOT": tl.bfloat16}
        options: dict[str, Any] = {"num_warps": tiling.num_warps, **fused}
        compiled(kernels.tiles_kernel, target, {"SPLIT": 2, "BITS": bits, **tile}, **options)
        if num_rows < 512:
            compiled(kernels.grouped_swiglu_kernel, target, {**pair, **tile}, **options)
            compiled(kernels.grouped_down_kernel, target, {"BITS": bits, **tile}, **options)


def compile_dequantisation(target: GPUTarget) -> None:
    """And look for multiply-adds, which would change the last bit."""
    for ggml_type, (block_size, type_size) in dequantize.BLOCKS.items():
        constants = {
            "TYPE": ggml_type,
            "BLOCK_SIZE": block_size,
            "TYPE_SIZE": type_size,
            "STEP": dequantize._STEP,
        }
        kernel = compiled(
            from_blocks.dequantize_kernel, target, constants, num_warps=4, enable_fp_fusion=False
        )
        assert not re.search(r"\bfma\.", kernel.asm["ptx"]), f"type {ggml_type} fuses"


def compile_packing(target: GPUTarget) -> None:
    """And look for multiply-adds, approximate division and flushed denormals."""
    for ggml_type in sorted(pack.PACKS):
        block_size, type_size = dequantize.BLOCKS.get(ggml_type, (1, 1))
        for bits in (4, 8):
            constants = {"TYPE": ggml_type, "BLOCK_SIZE": block_size, "TYPE_SIZE": type_size}
            kernel = compiled(
                *(pack_kernels.pack_kernel, target, {**constants, "BITS": bits}),
                source={0: "*fp32", 1: "*fp16", 30: "*i16"}.get(ggml_type, "*u8"),
                num_warps=4,
                enable_fp_fusion=False,
            )
            found = re.findall(r"\bfma\.|div\.full|div\.approx|\.ftz", kernel.asm["ptx"])
            assert not found, f"type {ggml_type}: {set(found)}"


def main(capabilities: list[str]) -> None:
    for capability in capabilities:
        target = GPUTarget("cuda", int(capability), 32)
        for bits in (4, 8, 0):
            compile_products(target, bits)
        weighted = {"SPLIT": 4, "EACH": 6, "WEIGHTED": True, "BLOCK_N": products._COMBINE_N}
        compiled(kernels.combine_kernel, target, weighted, num_warps=4, enable_fp_fusion=True)
        compile_dequantisation(target)
        compile_packing(target)
        print(f"compiled for sm_{capability}")


if __name__ == "__main__":
    main(sys.argv[1:])
