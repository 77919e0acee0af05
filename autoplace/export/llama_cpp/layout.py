"""A placement as llama.cpp's `-ngl`, `-ts`, `-ot`, by llama.cpp's own rules of what goes where.

Source: llama.cpp's src/llama-model.cpp (`load_tensors`: layers go to GPUs by the cumulated tensor
split, the output counting as one layer more) and src/llama-model-loader.cpp (the first override
whose pattern is found in a tensor's name decides).
"""

import re
import shlex
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from autoplace.architectures.spec import ModelSpec, Role
from autoplace.errors import AutoplaceError
from autoplace.placement.assignment import Assignment
from autoplace.rules.finding import Finding, Severity
from autoplace.rules.pattern import PatternError, compile_pattern

EXPERTS = r"ffn_(up|down|gate|gate_up)_(ch|)exps"
"""llama.cpp's own pattern of `--cpu-moe`: split, fused and chunked names."""
HOST = "cpu"
_DEVICE = re.compile(r"CPU|CUDA(\d{1,3})")


@dataclass(frozen=True)
class Arguments:
    """What decides where llama.cpp puts tensors."""

    num_gpu_layers: int
    """Layers on GPUs, the output counted as one."""
    tensor_split: tuple[float, ...] = ()
    """Share of each GPU, in order; empty: by free memory, which only llama.cpp knows."""
    overrides: tuple[tuple[str, str], ...] = ()
    """Pattern and device, the first that is found in a tensor's name wins."""

    def words(self) -> list[str]:
        """As given to `llama-server`."""
        split = ",".join(f"{share:g}" for share in self.tensor_split)
        words = ["-ngl", str(self.num_gpu_layers), *(["-ts", split] if split else [])]
        for pattern, device in self.overrides:
            words += ["-ot", f"{pattern}={buffer_name(device)}"]
        return words

    def line(self) -> str:
        return shlex.join(self.words())


def buffer_name(device: str) -> str:
    """`CUDA1` for `cuda:1`."""
    return "CPU" if device == HOST else device.upper().replace(":", "")


def arguments_of(assignment: Assignment, homes: Sequence[str], spec: ModelSpec) -> Arguments:
    """The arguments that put every tensor where the assignment has its module.

    Operators do not travel: llama.cpp holds the file's own blocks on every device. Raises
    `AutoplaceError` for what it cannot express.
    """
    gpus = _gpus_in_order(homes)
    counts = [float(list(homes).count(gpu)) for gpu in gpus]
    counts[-1] += 1
    arguments = Arguments(len(homes) + 1, tuple(counts) if len(gpus) > 1 else ())
    arguments = Arguments(
        arguments.num_gpu_layers,
        arguments.tensor_split,
        tuple(_overrides(assignment, homes, spec)),
    )
    placed = tensor_devices(arguments, spec, gpus)
    for name, device in _meant(assignment, homes, spec).items():
        assert placed[name] == device, (name, placed[name], device)
    return arguments


def _gpus_in_order(homes: Sequence[str]) -> list[str]:
    gpus = list(dict.fromkeys(homes))
    if HOST in gpus:
        raise AutoplaceError(
            "llama.cpp export: a layer must be on a GPU; its experts may be on cpu"
        )
    if sorted(gpus) != [f"cuda:{index}" for index in range(len(gpus))]:
        raise AutoplaceError(
            f"llama.cpp export: layers must use cuda:0 to cuda:{len(gpus) - 1}, but they are on "
            f"{', '.join(gpus)}; hide other GPUs with CUDA_VISIBLE_DEVICES"
        )
    order = [int(gpu.partition(":")[2]) for gpu in homes]
    if order != sorted(order):
        raise AutoplaceError(
            "llama.cpp export: -ts gives each GPU one run of layers, in the order of the GPUs, "
            f"but the layers are on {', '.join(gpus)} in another order"
        )
    return sorted(gpus)


def _meant(assignment: Assignment, homes: Sequence[str], spec: ModelSpec) -> dict[str, str]:
    """Tensor → device. Norms and routers follow their layer, the embedding stays on the host."""
    meant = {}
    for module in spec.modules:
        entry = assignment.modules.get(module.path)
        home = homes[module.layer] if module.layer is not None else homes[-1]
        device = entry.device if entry is not None and entry.operator else home
        for tensor in module.tensors:
            meant[tensor] = HOST if module.role is Role.EMBEDDING else device
    return meant


def _overrides(
    assignment: Assignment, homes: Sequence[str], spec: ModelSpec
) -> Iterator[tuple[str, str]]:
    """Layers whose experts are elsewhere by one pattern a device, other tensors by their names."""
    experts: dict[str, list[int]] = {}
    others: dict[str, list[str]] = {}
    for module in spec.modules:
        entry = assignment.modules.get(module.path)
        if entry is None or not entry.operator or not module.tensors:
            continue
        home = homes[module.layer] if module.layer is not None else homes[-1]
        if entry.device == home:
            continue
        if module.role is Role.EXPERTS and module.layer is not None:
            experts.setdefault(entry.device, []).append(module.layer)
        else:
            others.setdefault(entry.device, []).extend(module.tensors)
    for device, layers in experts.items():
        yield rf"blk\.({'|'.join(map(str, layers))})\.{EXPERTS}", device
        yield from _old_experts(spec, layers, device)
    for device, names in others.items():
        yield f"^({'|'.join(re.escape(name) for name in names)})$", device


