"""The bytes of weights that llama.cpp reads for one decoded token, by device."""

from collections import defaultdict

from autoplace.architectures.spec import ModelSpec, Role
from autoplace.export.llama_cpp.args import LlamaCppArgs
from autoplace.export.llama_cpp.layout import buffers_of, tensor_devices, tensor_key
from autoplace.hardware.machine import Machine


def decode_bytes(spec: ModelSpec, args: LlamaCppArgs, machine: Machine) -> dict[str, float]:
    """All weights once, of routed experts the share that a token is sent to; no embedding but a
    tied one, which is the output too.

    Raises `AutoplaceError` for an override to a buffer that is not there.
    """
    devices = tensor_devices(args, spec, buffers_of(machine))
    found: dict[str, float] = defaultdict(float)
    for module in spec.modules:
        if module.role is Role.EMBEDDING:
            continue
        moe = spec.geometry.moe
        share = moe.top_k / moe.num_experts if moe and module.role is Role.EXPERTS else 1.0
        for name in module.tensors:
            device = devices[tensor_key(module, name)]
            found[device] += spec.tensors[name].n_bytes * share
    return dict(found)
