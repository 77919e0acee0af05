"""What an engine's rule files can say: a placement that they cannot is refused with the reason."""

from collections.abc import Iterator

from autoplace.architectures.spec import ModelSpec, Module, Role
from autoplace.catalog.engines import engine
from autoplace.catalog.operators import OPERATORS
from autoplace.errors import AutoplaceError, did_you_mean
from autoplace.placement.placement import Choice, Placement
from autoplace.rules.families import Family, family_of, is_served
from autoplace.rules.vocabulary import LINEAR_ROLES, MARLIN


def refuse_inexpressible(placement: Placement, spec: ModelSpec) -> None:
    """Raise `AutoplaceError` if the placement is not one of this model and engine."""
    problem = next(_problems(placement, spec), None)
    if problem is not None:
        raise AutoplaceError(f"{placement.engine} cannot run this placement: {problem}")


def _problems(placement: Placement, spec: ModelSpec) -> Iterator[str]:
    if not engine(placement.engine).uses_rules:
        yield "it is driven by flags, not by rule files"
        return
    if len(placement.layers) != spec.geometry.num_layers:
        yield (
            f"it has {len(placement.layers)} layers, but {spec.name} has {spec.geometry.num_layers}"
        )
        return
    yield from _shape_problems(placement, spec)
    for where, kind, choice in _choices(placement):
        yield from _choice_problems(where, kind, choice)
    if placement.engine != "builtin":
        yield from _ktransformers_problems(placement, spec)


def _shape_problems(placement: Placement, spec: ModelSpec) -> Iterator[str]:
    with_experts = set(spec.moe_layers)
    with_mlp = {m.layer for m in spec.modules if m.role in LINEAR_ROLES[1:]}
    for index, layer in enumerate(placement.layers):
        if (layer.experts is not None) != (index in with_experts):
            yield f"layer {index} has {'no ' if index not in with_experts else ''}routed experts"
        if (layer.mlp is not None) != (index in with_mlp):
            yield f"layer {index} has {'no ' if index not in with_mlp else ''}dense or shared MLP"


def _choices(placement: Placement) -> Iterator[tuple[str, str, Choice]]:
    """Where, of which kind, what; each distinct choice of a role once."""
    seen = set()
    for index, layer in enumerate(placement.layers):
        for role, kind, choice in (
            ("attention", "linear", layer.attention),
            ("mlp", "linear", layer.mlp),
            ("experts", "experts", layer.experts),
        ):
            if choice is not None and (role, choice) not in seen:
                seen.add((role, choice))
                yield f"layer {index}'s {role}", kind, choice
    yield "lm_head", "linear", placement.lm_head


def _choice_problems(where: str, kind: str, choice: Choice) -> Iterator[str]:
    operator = OPERATORS.get(choice.operator)
    if operator is None or operator.kind != kind:
        known = [name for name, other in OPERATORS.items() if other.kind == kind]
        yield f"{where} has no operator {choice.operator!r}{did_you_mean(choice.operator, known)}"
        return
    on = "cpu" if choice.device == "cpu" else "gpu"
    if on not in operator.device_kinds:
        yield f"{where}: {choice.operator} does not run on {choice.device}"
    if choice.operator in MARLIN and choice.num_bits not in (4, 8):
        yield f"{where}: {choice.operator} has 4 or 8 bits, but got {choice.num_bits}"
    if choice.operator not in MARLIN and choice.num_bits is not None:
        yield f"{where}: {choice.operator} has no num_bits, but got {choice.num_bits}"


