"""The smallest changes of launch flags with which a placement that does not fit would."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from autoplace.architectures.spec import ModelSpec, Module, Role
from autoplace.export.llama_cpp import LlamaCppArgs, tensor_devices
from autoplace.export.llama_cpp.layout import HOST, buffer_name, gpus_of, layer_devices
from autoplace.export.llama_cpp.memory import context_of, plan_llama_cpp
from autoplace.export.llama_cpp.names import experts_of_layers
from autoplace.hardware.machine import Machine
from autoplace.placement.memory import MemoryPlan
from autoplace.placement.remedies import layers_text

_MOST = 3
_CONTEXT_STEP = 256
_LEAST_CONTEXT = 1024


@dataclass(frozen=True)
class FlagChange:
    """One change, after which everything fits."""

    what: str
    plan: MemoryPlan
    args: LlamaCppArgs


@dataclass(frozen=True)
class LlamaSituation:
    """A line of arguments on a machine."""

    spec: ModelSpec
    args: LlamaCppArgs
    buffers: Mapping[str, str]
    machine: Machine
    context_tokens: int

    def with_args(self, args: LlamaCppArgs) -> "LlamaSituation":
        return replace(self, args=args)

    def plan(self) -> MemoryPlan:
        return plan_llama_cpp(
            self.spec, self.args, self.buffers, context_tokens=self.context_tokens
        )

    def over(self) -> dict[str, int]:
        """Devices that are too small → bytes that they lack."""
        overrun = self.plan().overrun_bytes(self.machine)
        return {device: n_bytes for device, n_bytes in overrun.items() if n_bytes > 0}

    def expert_layers(self) -> Mapping[str, list[int]]:
        """Device → layers whose experts are there."""
        devices = tensor_devices(self.args, self.spec, self.buffers)
        found: dict[str, list[int]] = {}
        for layer, module in _experts(self.spec).items():
            found.setdefault(devices[module.tensors[0]], []).append(layer)
        return found


def smallest_flag_changes(situation: LlamaSituation) -> list[FlagChange]:
    """Up to three changes that fit, each by itself; none where all fits or nothing helps."""
    if not situation.over():
        return []
    found = []
    for make in (_experts_to_host, _experts_to_gpus, _split_by_memory, _small_cache, _context):
        for what, args in make(situation):
            after = situation.with_args(args)
            if not after.over():
                found.append(FlagChange(what, after.plan(), args))
    return found[:_MOST]


Candidates = Iterator[tuple[str, LlamaCppArgs]]


def _experts(spec: ModelSpec) -> Mapping[int, Module]:
    return {m.layer: m for m in spec.of_role(Role.EXPERTS) if m.layer is not None}


def _experts_to_host(situation: LlamaSituation) -> Candidates:
    """Of each GPU that is too small as few layers as needed, the largest first."""
    chosen = _moved(
        situation,
        sources=[device for device in situation.over() if device != HOST],
        move=lambda args, layers: _placed(args, layers, "CPU"),
    )
    if chosen:
        host = sum(situation.spec.n_bytes(_experts(situation.spec)[layer]) for layer in chosen)
        what = f"experts of {layers_text(chosen)} to the CPU ({host:,} B there)"
        yield what, _placed(situation.args, chosen, "CPU")


def _experts_to_gpus(situation: LlamaSituation) -> Candidates:
    """The host is too small: experts go to their layers' GPUs while those have room."""
    if HOST not in situation.over():
        return
    experts, spec = _experts(situation.spec), situation.spec
    homes = layer_devices(situation.args, spec.geometry.num_layers, gpus_of(situation.buffers))
    room = {d: -over for d, over in situation.plan().overrun_bytes(situation.machine).items()}
    lacking, up = situation.over()[HOST], dict[str, list[int]]()
    on_host = situation.expert_layers().get(HOST, [])
    for layer in sorted(on_host, key=lambda one: -spec.n_bytes(experts[one])):
        size = spec.n_bytes(experts[layer])
        if lacking > 0 and homes[layer] != HOST and room.get(homes[layer], 0) >= size:
            room[homes[layer]] -= size
            lacking -= size
            up.setdefault(homes[layer], []).append(layer)
    args = situation.args
    for device, layers in up.items():
        args = _placed(args, sorted(layers), situation_buffer(situation, device))
    if up:
        every = sorted(layer for layers in up.values() for layer in layers)
        yield f"experts of {layers_text(every)} to their GPUs", args


def situation_buffer(situation: LlamaSituation, device: str) -> str:
    """llama.cpp's name of a device's buffer."""
    named = {at: name for name, at in situation.buffers.items()}
    return named.get(device, buffer_name(device))


def _moved(
    situation: LlamaSituation,
    *,
    sources: Sequence[str],
    move: Callable[[LlamaCppArgs, list[int]], LlamaCppArgs],
) -> list[int]:
    """The fewest layers whose experts have to leave the devices, by device; all if too few."""
    experts = _experts(situation.spec)
    chosen: list[int] = []
    for device in sources:
        layers = situation.expert_layers().get(device, [])
        layers = sorted(layers, key=lambda one: (-situation.spec.n_bytes(experts[one]), -one))
        lacking = situation.over()[device]
        for layer in layers:
            if lacking <= 0:
                after = situation.with_args(move(situation.args, sorted(chosen))).over()
                lacking = after.get(device, 0)
            if lacking <= 0:
                break
            chosen.append(layer)
            lacking -= situation.spec.n_bytes(experts[layer])
    return sorted(chosen)


def _placed(args: LlamaCppArgs, layers: Sequence[int], buffer: str) -> LlamaCppArgs:
    """The experts of some layers elsewhere: the first pattern that is found wins."""
    return replace(args, overrides=((experts_of_layers(layers), buffer), *args.overrides))


def _split_by_memory(situation: LlamaSituation) -> Candidates:
    """`-ts` by what each GPU has left beside weights of layers: its memory."""
    gpus = [situation.machine.by_name[name] for name in gpus_of(situation.buffers)]
    if len(gpus) < 2 or not any(device != HOST for device in situation.over()):
        return
    shares = tuple(float(round(gpu.memory_bytes / 2**30)) for gpu in gpus)
    if shares != situation.args.tensor_split:
        shown = ",".join(f"{share:g}" for share in shares)
        yield f"-ts {shown}, by the GPUs' memory", replace(situation.args, tensor_split=shares)


def _small_cache(situation: LlamaSituation) -> Candidates:
    """Keys and values in 8 bits; llama.cpp wants flash attention for values."""
    if (situation.args.cache_type_k, situation.args.cache_type_v) == ("f16", "f16"):
        args = replace(situation.args, cache_type_k="q8_0", cache_type_v="q8_0", flash_attn="on")
        yield "-ctk q8_0 -ctv q8_0 -fa on: the cache in 8 bits", args


def _context(situation: LlamaSituation) -> Candidates:
    """The longest context that fits, if a useful one does."""
    tokens = context_of(situation.spec, situation.args, situation.context_tokens)
    low, high = 0, tokens // _CONTEXT_STEP
    while high - low > 1:
        middle = (low + high) // 2
        args = replace(situation.args, context=middle * _CONTEXT_STEP)
        low, high = (low, middle) if situation.with_args(args).over() else (middle, high)
    fitting = low * _CONTEXT_STEP
    if fitting >= _LEAST_CONTEXT:
        yield f"-c {fitting} instead of {tokens}", replace(situation.args, context=fitting)
