"""Reference logits: every weight dequantised exactly, one layer in memory at a time."""

import torch
from torch import Tensor

from autoplace.architectures.spec import ModelSpec, Role
from autoplace.engine.caches import attach_cache
from autoplace.engine.loader import DTYPES, ModuleLoader
from autoplace.engine.model import Forward
from autoplace.engine.tree import build_tree
from autoplace.hardware.ledger import Ledger
from autoplace.hardware.machine import Device, Machine
from autoplace.models.allocation import Allocator
from autoplace.models.place import HOST
from autoplace.placement.assignment import Assignment, ModuleAssignment
from autoplace.placement.workspace import LOGIT_ROWS
from autoplace.weights.gguf_file import GGUFFile

_KV_TYPES = {"bfloat16": "bf16", "float32": "f32"}


def reference_logits(gguf: GGUFFile, spec: ModelSpec, tokens: list[int], dtype: str) -> Tensor:
    """Logits [T, V] float32 of every position, by KLinearTorch and KExpertsTorch on the host.

    Holds the embedding, one layer and lm_head at a time, each in `dtype` (bfloat16 or float32).
    """
    with torch.inference_mode():
        x = _embedded(gguf, spec, tokens, dtype)
        step = Forward(spec.geometry).step(0, len(tokens), HOST)
        for layer in range(spec.geometry.num_layers):
            modules = [module for module in spec.modules if module.layer == layer]
            root = build_tree(modules, _loader(gguf, spec, dtype).make)
            decoder = root.get_submodule(f"model.layers.{layer}")
            attach_cache(
                decoder,
                HOST,
                Allocator(Ledger({})),
                context=len(tokens),
                kv_type=_KV_TYPES[dtype],
                what="the reference's cache",
            )
            x = decoder(x, step)
        return _head(gguf, spec, x, dtype)


def _loader(gguf: GGUFFile, spec: ModelSpec, dtype: str) -> ModuleLoader:
    host = Device("cpu", "host", 1 << 62, 0, 1.0, 1.0)
    return ModuleLoader(
        gguf,
        spec,
        reference_assignment(spec),
        machine=Machine("reference", (host,)),
        allocator=Allocator(Ledger({})),
        dtype=DTYPES[dtype],
    )


def reference_assignment(spec: ModelSpec) -> Assignment:
    """Everything on the host; experts by KExpertsTorch, all else as it is."""
    modules = {
        module.path: ModuleAssignment(
            module.path, "cpu", operator="KExpertsTorch" if module.role is Role.EXPERTS else None
        )
        for module in spec.modules
    }
    return Assignment("builtin", modules)


def _of_role(gguf: GGUFFile, spec: ModelSpec, role: Role, dtype: str) -> torch.nn.Module:
    (module,) = (m for m in spec.of_role(role) if m.layer is None)
    return _loader(gguf, spec, dtype).make(module)


def _embedded(gguf: GGUFFile, spec: ModelSpec, tokens: list[int], dtype: str) -> Tensor:
    x: Tensor = _of_role(gguf, spec, Role.EMBEDDING, dtype)(torch.tensor(tokens))
    return x


def _head(gguf: GGUFFile, spec: ModelSpec, x: Tensor, dtype: str) -> Tensor:
    hidden = _of_role(gguf, spec, Role.NORM, dtype)(x)
    lm_head = _of_role(gguf, spec, Role.LM_HEAD, dtype)
    return torch.cat([lm_head(part).float() for part in torch.split(hidden, LOGIT_ROWS)])