def _ktransformers_problems(placement: Placement, spec: ModelSpec) -> Iterator[str]:
    family = family_of(spec)
    devices = dict.fromkeys(layer.device for layer in placement.layers)
    if not family.in_chat and not is_served(spec, engine=placement.engine):
        yield f"it has no rules for {spec.geometry.architecture}{_served_by(family)}"
    if "cpu" in devices:
        yield "a layer must be on a GPU; only its experts and linears may be on the cpu"
    if len(devices) > 1 and not family.can_split:
        yield f"it cannot split {spec.geometry.architecture} over {', '.join(devices)}"
    for index, layer in enumerate(placement.layers):
        for role, choice in (("attention", layer.attention), ("mlp", layer.mlp)):
            if choice is not None and choice.device not in (layer.device, "cpu"):
                yield f"layer {index} is on {layer.device}, but its {role} on {choice.device}"
            if choice is not None and (choice.device == "cpu") != (
                choice.operator == "KLinearCPUInfer"
            ):
                yield f"layer {index}'s {role} on the cpu needs KLinearCPUInfer"
    for where, kind, choice in _choices(placement):
        yield from _version_problems(placement.engine, where, kind, choice)
    yield from _type_problems(placement, spec)
    if placement.engine == "ktransformers-0.2.1":
        yield from _odd_marlin(placement, spec)
    if is_served(spec, engine=placement.engine):
        yield from _server_problems(placement)


def _served_by(family: Family) -> str:
    return f"; {' and '.join(family.server_engines)} have" if family.server_engines else ""


def _server_problems(placement: Placement) -> Iterator[str]:
    """The server's experts take the batch's size, which those on a GPU do not; one GPU is all."""
    for where, kind, choice in _choices(placement):
        if kind == "experts" and choice.device != "cpu":
            yield f"{where}: the server (balance_serve) has experts on the cpu only"
        if kind == "linear" and choice.device == "cpu":
            yield f"{where}: the server (balance_serve) has linears on its GPU only"
    if any(layer.device != "cuda:0" for layer in placement.layers):
        yield "the server (balance_serve) runs on cuda:0 only"


def _version_problems(name: str, where: str, kind: str, choice: Choice) -> Iterator[str]:
    if kind != "experts" or choice.operator == "KExpertsCPU":
        return
    if choice.device == "cpu":
        yield f"{where}: experts on the cpu need KExpertsCPU"
    if choice.operator not in engine(name).gpu_experts:
        loads = ", ".join(("KExpertsCPU", *engine(name).gpu_experts))
        yield f"{where}: {choice.operator} cannot load in this version, but {loads}"
    if choice.num_bits == 8:
        yield f"{where}: num_bits does not reach KExpertsMarlin, which runs at 4 bits"


def _type_problems(placement: Placement, spec: ModelSpec) -> Iterator[str]:
    """Experts on a GPU are made from what the version dequantises there."""
    for module in spec.of_role(Role.EXPERTS):
        assert module.layer is not None
        choice = placement.layers[module.layer].experts
        if choice is None or choice.device == "cpu":
            continue
        bad = gpu_expert_types_missing(placement.engine, spec, module)
        if bad:
            yield f"layer {module.layer}'s experts are {', '.join(bad)}, which it leaves to the cpu"
            return


def gpu_expert_types_missing(engine_name: str, spec: ModelSpec, module: Module) -> list[str]:
    """Types of a layer's experts that the engine cannot bring to a GPU."""
    found = {info.ggml_type for info in spec.tensor_infos(module)}
    return sorted(kind.name for kind in found - engine(engine_name).gpu_expert_types)


def _odd_marlin(placement: Placement, spec: ModelSpec) -> Iterator[str]:
    """Up to 0.2.1, Marlin falls back to Torch silently where a dimension is no multiple of 64."""
    for module in spec.modules:
        choice = _choice_of(placement, module)
        if choice is None or choice.operator != "KLinearMarlin":
            continue
        if any(size % 64 for size in spec.tensor_infos(module)[0].shape):
            yield f"{module.path} has a dimension that 64 does not divide, so Marlin becomes Torch"
            return


def _choice_of(placement: Placement, module: Module) -> Choice | None:
    """What a placement says of a linear."""
    if module.role is Role.LM_HEAD:
        return placement.lm_head
    if module.role not in LINEAR_ROLES or module.layer is None:
        return None
    layer = placement.layers[module.layer]
    return layer.attention if module.role is Role.ATTENTION_LINEAR else layer.mlp
