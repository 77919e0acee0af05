"""A placement as llama.cpp's arguments, and what its arguments mean as a placement."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace

from autoplace.architectures.spec import ModelSpec, Module, Role
from autoplace.catalog.llama_cpp import ENGINE, EXPERTS, LINEAR
from autoplace.errors import AutoplaceError
from autoplace.export.llama_cpp.args import LlamaCppArgs
from autoplace.export.llama_cpp.layout import (
    EMBEDDING,
    HOST,
    cuda_buffers,
    gpus_of,
    layer_devices,
    seen_devices,
    tensor_devices,
    tensor_key,
)
from autoplace.export.llama_cpp.names import (
    experts_of_layers,
    has_old_experts,
    old_experts_of_layers,
    one_name,
)
from autoplace.placement.assignment import Assignment
from autoplace.placement.expand import Expander
from autoplace.placement.placement import Choice, LayerPlacement, Placement
from autoplace.placement.settings import RunSettings


def arguments_of(
    assignment: Assignment,
    homes: Sequence[str],
    spec: ModelSpec,
    buffers: Mapping[str, str] | None = None,
) -> LlamaCppArgs:
    """The arguments that put every tensor where the assignment has its module.

    `homes`: device of each layer. `buffers`: of all devices that llama.cpp will see, in its order;
    None for the CUDA devices that the layers use. Operators do not travel: llama.cpp holds the
    file's own blocks everywhere. Raises `AutoplaceError` for what it cannot express.
    """
    buffers = dict(buffers) if buffers is not None else cuda_buffers(_cuda_named(assignment, homes))
    gpus = gpus_of(buffers)
    on_host = _leading_on_host(homes, gpus)
    behind = spec.geometry.num_mtp_layers + 1  # layers that never run, and the output
    args = LlamaCppArgs(
        n_gpu_layers=len(homes) + behind - on_host if on_host < len(homes) else 0,
        tensor_split=_split(homes[on_host:], gpus, behind),
    )
    base = layer_devices(args, len(homes) + behind - 1, gpus)
    meant = _meant(assignment, homes, spec)
    overrides = tuple(
        (pattern, buffers[device]) for pattern, device in _overrides(meant, base, spec)
    )
    args = replace(args, overrides=overrides)
    placed = tensor_devices(args, spec, buffers)
    for name, device in meant.items():
        assert placed[name] == device, (name, placed[name], device)
    return args


def _cuda_named(assignment: Assignment, homes: Sequence[str]) -> list[str]:
    """`cuda:0` to the last one that a layer or a module is on."""
    used = {*homes, *(m.device for m in assignment.modules.values() if m.operator)} - {HOST}
    last = max((int(name.partition(":")[2]) for name in used), default=-1)
    return [f"cuda:{index}" for index in range(last + 1)]


def _leading_on_host(homes: Sequence[str], gpus: Sequence[str]) -> int:
    """How many leading layers are on the host; the rest is on GPUs, in their order."""
    unknown = set(homes) - {HOST, *gpus}
    if unknown:
        raise AutoplaceError(
            f"llama.cpp export: layers are on {', '.join(sorted(unknown))}, but there is "
            f"{', '.join([HOST, *gpus])}"
        )
    on_host = next((i for i, home in enumerate(homes) if home != HOST), len(homes))
    rest = homes[on_host:]
    if HOST in rest:
        raise AutoplaceError(
            "llama.cpp export: -ngl keeps the first layers on the CPU, but layer "
            f"{on_host + rest.index(HOST)} is there behind layer {on_host} on {homes[on_host]}; "
            "its experts alone may be"
        )
    order = [gpus.index(home) for home in rest]
    if order != sorted(order):
        raise AutoplaceError(
            "llama.cpp export: -ts gives each GPU one run of layers, in the order of the GPUs, "
            f"but the layers are on {', '.join(dict.fromkeys(rest))} in another order"
        )
    return on_host


def _split(homes: Sequence[str], gpus: Sequence[str], behind: int) -> tuple[float, ...]:
    """Layers a GPU, those behind the last one counted to its GPU."""
    counts = [float(list(homes).count(gpu)) for gpu in gpus]
    if len(gpus) < 2 or not homes:
        return ()
    counts[gpus.index(homes[-1])] += behind
    return tuple(counts)


def _meant(assignment: Assignment, homes: Sequence[str], spec: ModelSpec) -> dict[str, str]:
    """Tensor → device. Norms and routers follow their layer, the embedding stays on the host."""
    meant = {}
    for module in spec.modules:
        device = _device_of(module, assignment, homes)
        for tensor in module.tensors:
            is_embedding = module.role is Role.EMBEDDING
            meant[tensor_key(module, tensor)] = HOST if is_embedding else device
    return meant


def _device_of(module: Module, assignment: Assignment, homes: Sequence[str]) -> str:
    entry = assignment.modules.get(module.path)
    if entry is not None and entry.operator:
        return entry.device
    return homes[module.layer] if module.layer is not None else homes[-1]


def _overrides(
    meant: Mapping[str, str], base: Sequence[str], spec: ModelSpec
) -> Iterator[tuple[str, str]]:
    """Layers whose experts are elsewhere by one pattern a device, other tensors by their names."""
    experts: dict[str, list[int]] = {}
    others: dict[str, list[str]] = {}
    for module in spec.modules:
        if module.role is Role.EMBEDDING or not module.tensors:
            continue
        home = base[-1 if module.layer is None else module.layer]
        device = meant[tensor_key(module, module.tensors[0])]
        if device == home:
            continue
        if module.role is Role.EXPERTS and module.layer is not None:
            experts.setdefault(device, []).append(module.layer)
        else:
            others.setdefault(device, []).extend(module.tensors)
    pattern_of = old_experts_of_layers if has_old_experts(spec.tensors) else experts_of_layers
    for device, layers in experts.items():
        yield pattern_of(layers), device
    for device, names in others.items():
        if EMBEDDING in names and device != HOST:
            raise AutoplaceError(
                "llama.cpp export: the output is the embedding, so it is on the CPU or with the "
                f"last layer, but not on {device}"
            )
        yield one_name(names), device


def args_of_placement(
    placement: Placement,
    settings: RunSettings,
    spec: ModelSpec,
    buffers: Mapping[str, str],
    *,
    context_tokens: int,
    expander: Expander | None = None,
) -> LlamaCppArgs:
    """The whole record of a trial: where everything is, and how it is run.

    `fit` is off, so that what was chosen is what runs; one sequence at a time.
    """
    homes = [layer.device for layer in placement.layers]
    where = arguments_of((expander or Expander(spec)).expand(placement), homes, spec, buffers)
    return with_settings(where, settings, buffers, context_tokens=context_tokens)


def with_settings(
    where: LlamaCppArgs,
    settings: RunSettings,
    buffers: Mapping[str, str],
    *,
    context_tokens: int,
) -> LlamaCppArgs:
    """Arguments of where things are, with those of how they are run."""
    rpc = [name.partition("[")[2].removesuffix("]") for name in buffers.values() if "[" in name]
    return replace(
        where,
        cache_type_k=settings.kv_type,
        cache_type_v=settings.kv_type,
        ubatch=settings.prefill_chunk,
        batch=max(settings.batch or LlamaCppArgs.batch, settings.prefill_chunk),
        threads=settings.num_threads,
        flash_attn=settings.flash_attn or "auto",
        context=context_tokens,
        rpc=tuple(rpc),
        fit=False,
        parallel=1,
    )


def settings_of(args: LlamaCppArgs, *, num_cores: int) -> RunSettings:
    """How a line runs, as far as a study tunes it."""
    return RunSettings(
        num_threads=args.threads or num_cores,
        prefill_chunk=args.ubatch,
        kv_type=args.cache_type_k,
        batch=args.batch,
        flash_attn=args.flash_attn,
    )


def placement_of(args: LlamaCppArgs, spec: ModelSpec, buffers: Mapping[str, str]) -> Placement:
    """The placement that arguments mean.

    Raises `AutoplaceError` where they split what a placement keeps together: the tensors of one
    attention, of one MLP, or of one layer's experts.
    """
    total = spec.geometry.num_layers + spec.geometry.num_mtp_layers
    homes = layer_devices(args, total, seen_devices(args, buffers))
    return _placement(tensor_devices(args, spec, buffers), homes, spec)


def _placement(devices: Mapping[str, str], homes: Sequence[str], spec: ModelSpec) -> Placement:
    layers = []
    for index in range(spec.geometry.num_layers):
        found = {
            group: _common_device(devices, spec, index, roles) for group, roles in _GROUPS.items()
        }
        attention, mlp, experts = (found[group] for group in ("attention", "mlp", "experts"))
        layers.append(
            LayerPlacement(
                homes[index],
                Choice(attention or homes[index], LINEAR),
                Choice(mlp, LINEAR) if mlp else None,
                Choice(experts, EXPERTS) if experts else None,
            )
        )
    head = _common_device(devices, spec, None, (Role.LM_HEAD,)) or homes[-1]
    return Placement(ENGINE, tuple(layers), Choice(head, LINEAR))


def nearest_placement(args: LlamaCppArgs, spec: ModelSpec, buffers: Mapping[str, str]) -> Placement:
    """The placement that comes nearest: what arguments split is where most of its bytes are.

    llama.cpp's own `--fit` splits one layer a device by tensors; what runs is its line.
    """
    devices = tensor_devices(args, spec, buffers)
    for layer in range(spec.geometry.num_layers):
        for roles in _GROUPS.values():
            devices |= _gathered(spec, devices, layer, roles)
    homes = layer_devices(
        args, spec.geometry.num_layers + spec.geometry.num_mtp_layers, seen_devices(args, buffers)
    )
    return _placement(devices, homes, spec)


def _gathered(
    spec: ModelSpec,
    devices: Mapping[str, str],
    layer: int,
    roles: Sequence[Role],
) -> dict[str, str]:
    """Tensors of one group of modules → the device of most of their bytes."""
    tensors = [tensor for role in roles for m in spec.of_role(role, layer) for tensor in m.tensors]
    n_bytes: dict[str, int] = {}
    for tensor in tensors:
        device = devices[tensor]
        n_bytes[device] = n_bytes.get(device, 0) + spec.tensors[tensor].n_bytes
    most = max(n_bytes, key=lambda device: n_bytes[device], default=HOST)
    return dict.fromkeys(tensors, most)


_GROUPS: Mapping[str, tuple[Role, ...]] = {
    "attention": (Role.ATTENTION_LINEAR,),
    "mlp": (Role.DENSE_LINEAR, Role.SHARED_LINEAR),
    "experts": (Role.EXPERTS,),
}


def _common_device(
    devices: Mapping[str, str], spec: ModelSpec, layer: int | None, roles: Sequence[Role]
) -> str | None:
    found = {
        devices[tensor_key(module, tensor)]: tensor
        for role in roles
        for module in spec.of_role(role, layer)
        for tensor in module.tensors
    }
    if len(found) > 1:
        (one, first), (other, second), *_ = found.items()
        raise AutoplaceError(
            f"{first} is on {one} and {second} on {other}: a placement keeps them together"
        )
    return next(iter(found), None)
