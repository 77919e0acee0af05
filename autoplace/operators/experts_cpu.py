"""KExpertsCPU: the routed experts of a layer in their GGUF blocks, never expanded."""

from torch import Tensor

from autoplace.errors import AutoplaceError
from autoplace.models.place import expect
from autoplace.models.source import TensorSource
from autoplace.operators.base import ExpertsOperator, OperatorContext, experts_parts
from autoplace.operators.blocks import HostBlocks
from autoplace.operators.host_kernels import experts_from_blocks


class KExpertsCPU(ExpertsOperator):
    """Gate, up and down of every expert in any GGML type: see `HostBlocks`."""

    def __init__(self, context: OperatorContext, sources: tuple[TensorSource, ...]) -> None:
        super().__init__()
        if context.place.is_gpu:
            raise AutoplaceError(
                f"{context.path}: KExpertsCPU runs on cpu only, but the rules put it on "
                f"{context.place.name}; there are KExpertsMarlin and KExpertsTorch"
            )
        self.place = context.place
        gate, up, down = experts_parts(sources)
        self.weights = (
            HostBlocks.of(context, gate),
            HostBlocks.of(context, up),
            HostBlocks.of(context, down),
        )

    def forward(self, x: Tensor, experts: Tensor, weights: Tensor) -> Tensor:
        expect(x, self.place)
        return experts_from_blocks(x, experts, weights, self.weights)
