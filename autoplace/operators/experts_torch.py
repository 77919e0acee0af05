"""KExpertsTorch: the routed experts of a layer in the engine's dtype."""

from torch import Tensor

from autoplace.models.place import expect
from autoplace.models.source import TensorSource
from autoplace.operators.base import (
    ExpertsOperator,
    OperatorContext,
    Part,
    experts_parts,
    stacked_shape,
)
from autoplace.operators.device_fill import fill_weight
from autoplace.operators.gpu_kernels import on_real_gpu, require_triton
from autoplace.operators.host_kernels import experts_from_dense


class KExpertsTorch(ExpertsOperator):
    """Weights gate and up [E, F, D], down [E, D, F], on a GPU or the CPU."""

    def __init__(self, context: OperatorContext, sources: tuple[TensorSource, ...]) -> None:
        super().__init__()
        self.place = context.place
        if on_real_gpu(context.place):
            require_triton(f"{context.path}: KExpertsTorch")
        gate, up, down = experts_parts(sources)
        self.weights = _stacked(context, gate), _stacked(context, up), _stacked(context, down)

    def forward(self, x: Tensor, experts: Tensor, weights: Tensor) -> Tensor:
        expect(x, self.place)
        return experts_from_dense(x, experts, weights, self.weights)


def _stacked(context: OperatorContext, part: Part) -> Tensor:
    """One part of all experts, [E, out, in]."""
    shape = stacked_shape(part)
    weight = context.allocator.empty(
        shape, context.dtype, context.place, kind="weights", what=context.path
    )
    for source, target in zip(part, weight.view(len(part), *part[0].info.shape), strict=True):
        fill_weight(source, target, context.place, context.allocator)
    return weight
