"""KLinearCPUInfer: a linear on the CPU in its GGUF blocks, never expanded."""

from torch import Tensor

from autoplace.models.place import expect
from autoplace.models.source import TensorSource
from autoplace.operators.base import LinearOperator, OperatorContext, load_bias, weight_and_bias
from autoplace.operators.blocks import HostBlocks
from autoplace.operators.host_kernels import linear_from_blocks


class KLinearCPUInfer(LinearOperator):
    """y = x · Wᵀ + b with W [out, in] in any GGML type: see `HostBlocks`."""

    def __init__(self, context: OperatorContext, sources: tuple[TensorSource, ...]) -> None:
        super().__init__()
        weight, bias = weight_and_bias(sources)
        self.place = context.place
        self.blocks = HostBlocks.of(context, (weight,), (weight.num_rows, weight.width))
        self.bias = load_bias(context, bias)

    def forward(self, x: Tensor) -> Tensor:
        expect(x, self.place)
        y = linear_from_blocks(x, self.blocks)
        return y if self.bias is None else y + self.bias
