"""The operators by the names that rules use."""

from collections.abc import Callable, Mapping
from typing import TypeVar

from autoplace.errors import AutoplaceError, did_you_mean
from autoplace.models.source import TensorSource
from autoplace.operators.base import ExpertsOperator, LinearOperator, OperatorContext
from autoplace.operators.experts_cpu import KExpertsCPU
from autoplace.operators.experts_marlin import KExpertsMarlin
from autoplace.operators.experts_torch import KExpertsTorch
from autoplace.operators.linear_cpuinfer import KLinearCPUInfer
from autoplace.operators.linear_marlin import KLinearMarlin
from autoplace.operators.linear_torch import KLinearTorch

Sources = tuple[TensorSource, ...]

LINEAR_OPERATORS: Mapping[str, Callable[[OperatorContext, Sources], LinearOperator]] = {
    "KLinearTorch": KLinearTorch,
    "KLinearMarlin": KLinearMarlin,
    "KLinearCPUInfer": KLinearCPUInfer,
}

EXPERTS_OPERATORS: Mapping[str, Callable[[OperatorContext, Sources], ExpertsOperator]] = {
    "KExpertsTorch": KExpertsTorch,
    "KExpertsMarlin": KExpertsMarlin,
    "KExpertsCPU": KExpertsCPU,
}

_Made = TypeVar("_Made", LinearOperator, ExpertsOperator)


def make_linear(name: str, context: OperatorContext, sources: Sources) -> LinearOperator:
    """Load a linear operator by name; an unknown one is an `AutoplaceError` that lists what is."""
    return _look_up(LINEAR_OPERATORS, name, context)(context, sources)


def make_experts(name: str, context: OperatorContext, sources: Sources) -> ExpertsOperator:
    """Load an experts operator by name; an unknown one is an `AutoplaceError`."""
    return _look_up(EXPERTS_OPERATORS, name, context)(context, sources)


def _look_up(
    operators: Mapping[str, Callable[[OperatorContext, Sources], _Made]],
    name: str,
    context: OperatorContext,
) -> Callable[[OperatorContext, Sources], _Made]:
    if name not in operators:
        raise AutoplaceError(
            f"{context.path}: the builtin engine has no operator {name!r} here"
            + did_you_mean(name, operators)
        )
    return operators[name]
