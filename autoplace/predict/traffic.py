"""What one token reads and computes on each device of a placement."""

from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass

from autoplace.architectures.geometry import Mla
from autoplace.architectures.spec import ModelSpec, Role
from autoplace.catalog.operators import OPERATORS
from autoplace.placement.options import GROUPS
from autoplace.placement.placement import Choice, Placement
from autoplace.placement.settings import KV_TYPES, RunSettings
from autoplace.weights.ggml import TensorInfo
from autoplace.workload import Workload

_AS_IS = (Role.NORM, Role.ROUTER, Role.KV_B, Role.SHARED_GATE)
"""Modules of a layer that no rule replaces and that every token reads in the engine's dtype."""


@dataclass
class Traffic:
    """Bytes and weights that pass through one device for a token."""

    dense_bytes: float = 0.0
    """Weights that every token reads."""
    cache_bytes: float = 0.0
    """KV cache at the mean context of the workload's decode."""
    expert_bytes: float = 0.0
    """All routed experts on the device; a token reads `used_share` of them."""
    used_share: float = 0.0
    """top_k over the number of experts."""
    weights_per_token: float = 0.0
    """Weights that multiply each token's activations."""

    @property
    def decode_bytes(self) -> float:
        return self.dense_bytes + self.cache_bytes + self.expert_bytes * self.used_share

    def chunk_bytes(self, num_tokens: int) -> float:
        """Bytes that a chunk reads; the experts that its tokens hit are read once.

        Expected share hit: 1 - (1 - top_k/E)^n (prediction.md section 2).
        """
        hit = 1 - (1 - self.used_share) ** num_tokens
        return self.dense_bytes + self.expert_bytes * hit


class TrafficModel:
    """Traffic of any placement of one model and workload. Sizes are worked out once."""

    def __init__(self, spec: ModelSpec, workload: Workload, *, dtype_bytes: int = 2) -> None:
        self._spec = spec
        self._workload = workload
        self._dtype_bytes = dtype_bytes
        self._sizes: dict[tuple[int | None, str, str, int | None], tuple[int, int]] = {}
        self._infos = _infos_by_layer_and_role(spec)
        moe = spec.geometry.moe
        self._used_share = moe.top_k / moe.num_experts if moe else 0.0

    def of(self, placement: Placement, settings: RunSettings) -> Mapping[str, Traffic]:
        """Traffic by device name, for the devices that the placement uses."""
        by_device: dict[str, Traffic] = defaultdict(lambda: Traffic(used_share=self._used_share))
        cache_bytes = self._cache_bytes(settings)
        for index, layer in enumerate(placement.layers):
            here = by_device[layer.device]
            here.cache_bytes += cache_bytes
            self._add_as_is(here, index)
            self._add_dense(by_device[layer.attention.device], index, "attention", layer.attention)
            if layer.mlp is not None:
                self._add_dense(by_device[layer.mlp.device], index, "mlp", layer.mlp)
            if layer.experts is not None:
                self._add_experts(by_device[layer.experts.device], index, layer.experts)
        self._add_dense(by_device[placement.lm_head.device], None, "lm_head", placement.lm_head)
        return by_device

    def _add_as_is(self, traffic: Traffic, layer: int) -> None:
        num_weights = sum(info.n_elements for info in self._tensors(layer, _AS_IS))
        traffic.dense_bytes += num_weights * self._dtype_bytes
        traffic.weights_per_token += num_weights

    def _add_dense(self, traffic: Traffic, layer: int | None, group: str, choice: Choice) -> None:
        n_bytes, num_weights = self._size(layer, group, choice)
        traffic.dense_bytes += n_bytes
        traffic.weights_per_token += num_weights

    def _add_experts(self, traffic: Traffic, layer: int, choice: Choice) -> None:
        n_bytes, num_weights = self._size(layer, "experts", choice)
        traffic.expert_bytes += n_bytes
        traffic.weights_per_token += num_weights * self._used_share

    def _size(self, layer: int | None, group: str, choice: Choice) -> tuple[int, int]:
        """Bytes by the operator, and number of weights, of one layer's group of modules."""
        key = (layer, group, choice.operator, choice.num_bits)
        if key not in self._sizes:
            infos = self._tensors(layer, GROUPS[group])
            n_bytes = OPERATORS[choice.operator].weight_bytes(
                infos, dtype_bytes=self._dtype_bytes, num_bits=choice.num_bits or 4
            )
            self._sizes[key] = n_bytes, sum(info.n_elements for info in infos)
        return self._sizes[key]

    def _tensors(self, layer: int | None, roles: tuple[Role, ...]) -> tuple[TensorInfo, ...]:
        return tuple(info for role in roles for info in self._infos.get((layer, role), ()))

    def _cache_bytes(self, settings: RunSettings) -> float:
        """Of one layer, read by one token, in the middle of the decode."""
        attention = self._spec.geometry.attention
        if isinstance(attention, Mla):
            width = attention.kv_lora_rank + attention.qk_rope_dim
        else:
            width = 2 * attention.num_kv_heads * attention.head_dim
        n_bytes, num_values = KV_TYPES[settings.kv_type]
        positions = self._workload.prompt_tokens + self._workload.output_tokens / 2
        return positions * width * n_bytes / num_values


def _infos_by_layer_and_role(
    spec: ModelSpec,
) -> Mapping[tuple[int | None, Role], list[TensorInfo]]:
    infos: dict[tuple[int | None, Role], list[TensorInfo]] = defaultdict(list)
    for module in spec.modules:
        infos[module.layer, module.role] += spec.tensor_infos(module)
    return infos
