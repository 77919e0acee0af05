"""Fills a weight from a GGUF: a real GPU gets the blocks as they are and dequantises them itself.

A block crosses the link as 4 to 8 bits a weight instead of 16, and the host has nothing to decode.
Where there is no kernel for a type, or the place is host memory, the host dequantises.
"""

from collections.abc import Iterator
from contextlib import contextmanager

from torch import Tensor

from autoplace.models.allocation import Allocator
from autoplace.models.place import HOST, Place
from autoplace.models.source import TensorSource
from autoplace.operators.gpu_kernels import on_real_gpu, require_triton
from autoplace.placement.workspace import load_stage_bytes, load_transient_bytes
from autoplace.weights.ggml import BLOCKS, GGMLType

GPU_TYPES = frozenset(
    (
        *(GGMLType.Q4_0, GGMLType.Q5_0, GGMLType.Q8_0, GGMLType.IQ4_XS),
        *(GGMLType.Q2_K, GGMLType.Q3_K, GGMLType.Q4_K, GGMLType.Q5_K, GGMLType.Q6_K),
    )
)
"""What `kernels/triton/dequantize.py` takes; a test compares."""


@contextmanager
def staged(source: TensorSource, place: Place, allocator: Allocator) -> Iterator[None]:
    """Declare what a tensor arrives in on a GPU, real or emulated; nothing on the CPU."""
    n_bytes = load_stage_bytes(source.info.shape) if place.is_gpu else 0
    with allocator.transient(place, n_bytes, what=f"loading {source.info.name}"):
        yield


def fill_weight(source: TensorSource, target: Tensor, place: Place, allocator: Allocator) -> None:
    """Dequantise into a tensor of the source's shape, or a view, on a place, in its dtype.

    Declares the host's transient bytes as `TensorSource.fill` does, whoever dequantises.
    """
    with staged(source, place, allocator):
        on_gpu = on_real_gpu(place) and source.info.ggml_type in GPU_TYPES
        if not on_gpu or not target.is_contiguous():
            source.fill(target, place, allocator)
            return
        require_triton(f"loading {source.info.name} to {place.name}")
        shape = source.info.shape
        with allocator.transient(
            HOST, load_transient_bytes(shape), what=f"reading {source.info.name}"
        ):
            fill_from_blocks(
                source.blocks(),
                source.info.ggml_type,
                target,
                stage_bytes=load_stage_bytes(shape),
            )


def fill_from_blocks(
    blocks: Tensor, ggml_type: GGMLType, target: Tensor, *, stage_bytes: int
) -> None:
    """Weights of uint8 blocks in host memory into a contiguous tensor, a stage at a time."""
    from autoplace.kernels.triton.dequantize import dequantize

    block_size, type_size = BLOCKS[ggml_type]
    step = max(1, stage_bytes // type_size) * type_size
    flat = target.view(-1)
    for start in range(0, len(blocks), step):
        part = blocks[start : start + step].to(target.device)
        first = start // type_size * block_size
        weights = flat[first : first + len(part) // type_size * block_size]
        dequantize(part, ggml_type, weights)
