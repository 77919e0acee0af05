"""KTransformersLinear and KTransformersExperts: an operator, and the way there and back.

`home` is the layer's device. Activations come from there and the result returns there.
"""

from collections.abc import Callable

from torch import Tensor, nn

from autoplace.models.moe import RoutedExperts
from autoplace.models.place import Place, move
from autoplace.operators import device_handover
from autoplace.operators.base import ExpertsOperator, LinearOperator


class KTransformersLinear(nn.Module):
    """A linear whose operator a rule chose."""

    def __init__(self, operator: LinearOperator, home: Place) -> None:
        super().__init__()
        self.operator = operator
        self.home = home

    def forward(self, x: Tensor) -> Tensor:
        if device_handover.hands_over(self.operator.place, self.home):
            return device_handover.begin(self.operator, (x,), self.home)()
        return move(self.operator(move(x, self.operator.place)), self.home)


class KTransformersExperts(RoutedExperts):
    """The routed experts of a layer, whose operator a rule chose."""

    def __init__(self, operator: ExpertsOperator, home: Place) -> None:
        super().__init__()
        self.operator = operator
        self.home = home

    def start(self, x: Tensor, experts: Tensor, weights: Tensor) -> Callable[[], Tensor]:
        """Send the inputs; calling the result computes and returns [T, D] at home.

        Between the two the caller may queue other work of the layer on a GPU, which then runs
        while the CPU computes the experts.
        """
        place = self.operator.place
        if device_handover.hands_over(place, self.home):
            return device_handover.begin(self.operator, (x, experts, weights), self.home)
        sent = move(x, place), move(experts, place), move(weights, place)
        return lambda: move(self.operator(*sent), self.home)
