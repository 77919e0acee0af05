"""How many bytes a forward pass needs beside weights and cache, and while a tensor loads.

The engine declares exactly these numbers and keeps within them; `placement.memory` adds the same.

- **workspace**, kind `workspace`: `workspace_bytes(geometry, ...)`, the same number on every
  device that holds at least one module with tensors (replaced or not), and on `cpu` always. It is
  a bound for the widest thing any module of the model makes, in float32, not a sum over modules.
- **room for CUDA graphs**, kind `workspace`: `graph_bytes(geometry, ...)` on every GPU with such a
  module, whether graphs are used in the end or not, and on emulated GPUs too.
- **load transient**, kind `load`: `load_transient_bytes(shape)` on `cpu` while one tensor is
  dequantised: a chunk of float32 rows, and as much again for what is made out of them. Where the
  tensor is for a GPU, also `load_stage_bytes(shape)` on that GPU: the chunk as it arrives, to be
  dequantised or packed there. Tensors that stay memory-mapped (KExpertsCPU, KLinearCPUInfer; their
  bias is loaded) have neither. Both are declared whoever dequantises, so that an emulated GPU needs
  what a real one does. A tensor's own bytes are allocated before its transient, so the load peak of
  a device is the largest of: bytes of all tensors up to this one, plus this one's transient there.
  Modules load in the order of `spec.modules`, tensors of a module in the order of `module.tensors`;
  the cache and the workspace follow, when no transient is alive.
"""

from autoplace.architectures.geometry import Geometry, Mla
from autoplace.units import MIB

LOAD_CHUNK_BYTES = 32 * MIB
"""Float32 rows of one matrix that are dequantised at a time; at least 16 rows."""

SCRATCH_BYTES = 64 * MIB
"""Keys and values that are expanded at a time (MLA), and rows a slow twin dequantises; at least
one head."""

SMALLEST_BUCKET = 256
"""Positions of the cache that the first recorded graphs of a token read; the next read twice."""

LOGIT_ROWS = 16
"""Positions that lm_head works on at a time, where every position is asked for."""


def load_transient_bytes(shape: tuple[int, ...]) -> int:
    """Host bytes while a tensor of this shape (torch order) is dequantised.

    A stack of experts is dequantised one expert at a time; a vector is one row.
    """
    width = shape[-1]
    rows = min(shape[-2] if len(shape) > 1 else 1, load_chunk_rows(width))
    return 2 * 4 * rows * width


def load_stage_bytes(shape: tuple[int, ...]) -> int:
    """GPU bytes while a tensor of this shape arrives: its chunk as float32, or fewer as blocks."""
    return load_transient_bytes(shape) // 2


def load_chunk_rows(width: int) -> int:
    """Rows of this many weights that are dequantised at a time, a multiple of 16."""
    return max(16, LOAD_CHUNK_BYTES // (4 * width) // 16 * 16)


def expanded_heads(mla: Mla, context_tokens: int) -> int:
    """Heads whose keys and values are expanded at a time when this many positions are cached."""
    return max(1, SCRATCH_BYTES // _expanded_head_bytes(mla, context_tokens))


def _expanded_head_bytes(mla: Mla, context_tokens: int) -> int:
    """Keys, their part without rotation, values, and values padded to the keys' width."""
    qk_dim = mla.qk_nope_dim + mla.qk_rope_dim
    return 4 * context_tokens * (2 * qk_dim + mla.qk_nope_dim + mla.v_dim)


def workspace_bytes(geometry: Geometry, *, prefill_chunk: int, context_tokens: int) -> int:
    """Bytes of activations and scratch on one device, the same for each that is used."""
    tokens = min(prefill_chunk, context_tokens)
    activations = 4 * tokens * (8 * geometry.hidden + 5 * _widest(geometry))
    mask = 5 * tokens * context_tokens
    logits = 2 * 4 * min(LOGIT_ROWS, tokens) * geometry.vocab
    return (
        activations
        + mask
        + logits
        + _cache_copy(geometry, context_tokens)
        + _scratch(geometry, context_tokens)
    )


def graph_bytes(geometry: Geometry, *, context_tokens: int) -> int:
    """Bytes on one GPU that decoding by CUDA graphs keeps beside the workspace.

    What changes with a token (rotations of all positions, a mask, the input), logits of every
    bucket, and a pool of activations of one token: twice, since a larger bucket may not fit what a
    smaller one left. The driver's own bytes of a graph, and what torch's allocator rounds up, are
    the device's reserve's, as those of all other tensors are.
    """
    inputs = context_tokens * (4 * geometry.rope.dim + 8 + 1) + 4 * geometry.hidden
    num_buckets = 1 + max(0, (context_tokens - 1) // SMALLEST_BUCKET).bit_length()
    logits = 2 * 4 * num_buckets * geometry.vocab
    activations = 4 * (8 * geometry.hidden + 5 * _widest(geometry))
    scores = 12 * geometry.num_heads * context_tokens  # as products, float32, softmax, rounded
    cache = 2 * _cache_copy(geometry, context_tokens)  # by float32 to the dtype
    return inputs + logits + 2 * (activations + scores + cache)


def _widest(geometry: Geometry) -> int:
    """The most values a module makes for one token."""
    attention, moe = geometry.attention, geometry.moe
    if isinstance(attention, Mla):
        head_dim = attention.qk_nope_dim + attention.qk_rope_dim
    else:
        head_dim = attention.head_dim
    widths = [geometry.num_heads * head_dim, geometry.dense_ffn, geometry.hidden]
    if moe is not None:
        widths += [moe.shared_ffn, moe.num_experts, moe.top_k * moe.expert_ffn]
    return max(widths)


def _cache_copy(geometry: Geometry, context_tokens: int) -> int:
    """One layer's cache as it is read, in float32."""
    attention = geometry.attention
    if isinstance(attention, Mla):
        width = attention.kv_lora_rank + attention.qk_rope_dim
    else:
        width = 2 * attention.num_kv_heads * attention.head_dim
    return 4 * context_tokens * width


def _scratch(geometry: Geometry, context_tokens: int) -> int:
    """Expanded heads (MLA), or a matrix that a slow twin dequantises, whichever is more."""
    attention = geometry.attention
    matrix = min(SCRATCH_BYTES, 8 * geometry.hidden * _widest(geometry))
    if not isinstance(attention, Mla):
        return matrix
    head = _expanded_head_bytes(attention, context_tokens)
    return max(matrix, head, min(SCRATCH_BYTES, geometry.num_heads * head))
