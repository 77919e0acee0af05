"""Writes a placement as rules: explicit anchored alternations, one block a device and role."""

from collections.abc import Iterable, Iterator, Mapping

from autoplace.architectures.spec import ModelSpec, Module, Role
from autoplace.placement.assignment import Value
from autoplace.placement.placement import Choice, LayerPlacement, Placement
from autoplace.rules.expressible import refuse_inexpressible
from autoplace.rules.families import Injection, experts_class, injections, is_served
from autoplace.rules.rule import Rule
from autoplace.rules.vocabulary import LINEAR_CLASS, WRAPPED_LINEAR

Groups = Mapping[tuple[str, Choice], list[int]]
"""Layer device and choice → the layers that have them, in order of their first layer."""


def compile_rules(placement: Placement, spec: ModelSpec) -> tuple[Rule, ...]:
    """Rules that give every module of the model the device and operator of the placement.

    Raises `AutoplaceError` if the placement is not one of this model, or if the engine that it is
    for cannot express it.
    """
    refuse_inexpressible(placement, spec)
    return tuple(_rules(placement, spec))


def _rules(placement: Placement, spec: ModelSpec) -> Iterator[Rule]:
    devices = _layers_by_device(placement)
    wanted = injections(spec, engine=placement.engine)
    mlps = _groups(placement, "mlp")
    yield from _injected(Role.ROTARY, wanted, spec, devices)
    yield from _linears(Role.ATTENTION_LINEAR, spec, _groups(placement, "attention"))
    yield from _linears(Role.DENSE_LINEAR, spec, mlps)
    yield from _linears(Role.SHARED_LINEAR, spec, mlps)
    yield from _injected(Role.MLP, wanted, spec, devices)
    yield from _injected(Role.ROUTER, wanted, spec, devices)
    if is_served(spec, engine=placement.engine):
        yield from _served(wanted, spec, devices)
    experts = experts_class(spec, engine=placement.engine)
    yield from _experts(spec, _groups(placement, "experts"), experts)
    yield from _injected(Role.ATTENTION, wanted, spec, devices)
    if Role.MODEL in wanted:
        yield _model(placement, wanted[Role.MODEL])
    yield _default("^model\\.embed_tokens$", "cpu")
    lm_head = _linear_kwargs(placement.lm_head, _last(placement))
    yield Rule("^lm_head$", None, WRAPPED_LINEAR, lm_head)
    yield from _shared_rotary(spec, placement.layers[0].device)
    if not is_served(spec, engine=placement.engine):  # there nothing in a layer stays plain
        yield from _defaults(placement, devices)


def transfer_map(placement: Placement) -> dict[Value, Value]:
    """Layer → device to which the activations move before it, as the rule file spells it."""
    layers = placement.layers
    return {
        index: layers[index].device
        for index in range(1, len(layers))
        if layers[index].device != layers[index - 1].device
    }


def _last(placement: Placement) -> str:
    return placement.layers[-1].device


def _layers_by_device(placement: Placement) -> Mapping[str, list[int]]:
    devices: dict[str, list[int]] = {}
    for index, layer in enumerate(placement.layers):
        devices.setdefault(layer.device, []).append(index)
    return devices


def _groups(placement: Placement, role: str) -> Groups:
    groups: dict[tuple[str, Choice], list[int]] = {}
    for index, layer in enumerate(placement.layers):
        choice = _choice(layer, role)
        if choice is not None:
            groups.setdefault((layer.device, choice), []).append(index)
    return groups


def _choice(layer: LayerPlacement, role: str) -> Choice | None:
    return {"attention": layer.attention, "mlp": layer.mlp, "experts": layer.experts}[role]


def _escape(path: str) -> str:
    return path.replace(".", r"\.")


def layer_pattern(layers: Iterable[int], rest: str) -> str:
    """`^model\\.layers\\.(?:0|1|2)\\.` and what follows it."""
    return rf"^model\.layers\.(?:{'|'.join(map(str, layers))})\.{rest}"


def _below_layer(module: Module) -> str:
    """`mlp.experts` of `model.layers.3.mlp.experts`."""
    return module.path.removeprefix(f"model.layers.{module.layer}.")


def _devices(device: str) -> dict[str, Value]:
    return {"generate_device": device, "prefill_device": device}


def _default(name: str, device: str) -> Rule:
    return Rule(name, None, "default", _devices(device))


def _injected(
    role: Role,
    wanted: Mapping[Role, Injection],
    spec: ModelSpec,
    devices: Mapping[str, list[int]],
) -> Iterator[Rule]:
    """Modules that the family's own operators replace, on their layer's device."""
    injection = wanted.get(role)
    if injection is None:
        return
    modules = [module for module in spec.of_role(role) if injection.covers(module)]
    for device, layers in devices.items():
        here = [module for module in modules if module.layer in set(layers)]
        for rest, numbers in _by_rest(here).items():
            yield Rule(
                layer_pattern(numbers, f"{_escape(rest)}$"),
                injection.match_class,
                injection.replace_class,
                _devices(device),
            )


