"""Gives every layer's attention its rows of the KV cache, on the layer's device."""

from torch import nn

from autoplace.models.allocation import Allocator
from autoplace.models.gqa import GqaAttention
from autoplace.models.kv_cache import cache_rows
from autoplace.models.mla import MlaAttention
from autoplace.models.place import Place


def attach_cache(
    layer: nn.Module, place: Place, allocator: Allocator, *, context: int, kv_type: str, what: str
) -> None:
    """Allocate `context` positions for one decoder layer, declared as `kv_cache`."""
    attention = layer.get_submodule("self_attn")
    assert isinstance(attention, GqaAttention | MlaAttention), type(attention)
    attention.cache = tuple(
        cache_rows(context, width, kv_type, place, allocator, what=what)
        for width in attention.cache_widths
    )
