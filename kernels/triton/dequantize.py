"""Launches dequantisation: bytes of GGUF blocks on the GPU to float32 or bfloat16 there."""

import functools

import torch
from torch import Tensor

from autoplace.kernels.triton.dequantize_kernels import dequantize_kernel
from autoplace.kernels.triton.device import on_device_of

BLOCKS = {
    2: (32, 18),  # Q4_0
    6: (32, 22),  # Q5_0
    8: (32, 34),  # Q8_0
    10: (256, 84),  # Q2_K
    11: (256, 110),  # Q3_K
    12: (256, 144),  # Q4_K
    13: (256, 176),  # Q5_K
    14: (256, 210),  # Q6_K
    23: (256, 136),  # IQ4_XS
}
"""GGML type: weights and bytes of a block. What these kernels take."""

_LEVELS = (-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113)
_STEP = 1024


def dequantize(blocks: Tensor, ggml_type: int, out: Tensor) -> Tensor:
    """Fill contiguous float32 or bfloat16 `out` with the weights of uint8 blocks; return it.

    Float32 is bit-exact with `autoplace.weights.dequantize`; bfloat16 is that rounded to even.
    """
    if ggml_type not in BLOCKS:
        raise ValueError(f"expected a GGML type of {sorted(BLOCKS)} but got {int(ggml_type)}")
    block_size, type_size = BLOCKS[ggml_type]
    if (
        blocks.dtype is not torch.uint8
        or blocks.numel() * block_size != out.numel() * type_size
        or blocks.numel() % type_size != 0
        or not (blocks.is_contiguous() and out.is_contiguous())
        or out.dtype not in (torch.float32, torch.bfloat16)
    ):
        raise ValueError(
            f"expected contiguous uint8 blocks of {type_size} B and {block_size} float32 or "
            f"bfloat16 weights a block but got {blocks.dtype} {list(blocks.shape)} and "
            f"{out.dtype} {list(out.shape)}"
        )
    if out.numel() == 0:
        return out
    with on_device_of(out):
        dequantize_kernel[(-(-out.numel() // _STEP),)](
            *(blocks, levels_on(blocks.device), out, out.numel()),
            TYPE=int(ggml_type),
            BLOCK_SIZE=block_size,
            TYPE_SIZE=type_size,
            STEP=_STEP,
            num_warps=4,
            enable_fp_fusion=False,
        )
    return out


@functools.cache
def levels_on(device: torch.device) -> Tensor:
    """The 16 values of IQ4_XS, made once a device: not while a graph is captured."""
    return torch.tensor(_LEVELS, dtype=torch.float32, device=device)