def _by_rest(modules: Iterable[Module]) -> Mapping[str, list[int]]:
    """Path below the layer → layers."""
    found: dict[str, list[int]] = {}
    for module in modules:
        assert module.layer is not None
        found.setdefault(_below_layer(module), []).append(module.layer)
    return found


def _linears(role: Role, spec: ModelSpec, groups: Groups) -> Iterator[Rule]:
    """Every replaceable linear by name, so that kv_b and routers stay plain."""
    for (device, choice), layers in groups.items():
        modules = [m for layer in layers for m in spec.of_role(role, layer)]
        if not modules:
            continue
        names = dict.fromkeys(_escape(_below_layer(module)) for module in modules)
        numbers = dict.fromkeys(module.layer for module in modules if module.layer is not None)
        yield Rule(
            layer_pattern(numbers, f"(?:{'|'.join(names)})$"),
            LINEAR_CLASS,
            WRAPPED_LINEAR,
            _linear_kwargs(choice, device),
        )


def _linear_kwargs(choice: Choice, layer_device: str) -> dict[str, Value]:
    returns = choice.operator == "KLinearCPUInfer"
    return _pair_kwargs(choice, layer_device, "KLinearTorch", has_out_device=returns)


def _served(
    wanted: Mapping[Role, Injection], spec: ModelSpec, devices: Mapping[str, list[int]]
) -> Iterator[Rule]:
    """What the server does not take plain: routers as Torch linears, norms, the last one too."""
    for device, layers in devices.items():
        modules = [module for layer in layers for module in spec.of_role(Role.ROUTER, layer)]
        for rest, numbers in _by_rest(modules).items():
            name = layer_pattern(numbers, f"{_escape(rest)}$")
            kwargs = _linear_kwargs(Choice(device, "KLinearTorch"), device)
            yield Rule(name, LINEAR_CLASS, WRAPPED_LINEAR, kwargs)
    norm = wanted[Role.NORM]
    for device, layers in devices.items():
        name = layer_pattern(layers, "")
        yield Rule(name, norm.match_class, norm.replace_class, _devices(device))
    last = list(devices)[-1]
    yield Rule("^model\\.norm$", norm.match_class, norm.replace_class, _devices(last))


def _experts(spec: ModelSpec, groups: Groups, class_name: str) -> Iterator[Rule]:
    """Routed experts, those on GPUs first; nothing is visited below them."""
    for (device, choice), layers in sorted(
        groups.items(), key=lambda item: item[0][1].device == "cpu"
    ):
        modules = [m for layer in layers for m in spec.of_role(Role.EXPERTS, layer)]
        for rest, numbers in _by_rest(modules).items():
            yield Rule(
                layer_pattern(numbers, f"{_escape(rest)}$"),
                None,
                class_name,
                _experts_kwargs(choice, device),
                recursive=False,
            )


def _experts_kwargs(choice: Choice, layer_device: str) -> dict[str, Value]:
    return _pair_kwargs(choice, layer_device, "KExpertsTorch", has_out_device=True)


def _pair_kwargs(
    choice: Choice, layer_device: str, prefill_op: str, *, has_out_device: bool
) -> dict[str, Value]:
    """The conventional valid pair: prefill by plain torch on a device that has the layer."""
    kwargs: dict[str, Value] = {
        "generate_device": choice.device,
        "prefill_device": layer_device if choice.device == "cpu" else choice.device,
        "generate_op": choice.operator,
        "prefill_op": prefill_op,
    }
    if has_out_device:
        kwargs["out_device"] = layer_device
    if choice.num_bits not in (None, 4):
        kwargs["num_bits"] = choice.num_bits
    return kwargs


def _model(placement: Placement, injection: Injection) -> Rule:
    """`^model$`, which moves the activations; the threshold's own default breaks split models."""
    kwargs: dict[str, Value] = {"per_layer_prefill_intput_threshold": 0}
    moves = transfer_map(placement)
    if moves:
        kwargs["transfer_map"] = moves
    return Rule("^model$", None, injection.replace_class, kwargs)


def _shared_rotary(spec: ModelSpec, device: str) -> Iterator[Rule]:
    """A rotary embedding that all layers share runs where the activations start."""
    for module in spec.of_role(Role.ROTARY):
        if module.layer is None:
            yield _default(f"^{_escape(module.path)}$", device)


def _defaults(placement: Placement, devices: Mapping[str, list[int]]) -> Iterator[Rule]:
    """All that stays plain in each layer; the final norm runs where the last layer does."""
    last = _last(placement)
    for device, layers in devices.items():
        if device != last:
            yield _default(layer_pattern(layers, ""), device)
    yield _default(f"({layer_pattern(devices[last], '')})|(^model\\.norm)", last)
