"""Reads a placement out of what rules mean: the inverse of the compiler.

A rule file can say more than a placement: other operators inside one layer's attention, norms away
from their layer. Such a file is refused here with the reason; its assignment still serves the
loader and the memory plan. Where it says the same in other words, the nearest placement is given:
a linear that no rule replaces counts as `KLinearTorch` on its device, which it is in effect, and
what rules say of prefill is ignored, since prefill runs with the decode operators.
"""

from collections.abc import Iterable

from autoplace.architectures.spec import ModelSpec, Module, Role
from autoplace.errors import AutoplaceError
from autoplace.placement.assignment import Assignment, ModuleAssignment
from autoplace.placement.placement import Choice, LayerPlacement, Placement
from autoplace.rules.vocabulary import num_bits_of

_FOLLOWERS = (Role.NORM, Role.KV_B, Role.ROUTER, Role.ROTARY, Role.SHARED_GATE)
"""Modules of a layer that a placement has no device for: they sit where the attention does."""


def read_back(assignment: Assignment, spec: ModelSpec) -> Placement:
    """The placement that compiles to this. Raises `AutoplaceError` if there is none."""
    of_layer: list[list[Module]] = [[] for _ in range(spec.geometry.num_layers)]
    for module in spec.modules:
        if module.layer is not None:
            of_layer[module.layer].append(module)
    layers = tuple(_layer(assignment, index, modules) for index, modules in enumerate(of_layer))
    _check_ends(assignment, spec, layers[-1].device)
    lm_head = _choice(assignment, spec.of_role(Role.LM_HEAD), "lm_head")
    if lm_head is None:
        raise AutoplaceError("the model has no lm_head, so no placement describes it")
    return Placement(assignment.engine, layers, lm_head)


def _layer(assignment: Assignment, index: int, modules: list[Module]) -> LayerPlacement:
    where = f"layer {index}"

    def choice(*roles: Role) -> Choice | None:
        found = [module for module in modules if module.role in roles]
        return _choice(assignment, found, where)

    attention = choice(Role.ATTENTION_LINEAR)
    attention_module = next(module for module in modules if module.role is Role.ATTENTION)
    device = _entry(assignment, attention_module.path).device
    assert attention is not None, where
    for module in modules:
        entry = _entry(assignment, module.path) if module.role in _FOLLOWERS else None
        if entry is not None and entry.device != device:
            raise AutoplaceError(
                f"{where} is on {device}, but {module.path} is on {entry.device}: "
                "no placement describes that"
            )
    return LayerPlacement(
        device,
        attention,
        choice(Role.DENSE_LINEAR, Role.SHARED_LINEAR),
        choice(Role.EXPERTS),
    )


def _check_ends(assignment: Assignment, spec: ModelSpec, last_device: str) -> None:
    for module in spec.modules:
        if module.layer is not None or module.role not in (Role.EMBEDDING, Role.NORM):
            continue
        expected = "cpu" if module.role is Role.EMBEDDING else last_device
        device = _entry(assignment, module.path).device
        if device != expected:
            raise AutoplaceError(
                f"{module.path} is on {device}, but a placement has it on {expected}"
            )


def _choice(assignment: Assignment, modules: Iterable[Module], where: str) -> Choice | None:
    """The one choice that all the modules share; None if there are no modules."""
    first: tuple[Module, Choice] | None = None
    for module in modules:
        choice = _choice_of(module, _entry(assignment, module.path))
        if first is None:
            first = (module, choice)
        elif choice != first[1]:
            raise AutoplaceError(
                f"{where}: {first[0].path} is {_show(first[1])}, but {module.path} is "
                f"{_show(choice)}: no placement describes that"
            )
    return first[1] if first else None


def _choice_of(module: Module, entry: ModuleAssignment) -> Choice:
    if entry.operator is not None:
        return Choice(entry.device, entry.operator, num_bits_of(entry.operator, entry.kwargs))
    if entry.class_name is not None:
        raise AutoplaceError(
            f"{module.path} is replaced by {entry.class_name}, which has no operator"
        )
    if module.role is Role.EXPERTS:
        raise AutoplaceError(f"{module.path} is not replaced: routed experts need an operator")
    return Choice(entry.device, "KLinearTorch")


def _entry(assignment: Assignment, path: str) -> ModuleAssignment:
    entry = assignment.modules.get(path)
    if entry is None:
        raise AutoplaceError(f"no rule reaches {path}: a rule above it says 'recursive: false'")
    return entry


def _show(choice: Choice) -> str:
    bits = f" at {choice.num_bits} bits" if choice.num_bits else ""
    return f"{choice.operator}{bits} on {choice.device}"
