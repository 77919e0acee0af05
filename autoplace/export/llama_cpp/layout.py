"""Which device llama.cpp puts each tensor on, by its arguments, decided as it decides.

Source: llama.cpp b9993, src/llama-model.cpp (`load_tensors`: layers go to devices by the cumulated
tensor split, the output counting as one layer more, MTP layers as layers) and
src/llama-model-loader.cpp (the first override whose pattern is found in a tensor's name decides).
"""

import re
import struct
from bisect import bisect_right
from collections.abc import Mapping, Sequence

from autoplace.architectures.spec import ModelSpec, Module, Role
from autoplace.errors import AutoplaceError
from autoplace.export.llama_cpp.args import LlamaCppArgs
from autoplace.hardware.machine import Machine

HOST = "cpu"
HOST_BUFFER = "CPU"
EMBEDDING = "token_embd.weight"
TIED_OUTPUT = "token_embd.weight as output"
"""Key of a tied output, which llama.cpp holds as a tensor of its own, in `tensor_devices`."""


def buffer_name(device: str, endpoint: str | None = None) -> str:
    """`CUDA1` for `cuda:1`; an RPC server's first device is `RPC0[host:port]` (ggml-rpc.cpp)."""
    if endpoint is not None:
        return f"RPC0[{endpoint}]"
    return HOST_BUFFER if device == HOST else device.upper().replace(":", "")


def buffers_of(machine: Machine) -> dict[str, str]:
    """Device → llama.cpp's name of its buffer, the host first, then the devices in its order."""
    return {device.name: buffer_name(device.name, device.endpoint) for device in machine.devices}


def cuda_buffers(gpus: Sequence[str]) -> dict[str, str]:
    """The same for GPUs of these names beside the host."""
    return {name: buffer_name(name) for name in (HOST, *gpus)}


def gpus_of(buffers: Mapping[str, str]) -> list[str]:
    return [device for device in buffers if device != HOST]


def seen_devices(args: LlamaCppArgs, buffers: Mapping[str, str]) -> list[str]:
    """The devices that llama.cpp uses: all, or those of `-dev` in its order."""
    gpus = gpus_of(buffers)
    if not args.devices or args.devices == ("none",):
        return gpus
    names = {
        f"RPC{index}" if "[" in buffers[gpu] else buffers[gpu]: gpu
        for index, gpu in enumerate(gpus)
    }
    return [names[name] for name in args.devices if name in names]


def device_of_buffer(buffer: str, buffers: Mapping[str, str]) -> str:
    """The device of a buffer's name. Raises `AutoplaceError`, listing what there is."""
    for device, known in buffers.items():
        if known == buffer:
            return device
    raise AutoplaceError(
        f"there is no buffer {buffer} here, only {', '.join(buffers.values())}; "
        "llama.cpp names what it has with --list-devices"
    )


def layer_devices(args: LlamaCppArgs, num_layers: int, gpus: Sequence[str]) -> list[str]:
    """Device of each layer, and of the output as one more (also of each layer's cache).

    `num_layers`: MTP layers included. Without `-ts` the devices are taken to be equal: llama.cpp
    goes by what is free. `-sm none` uses `-mg` alone.
    """
    if args.split_mode == "none" and gpus:
        gpus = [gpus[min(args.main_gpu, len(gpus) - 1)]]
    if args.devices == ("none",):
        gpus = []
    wanted = num_layers + 1 if args.n_gpu_layers is None else args.n_gpu_layers
    active = min(wanted, num_layers + 1)
    start = max(num_layers + 1 - wanted, 0)
    split = args.tensor_split if any(args.tensor_split) else (1.0,) * len(gpus)
    bounds = _bounds((*split, *[0.0] * len(gpus))[: len(gpus)])
    devices = []
    for layer in range(num_layers + 1):
        if layer < start or not gpus or not active:
            devices.append(HOST)
            continue
        index = bisect_right(bounds, _float32((layer - start) / active))
        devices.append(gpus[min(index, len(gpus) - 1)])
    return devices


def _bounds(shares: Sequence[float]) -> list[float]:
    """Cumulated shares of the whole, in float32 as llama.cpp has them."""
    total, sums = 0.0, []
    for share in shares:
        total = _float32(total + _float32(share))
        sums.append(total)
    return [_float32(part / (total or 1.0)) for part in sums]


def _float32(value: float) -> float:
    return float(struct.unpack("f", struct.pack("f", value))[0])


def tensor_devices(
    args: LlamaCppArgs, spec: ModelSpec, buffers: Mapping[str, str]
) -> dict[str, str]:
    """Tensor → device, as llama.cpp decides. Raises `AutoplaceError` for a buffer that is not
    there."""
    patterns = [
        (re.compile(pattern), device_of_buffer(buffer, buffers))
        for pattern, buffer in args.overrides
    ]
    geometry = spec.geometry
    of_layers = layer_devices(
        args, geometry.num_layers + geometry.num_mtp_layers, seen_devices(args, buffers)
    )
    found = {}
    for module in spec.modules:
        of_layer = of_layers[-1 if module.layer is None else module.layer]
        device = HOST if module.role is Role.EMBEDDING else of_layer
        for tensor in module.tensors:
            key = tensor_key(module, tensor)
            found[key] = device
            for pattern, to in patterns:
                if pattern.search(tensor):
                    found[key] = to
                    break
    return found


def tensor_key(module: Module, tensor: str) -> str:
    """A tensor's name, or `TIED_OUTPUT`."""
    return TIED_OUTPUT if module.role is Role.LM_HEAD and tensor == EMBEDDING else tensor
