"""What llama.cpp's log says: bytes by device, and why it could not go on.

Sources: b9993, src/llama-model.cpp and llama-context.cpp (`… model buffer size`, `KV`, `compute`,
`output`), ggml-backend.cpp, ggml-cuda.cu (`cudaMalloc failed`), ggml-rpc.cpp.
"""

import re
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from autoplace.bench.metrics import DeviceBytes
from autoplace.hardware.machine import Machine
from autoplace.units import MIB

_BUFFER = re.compile(
    r"(?P<buffer>[\w.\[\]:-]+)\s+(?:DSV4 \w+ )?"
    r"(?P<kind>model|KV|RS|state|compute|output) buffer size\s*=\s*(?P<mib>[\d.]+) MiB"
)
_NEW_MODEL = "loading model tensors"
_NEW_CONTEXT = "llama_context: constructing"
_CUDA = re.compile(r"(?:CUDA|ROCm|Vulkan|SYCL)(\d+)")
_ENDPOINT = re.compile(r"RPC\d+\[(.+)\]")
_NO_MEMORY = (
    re.compile(r"failed to allocate (?P<buffer>\S+) buffer of size (?P<n_bytes>\d+)"),
    re.compile(r"unable to allocate (?P<buffer>\S+) buffer"),
    re.compile(r"allocating (?P<mib>[\d.]+) MiB on device (?P<cuda>\d+): .*out of memory"),
    re.compile(r"failed to allocate (?:buffer for|compute)"),
    re.compile(r"ggml_aligned_malloc: insufficient memory"),
    re.compile(r"CUDA error: out of memory"),
    re.compile(r"std::bad_alloc"),
)
_CANNOT_LOAD = re.compile(r"error loading model: (?P<why>.*)")
_ERRORS = (
    _CANNOT_LOAD,
    re.compile(r"llama_init_from_model: (?P<why>.*)"),
    re.compile(r"error: (?P<why>(?!failed to (?:load|create)).*)"),
    re.compile(r"GGML_ASSERT\((?P<why>.*)"),
)
_KINDS = {"model": "weights", "KV": "kv_cache", "RS": "kv_cache", "state": "kv_cache"}
"""Of shards and of caches with and without a window there is a line each; compute buffers are
logged again when they have grown."""
_MAPPED = "_Mapped"


@dataclass(frozen=True)
class NoMemory:
    """An allocation that failed."""

    device: str | None
    """None where the log does not say which."""
    n_bytes: int | None
    line: str


def device_of(buffer: str, machine: Machine) -> str:
    """The machine's name of the device that a buffer is on; pinned and repacked ones are `cpu`."""
    found = _ENDPOINT.search(buffer)
    if found:
        of_server = [gpu.name for gpu in machine.gpus if gpu.endpoint == found[1]]
        return of_server[0] if of_server else buffer
    numbered = _CUDA.fullmatch(buffer)
    return f"cuda:{numbered[1]}" if numbered else "cpu"


def buffers(
    log: Sequence[str], machine: Machine, *, tensor_bytes: int | None = None
) -> dict[str, DeviceBytes]:
    """Bytes by device of the model and context that were made last.

    Exact to 0.01 MiB a buffer. What the driver's context takes is not in them. The log has the
    whole span of the file that is mapped, whose tensors may be copied elsewhere: with
    `tensor_bytes`, of all the model's, no more of it is counted than other buffers leave.
    """
    found: dict[tuple[str, str], int] = defaultdict(int)
    for line in log:
        if _NEW_MODEL in line:
            found.clear()
        elif _NEW_CONTEXT in line:
            for key in [key for key in found if key[1] != "model"]:
                del found[key]
        match = _BUFFER.search(line)
        if match:
            key = match["buffer"], match["kind"]
            before = found[key] if match["kind"] in _KINDS else 0
            found[key] = before + round(float(match["mib"]) * MIB)
    if tensor_bytes is not None:
        found |= _used_of_mapped(found, tensor_bytes)
    return _by_device(found, machine)


def _used_of_mapped(
    found: Mapping[tuple[str, str], int], tensor_bytes: int
) -> dict[tuple[str, str], int]:
    weights = {buffer: size for (buffer, kind), size in found.items() if kind == "model"}
    mapped = {buffer for buffer in weights if buffer.endswith(_MAPPED)}
    left = tensor_bytes - sum(size for buffer, size in weights.items() if buffer not in mapped)
    return {(buffer, "model"): max(0, min(weights[buffer], left)) for buffer in mapped}


def _by_device(found: Mapping[tuple[str, str], int], machine: Machine) -> dict[str, DeviceBytes]:
    parts: dict[str, dict[str, int]] = defaultdict(lambda: defaultdict(int))
    for (buffer, kind), size in found.items():
        parts[device_of(buffer, machine)][_KINDS.get(kind, "workspace")] += size
    return {
        name: DeviceBytes(
            weights=of["weights"],
            kv_cache=of["kv_cache"],
            workspace=of["workspace"],
            peak=sum(of.values()),
        )
        for name, of in sorted(parts.items())
    }


def larger(
    one: Mapping[str, DeviceBytes], two: Mapping[str, DeviceBytes]
) -> dict[str, DeviceBytes]:
    """Of two runs with the same placement, each device's larger figures."""
    nothing = DeviceBytes(0, 0, 0, 0)
    both = {name: (one.get(name, nothing), two.get(name, nothing)) for name in {*one, *two}}
    return {
        name: DeviceBytes(
            weights=max(a.weights, b.weights),
            kv_cache=max(a.kv_cache, b.kv_cache),
            workspace=max(a.workspace, b.workspace),
            peak=max(a.peak, b.peak),
        )
        for name, (a, b) in sorted(both.items())
    }


def no_memory(log: Sequence[str], machine: Machine) -> NoMemory | None:
    """The first allocation that failed, if any did."""
    for line in log:
        for pattern in _NO_MEMORY:
            match = pattern.search(line)
            if match:
                return _no_memory(match.groupdict(), line, machine)
    return None


def _no_memory(of: Mapping[str, str | None], line: str, machine: Machine) -> NoMemory:
    buffer, cuda = of.get("buffer"), of.get("cuda")
    device = f"cuda:{cuda}" if cuda else device_of(buffer, machine) if buffer else None
    mib, n_bytes = of.get("mib"), of.get("n_bytes")
    size = int(n_bytes) if n_bytes else round(float(mib) * MIB) if mib else None
    return NoMemory(device, size, " ".join(line.split()))


def cannot_load(log: Sequence[str], model: str) -> str | None:
    """Why llama.cpp does not load the file, in its own words; None where it says nothing."""
    for line in log:
        match = _CANNOT_LOAD.search(line)
        if match:
            return without_path(match["why"], model)
    return None


def last_error(log: Sequence[str], model: str) -> str | None:
    """The first line that says what went wrong, without the model's path."""
    for pattern in _ERRORS:
        for line in log:
            match = pattern.search(line)
            if match:
                return without_path(match["why"], model)
    return None


def without_path(text: str, model: str) -> str:
    """One line, and file names in place of paths: outcomes are stored and shared."""
    return " ".join(text.replace(model, Path(model).name).split())[:300].rstrip(".")
