"""llama.cpp's way to hold weights: the file's own blocks on every device.

Not among the operators that rules name: no rule file drives llama.cpp.
"""

from collections.abc import Mapping

from autoplace.catalog.operators import OPERATORS, BlockOperator, Operator

ENGINE = "llama.cpp"
LINEAR, EXPERTS = "LlamaCppLinear", "LlamaCppExperts"
_ANYWHERE = frozenset({"cpu", "gpu"})

LLAMA_CPP_OPERATORS: Mapping[str, Operator] = {
    operator.name: operator
    for operator in (
        BlockOperator(LINEAR, "linear", _ANYWHERE, frozenset({ENGINE}), keeps_blocks=True),
        BlockOperator(EXPERTS, "experts", _ANYWHERE, frozenset({ENGINE}), keeps_blocks=True),
    )
}


def operator_named(name: str) -> Operator:
    """An operator of any engine."""
    return OPERATORS.get(name) or LLAMA_CPP_OPERATORS[name]
