"""KLinearMarlin: weights re-quantised to 4 or 8 bits in groups of 64, on a GPU."""

from torch import Tensor

from autoplace.models.place import expect
from autoplace.models.source import TensorSource
from autoplace.operators.base import LinearOperator, OperatorContext, load_bias, weight_and_bias
from autoplace.operators.host_kernels import linear_from_marlin
from autoplace.operators.marlin_load import load_marlin


class KLinearMarlin(LinearOperator):
    """y = x · Wᵀ + b with W packed; on an emulated GPU it stays packed as well."""

    def __init__(self, context: OperatorContext, sources: tuple[TensorSource, ...]) -> None:
        super().__init__()
        weight, bias = weight_and_bias(sources)
        self.place = context.place
        self.weight = load_marlin(context, (weight,), (weight.num_rows, weight.width))
        self.bias = load_bias(context, bias)

    def forward(self, x: Tensor) -> Tensor:
        expect(x, self.place)
        y = linear_from_marlin(x, self.weight)
        return y if self.bias is None else y + self.bias
