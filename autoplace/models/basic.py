"""The modules that no rule replaces, and the linear that rules may: plain torch."""

from functools import cached_property

import torch
from torch import Tensor, nn
from torch.nn import functional

from autoplace.models.backend import DTYPES, decode_kernels
from autoplace.models.place import Place, expect
from autoplace.native_decode import Norm, Prepared

FEW_TOKENS = 4
"""Up to so many rows are normed by the compiled kernel: torch takes eight calls for a norm."""


class Container(nn.Module):
    """A node of the tree that holds others: a layer list, a rotary embedding, an activation."""

    def forward(self) -> None:
        raise NotImplementedError("a container is never called")


class RMSNorm(nn.Module):
    """x / rms(x) · weight over the last dimension, computed in float32."""

    def __init__(self, weight: Tensor, eps: float, place: Place) -> None:
        super().__init__()
        self.weight = weight
        self.eps = eps
        self.place = place

    def forward(self, x: Tensor) -> Tensor:
        expect(x, self.place)
        native = decode_kernels() if self.place.runs_on_host else None
        if native is None or x.ndim != 2 or len(x) > FEW_TOKENS:
            return functional.rms_norm(x, self.weight.shape, self.weight, self.eps)
        x = x.contiguous()
        out = torch.empty_like(x)
        native.rms_norm(self._prepared, x.data_ptr(), DTYPES[x.dtype], len(x), out.data_ptr())
        return out

    def described(self) -> Norm:
        """For the kernels; the weight is in host memory."""
        width, dtype = self.weight.numel(), DTYPES[self.weight.dtype]
        return Norm(self.weight.data_ptr(), width, dtype, self.eps)

    @cached_property
    def _prepared(self) -> Prepared:
        return Prepared.of(self.described())


class Linear(nn.Module):
    """x · weightᵀ + bias, weight [out, in] in the engine's dtype: what a `default` rule leaves."""

    def __init__(self, weight: Tensor, bias: Tensor | None, place: Place) -> None:
        super().__init__()
        self.weight = weight
        self.bias = bias
        self.place = place

    def forward(self, x: Tensor) -> Tensor:
        expect(x, self.place)
        return functional.linear(x, self.weight, self.bias)


class KvB(nn.Module):
    """MLA's kv_b_proj, its key and value halves apart, so that each is contiguous in memory.

    A slice of the whole weight would be copied by every product at decode: 10 times slower.
    """

    def __init__(self, keys: Tensor, values: Tensor) -> None:
        super().__init__()
        self.keys = keys
        """[H, nope, lora]"""
        self.values = values
        """[H, v, lora]"""

    def forward(self) -> None:
        raise NotImplementedError("attention reads the weights; kv_b is never called")


class RouterGate(nn.Module):
    """Scores of all experts, [T, D] → [T, E] float32, and the bias that only choosing uses."""

    def __init__(self, weight: Tensor, expert_bias: Tensor | None, place: Place) -> None:
        super().__init__()
        self.weight = weight
        self.expert_bias = expert_bias
        self.place = place

    def forward(self, x: Tensor) -> Tensor:
        expect(x, self.place)
        return functional.linear(x.float(), self.weight.float())


class Embedding(nn.Module):
    """Rows of a [vocab, D] table."""

    def __init__(self, weight: Tensor, place: Place) -> None:
        super().__init__()
        self.weight = weight
        self.place = place

    def forward(self, tokens: Tensor) -> Tensor:
        expect(tokens, self.place)
        return functional.embedding(tokens, self.weight)
