"""KLinearTorch: weights in the engine's dtype, on a GPU or the CPU."""

from torch import Tensor

from autoplace.models.place import expect
from autoplace.models.source import TensorSource
from autoplace.operators.base import (
    LinearOperator,
    OperatorContext,
    filled_matrix,
    load_bias,
    weight_and_bias,
)
from autoplace.operators.host_kernels import linear_from_dense


class KLinearTorch(LinearOperator):
    """y = x · Wᵀ + b with W [out, in] in the engine's dtype."""

    def __init__(self, context: OperatorContext, sources: tuple[TensorSource, ...]) -> None:
        super().__init__()
        weight, bias = weight_and_bias(sources)
        self.place = context.place
        self.weight = filled_matrix(context, weight)
        self.bias = load_bias(context, bias)

    def forward(self, x: Tensor) -> Tensor:
        expect(x, self.place)
        return linear_from_dense(x, self.weight, self.bias)