def _old_experts(spec: ModelSpec, layers: list[int], device: str) -> Iterator[tuple[str, str]]:
    """Old Mixtral files hold each expert by itself, `ffn_gate.3.weight`."""
    if any(re.search(r"ffn_gate\.\d+\.", name) for name in spec.tensors):
        yield rf"blk\.({'|'.join(map(str, layers))})\.ffn_(gate|up|down)\.\d+\.", device


def tensor_devices(arguments: Arguments, spec: ModelSpec, gpus: Sequence[str]) -> Mapping[str, str]:
    """Tensor → device, as llama.cpp decides."""
    patterns = [(re.compile(pattern), device) for pattern, device in arguments.overrides]
    devices = layer_devices(arguments, spec.geometry.num_layers, gpus)
    found = {}
    for module in spec.modules:
        of_layer = devices[-1 if module.layer is None else module.layer]
        device = HOST if module.role is Role.EMBEDDING else of_layer
        for tensor in module.tensors:
            overridden = (to for pattern, to in patterns if pattern.search(tensor))
            found[tensor] = next(overridden, device)
    return found


def layer_devices(arguments: Arguments, num_layers: int, gpus: Sequence[str]) -> list[str]:
    """Device of each layer, and of the output as one more (also of each layer's cache)."""
    active = min(arguments.num_gpu_layers, num_layers + 1)
    start = max(num_layers + 1 - arguments.num_gpu_layers, 0)
    split = arguments.tensor_split or (1.0,) * len(gpus)
    shares = np.array(split[: len(gpus)], np.float32)
    bounds = np.cumsum(shares, dtype=np.float32) / np.float32(shares.sum())
    devices = []
    for layer in range(num_layers + 1):
        if layer < start or not gpus or not active:
            devices.append(HOST)
            continue
        at = np.float32(layer - start) / np.float32(active)
        index = int(np.searchsorted(bounds, at, side="right"))
        devices.append(gpus[min(index, len(gpus) - 1)])
    return devices


def parse_arguments(text: str, *, num_layers: int) -> Arguments:
    """The words of a command line that matter here. Raises `AutoplaceError`."""
    try:
        words = shlex.split(text, comments=True)
    except ValueError as error:
        raise AutoplaceError(f"not a command line: {error}") from error
    split: tuple[float, ...] = ()
    layers, overrides = num_layers + 1, list[tuple[str, str]]()
    for word, value in zip(words, [*words[1:], ""], strict=True):
        if word in ("-ngl", "--n-gpu-layers", "--gpu-layers"):
            layers = num_layers + 1 if value in ("all", "auto") else _count(word, value)
        elif word in ("-ts", "--tensor-split"):
            split = tuple(float(_count(word, share)) for share in re.split("[,/]", value))
        elif word in ("-ot", "--override-tensor"):
            overrides += [_override(part) for part in value.split(",")]
        elif word in ("-cmoe", "--cpu-moe"):
            overrides.append((rf"\.{EXPERTS}", HOST))
        elif word in ("-ncmoe", "--n-cpu-moe"):
            first = range(_count(word, value))
            overrides += [(rf"blk\.{layer}\.{EXPERTS}", HOST) for layer in first]
    return Arguments(layers, split, tuple(overrides))


def _count(word: str, value: str) -> int:
    if not re.fullmatch(r"\d{1,6}(\.\d+)?", value):
        raise AutoplaceError(f"{word} takes numbers, but got {value!r}")
    return round(float(value))


def _override(part: str) -> tuple[str, str]:
    pattern, equals, name = part.rpartition("=")
    match = _DEVICE.fullmatch(name)
    if not equals or match is None:
        raise AutoplaceError(f"-ot takes PATTERN=CPU or PATTERN=CUDAn, but got {part!r}")
    return pattern, HOST if name == "CPU" else f"cuda:{match[1]}"


def check_overrides(arguments: Arguments, names: Sequence[str]) -> list[Finding]:
    """Patterns against the tensors of the file: one that matches nothing is an error."""
    findings, taken = [], set[str]()
    for number, (pattern, device) in enumerate(arguments.overrides, start=1):
        try:
            compiled = compile_pattern(pattern)
        except PatternError as error:
            findings.append(_finding(number, "bad-pattern", f"-ot {pattern!r}: {error}"))
            continue
        found = {name for name in names if compiled.search(name)}
        if not found:
            message = f"-ot {pattern}={buffer_name(device)} matches no tensor of the file"
            findings.append(_finding(number, "dead-override", message))
        elif found <= taken:
            message = f"-ot {pattern}={buffer_name(device)}: earlier patterns take all its tensors"
            findings.append(_finding(number, "shadowed-override", message))
        taken |= found
    return findings


def _finding(number: int, code: str, message: str) -> Finding:
    return Finding(
        Severity.ERROR,
        code,
        message,
        rule=number,
        effect="llama.cpp says nothing, and the tensors stay with their layer",
        remedy=rf"names are as in blk\.3\.{EXPERTS}",
    )
