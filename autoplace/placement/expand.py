"""A placement as the assignment that its rule file will mean, without the way through patterns.

What memory needs to know of each module: device, operator, bits, where results go. Planning
thousands of placements takes this way; what is shown, run and exported goes through the rules.
"""

from collections.abc import Mapping

from autoplace.architectures.spec import ModelSpec, Module, Role
from autoplace.placement.assignment import Assignment, ModuleAssignment, Value
from autoplace.placement.placement import Choice, LayerPlacement, Placement

UNMATCHED = "cuda:0"
"""Where KTransformers puts what no rule names: the root and the list of layers."""
_MLP_LINEARS = (Role.DENSE_LINEAR, Role.SHARED_LINEAR)


class Expander:
    """Expands placements of one model; a layer that was placed so before is looked up."""

    def __init__(self, spec: ModelSpec) -> None:
        self._layers: list[list[Module]] = [[] for _ in range(spec.geometry.num_layers)]
        self._others: list[Module] = []
        for module in spec.modules:
            (self._others if module.layer is None else self._layers[module.layer]).append(module)
        self._known: dict[tuple[int, LayerPlacement], Mapping[str, ModuleAssignment]] = {}

    def expand(self, placement: Placement) -> Assignment:
        """Every module → its device and operator: those of the layers, then those around them."""
        modules: dict[str, ModuleAssignment] = {}
        for index, layer in enumerate(placement.layers):
            known = self._known.get((index, layer))
            if known is None:
                known = self._known[index, layer] = self._layer(index, layer)
            modules.update(known)
        last = placement.layers[-1].device
        for module in self._others:
            modules[module.path] = (
                _assigned(module, placement.lm_head, last)
                if module.role is Role.LM_HEAD
                else _assigned(module, None, _home(module, last))
            )
        return Assignment(placement.engine, modules)

    def _layer(self, index: int, layer: LayerPlacement) -> Mapping[str, ModuleAssignment]:
        return {
            module.path: _assigned(module, _choice(module, layer), layer.device)
            for module in self._layers[index]
        }


def _home(module: Module, last: str) -> str:
    """Around the layers: tokens are embedded on the CPU, the norm follows the last layer."""
    return {Role.EMBEDDING: "cpu", Role.NORM: last}.get(module.role, UNMATCHED)


def _choice(module: Module, layer: LayerPlacement) -> Choice | None:
    if module.role is Role.ATTENTION_LINEAR:
        return layer.attention
    if module.role in _MLP_LINEARS:
        return layer.mlp
    return layer.experts if module.role is Role.EXPERTS else None


def _assigned(module: Module, choice: Choice | None, home: str) -> ModuleAssignment:
    if choice is None:
        return ModuleAssignment(module.path, home)
    kwargs: dict[str, Value] = {"out_device": home}
    if choice.num_bits is not None:
        kwargs["num_bits"] = choice.num_bits
    return ModuleAssignment(module.path, choice.device, operator=choice.operator, kwargs=kwargs)
