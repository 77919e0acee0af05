"""What kt-kernel in sglang takes on each GPU and on the host: tensor parallelism, equal shares.

Sources: sglang's layers (column and row parallel linears, vocabulary-parallel embedding and head;
MLA's down-projections, norms and routers on every GPU) and its 384 MiB of flashinfer workspace;
kt-kernel's README (routed experts in host memory by `--kt-weight-path`, `--kt-num-gpu-experts` of
each layer on GPUs). Weights on GPUs are those of the `--model` checkpoint: counted in bf16, an FP8
checkpoint takes half. The rest of `--mem-fraction-static` becomes cache; what is counted here is
the cache that the workload needs.
"""

from autoplace.architectures.geometry import Geometry, Gqa, Mla
from autoplace.architectures.spec import ModelSpec, Module, Role
from autoplace.placement.memory import MemoryPlan
from autoplace.placement.settings import RunSettings
from autoplace.placement.totals import DeviceMemory
from autoplace.units import GIB, MIB
from autoplace.workload import Workload

CONTEXT_BYTES = GIB // 2
"""Of CUDA on each GPU (prediction section 1: 0.4 to 0.7 GB)."""
FLASHINFER_BYTES = 384 * MIB
"""sglang's SGLANG_FLASHINFER_WORKSPACE_SIZE."""
_HOST = "cpu"
_BYTES = 2
_EVERYWHERE = ("q_a_proj", "kv_a_proj_with_mqa")
"""Linears that sglang holds whole on every GPU (ReplicatedLinear)."""
_SHARED = (
    Role.EMBEDDING,
    Role.LM_HEAD,
    Role.ATTENTION_LINEAR,
    Role.KV_B,
    Role.DENSE_LINEAR,
    Role.SHARED_LINEAR,
)


def plan_sglang_kt(
    spec: ModelSpec,
    gpus: tuple[str, ...],
    *,
    num_gpu_experts: int,
    workload: Workload,
    settings: RunSettings,
) -> MemoryPlan:
    """Bytes by device: the same on every GPU. The host holds all routed experts of the GGUF."""
    moe = spec.geometry.moe
    per_gpu = sum(_bytes(spec, module, len(gpus)) for module in spec.modules)
    host = 0
    for module in spec.of_role(Role.EXPERTS):
        host += spec.n_bytes(module)
        weights = sum(info.n_elements for info in spec.tensor_infos(module))
        if moe is not None:
            per_gpu += _BYTES * weights // moe.num_experts * num_gpu_experts // len(gpus)
    one = DeviceMemory(
        weights=per_gpu,
        kv_cache=_cache(spec.geometry, len(gpus), workload.context_tokens),
        workspace=_buffers(spec.geometry, workload, settings),
    )
    devices = {_HOST: DeviceMemory(weights=host)} | dict.fromkeys(gpus, one)
    return MemoryPlan(devices, includes_context=True)


def _bytes(spec: ModelSpec, module: Module, num_gpus: int) -> int:
    """Of a module beside the routed experts on one GPU."""
    if module.role is Role.EXPERTS:
        return 0
    n_bytes = _BYTES * sum(info.n_elements for info in spec.tensor_infos(module))
    whole = module.role not in _SHARED or module.path.endswith(_EVERYWHERE)
    return n_bytes if whole else -(-n_bytes // num_gpus)


def _cache(geometry: Geometry, num_gpus: int, tokens: int) -> int:
    """MLA's latent is on every GPU; heads of keys and values are shared out, one at least."""
    if isinstance(geometry.attention, Mla):
        width = geometry.attention.kv_lora_rank + geometry.attention.qk_rope_dim
    else:
        assert isinstance(geometry.attention, Gqa)
        heads = -(-geometry.attention.num_kv_heads // num_gpus)
        width = 2 * heads * geometry.attention.head_dim
    return _BYTES * width * tokens * geometry.num_layers


def _buffers(geometry: Geometry, workload: Workload, settings: RunSettings) -> int:
    """Context, workspace and an estimate of the activations: of a chunk of the prompt eight rows
    of the model's width, and one row of logits."""
    tokens = min(settings.prefill_chunk, workload.prompt_tokens)
    activations = _BYTES * tokens * 8 * geometry.hidden + 4 * geometry.vocab
    return CONTEXT_BYTES + FLASHINFER_BYTES + activations
