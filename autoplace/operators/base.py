"""What an operator is: a linear or the routed experts of a layer, on one device."""

from abc import ABC, abstractmethod
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from autoplace.models.allocation import Allocator
from autoplace.models.place import Place
from autoplace.models.source import TensorSource
from autoplace.operators.device_fill import fill_weight


@dataclass(frozen=True)
class OperatorContext:
    """Where an operator stands and what it may use while it loads."""

    path: str
    """Of the module it replaces: `model.layers.3.mlp.experts`."""
    place: Place
    dtype: torch.dtype
    """The engine's: of activations and of unquantised weights."""
    allocator: Allocator
    num_bits: int = 4
    """Of the Marlin operators."""
    interleave: bool = True
    """Whether CPU operators may copy their blocks with rows by sixteens."""


Part = tuple[TensorSource, ...]
"""The sources of one matrix of all experts of a layer."""


class LinearOperator(nn.Module, ABC):
    """y = x · Wᵀ + b for x [T, in] on the operator's place, in the engine's dtype."""

    place: Place

    @abstractmethod
    def forward(self, x: Tensor) -> Tensor:
        """[T, in] → [T, out]."""


class ExpertsOperator(nn.Module, ABC):
    """The weighted sum of each token's experts, on the operator's place."""

    place: Place

    @abstractmethod
    def forward(self, x: Tensor, experts: Tensor, weights: Tensor) -> Tensor:
        """[T, D], indices [T, K] int64, weights [T, K] float32 → [T, D] in x's dtype."""


def weight_and_bias(
    sources: tuple[TensorSource, ...],
) -> tuple[TensorSource, TensorSource | None]:
    """The sources of a linear, weight first."""
    assert len(sources) in (1, 2), sources
    return sources[0], sources[1] if len(sources) == 2 else None


def filled(context: OperatorContext, source: TensorSource, dtype: torch.dtype) -> Tensor:
    """A declared tensor of a source's shape with its dequantised weights."""
    weight = context.allocator.empty(
        source.info.shape, dtype, context.place, kind="weights", what=context.path
    )
    fill_weight(source, weight, context.place, context.allocator)
    return weight


def filled_matrix(context: OperatorContext, source: TensorSource) -> Tensor:
    """The weight [out, in] of a linear in the engine's dtype; a vector is one row."""
    return filled(context, source, context.dtype).view(source.num_rows, source.width)


def experts_parts(sources: tuple[TensorSource, ...]) -> tuple[Part, Part, Part]:
    """Gate, up and down: one stacked tensor [E, out, in] each, or one [out, in] an expert."""
    each = len(sources) // 3
    assert 3 * each == len(sources), len(sources)
    return sources[:each], sources[each : 2 * each], sources[2 * each :]


def stacked_shape(part: Part) -> tuple[int, ...]:
    """[E, out, in] of one part of the experts, whether its file stacks them or not."""
    return part[0].info.shape if len(part) == 1 else (len(part), *part[0].info.shape)


def load_bias(context: OperatorContext, source: TensorSource | None) -> Tensor | None:
    return None if source is None else filled(context, source, context.dtype)
