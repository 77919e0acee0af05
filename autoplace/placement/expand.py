"""A placement as the assignment that its rule file will mean, without the way through patterns.

What memory needs to know of each module: device, operator, bits, where results go. Planning
thousands of placements takes this way; what is shown, run and exported goes through the rules.
"""

from collections.abc import Mapping
from functools import cache

from autoplace.architectures.spec import ModelSpec, Module, Role
from autoplace.placement.assignment import Assignment, ModuleAssignment, Value
from autoplace.placement.placement import Choice, LayerPlacement, Placement

UNMATCHED = "cuda:0"
"""Where KTransformers puts what no rule names: the root and the list of layers."""
_MLP_LINEARS = (Role.DENSE_LINEAR, Role.SHARED_LINEAR)


def expand(placement: Placement, spec: ModelSpec) -> Assignment:
    """Every module with weights or a cache → its device and operator, in the spec's order."""
    last = placement.layers[-1].device
    modules = {}
    for module in spec.modules:
        if module.layer is not None:
            layer = placement.layers[module.layer]
            choice, home = _choice(module, layer), layer.device
        elif module.role is Role.LM_HEAD:
            choice, home = placement.lm_head, last
        else:
            choice, home = (
                None,
                {Role.EMBEDDING: "cpu", Role.NORM: last}.get(module.role, UNMATCHED),
            )
        modules[module.path] = ModuleAssignment(
            module.path,
            device=choice.device if choice else home,
            operator=choice.operator if choice else None,
            kwargs=_kwargs(choice, home) if choice else {},
        )
    return Assignment(placement.engine, modules)


def _choice(module: Module, layer: LayerPlacement) -> Choice | None:
    if module.role is Role.ATTENTION_LINEAR:
        return layer.attention
    if module.role in _MLP_LINEARS:
        return layer.mlp
    return layer.experts if module.role is Role.EXPERTS else None


@cache
def _kwargs(choice: Choice, home: str) -> Mapping[str, Value]:
    kwargs: dict[str, Value] = {"out_device": home}
    if choice.num_bits is not None:
        kwargs["num_bits"] = choice.num_bits
    return kwargs
