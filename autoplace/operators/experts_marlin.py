"""KExpertsMarlin: the routed experts of a layer re-quantised to 4 or 8 bits, on a GPU."""

from torch import Tensor

from autoplace.models.place import expect
from autoplace.models.source import TensorSource
from autoplace.operators.base import ExpertsOperator, OperatorContext, experts_parts
from autoplace.operators.host_kernels import experts_from_marlin
from autoplace.operators.marlin_load import experts_marlin


class KExpertsMarlin(ExpertsOperator):
    """Gate, up and down of every expert, packed."""

    def __init__(self, context: OperatorContext, sources: tuple[TensorSource, ...]) -> None:
        super().__init__()
        self.place = context.place
        gate, up, down = experts_parts(sources)
        self.weights = (
            experts_marlin(context, gate),
            experts_marlin(context, up),
            experts_marlin(context, down),
        )

    def forward(self, x: Tensor, experts: Tensor, weights: Tensor) -> Tensor:
        expect(x, self.place)
        return experts_from_marlin(x, experts, weights, self.weights)
