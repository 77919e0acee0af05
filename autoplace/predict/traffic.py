"""What one token reads and computes on each device of a placement."""

from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass

from autoplace.architectures.geometry import Mla
from autoplace.architectures.spec import ModelSpec, Role
from autoplace.catalog import llama_cpp
from autoplace.catalog.llama_cpp import operator_named
from autoplace.placement.options import GROUPS
from autoplace.placement.placement import Choice, Placement
from autoplace.placement.settings import ALL_KV_TYPES, RunSettings
from autoplace.weights.ggml import TensorInfo
from autoplace.workload import Workload

_AS_IS = (Role.NORM, Role.ROUTER, Role.KV_B, Role.SHARED_GATE)
"""Modules of a layer that no rule replaces and that every token reads in the engine's dtype."""


@dataclass(frozen=True)
class Size:
    """One group of modules as an operator holds it."""

    n_bytes: int
    num_weights: int


@dataclass
class Traffic:
    """Bytes that pass through one device for a token."""

    dense_bytes: float = 0.0
    """Weights that every token reads."""
    cache_bytes: float = 0.0
    """KV cache at the mean context of the workload's decode."""
    expert_bytes: float = 0.0
    """All routed experts on the device; a token reads `used_share` of them."""
    used_share: float = 0.0
    """top_k over the number of experts."""

    @property
    def decode_bytes(self) -> float:
        return self.dense_bytes + self.cache_bytes + self.expert_bytes * self.used_share


class TrafficModel:
    """Traffic of any placement of one model and workload. Sizes are worked out once."""

    def __init__(
        self,
        spec: ModelSpec,
        workload: Workload,
        *,
        dtype_bytes: int = 2,
        keeps_blocks: bool = False,
    ) -> None:
        """`keeps_blocks`: what no rule replaces stays as the file has it, not in the dtype."""
        self._spec = spec
        self._workload = workload
        self._dtype_bytes = dtype_bytes
        self.as_is_operator = llama_cpp.LINEAR if keeps_blocks else "KLinearTorch"
        self._sizes: dict[tuple[int | None, str, str, int | None], Size] = {}
        self._infos = _infos_by_layer_and_role(spec)
        self._alike = _first_alike(spec.geometry.num_layers, self._infos)
        moe = spec.geometry.moe
        self.used_share = moe.top_k / moe.num_experts if moe else 0.0

    def of(self, placement: Placement, settings: RunSettings) -> Mapping[str, Traffic]:
        """Traffic by device name, for the devices that the placement uses."""
        by_device: dict[str, Traffic] = defaultdict(lambda: Traffic(used_share=self.used_share))
        cache_bytes = self.cache_bytes(settings)
        for index, layer in enumerate(placement.layers):
            here = by_device[layer.device]
            here.cache_bytes += cache_bytes
            here.dense_bytes += self.as_is(index).n_bytes
            for group, choice in (("attention", layer.attention), ("mlp", layer.mlp)):
                if choice is not None:
                    size = self.size(index, group, choice)
                    by_device[choice.device].dense_bytes += size.n_bytes
            if layer.experts is not None:
                size = self.size(index, "experts", layer.experts)
                by_device[layer.experts.device].expert_bytes += size.n_bytes
        head = self.size(None, "lm_head", placement.lm_head)
        by_device[placement.lm_head.device].dense_bytes += head.n_bytes
        return by_device

    def alike(self, layer: int) -> int:
        """The first layer with the same tensors, names aside: its sizes are this one's."""
        return self._alike[layer]

    def as_is(self, layer: int) -> Size:
        """The modules of a layer that no rule replaces."""
        return self._size((self._alike[layer], "as_is", self.as_is_operator, None), _AS_IS)

    def size(self, layer: int | None, group: str, choice: Choice) -> Size:
        """One layer's group of modules under a choice; the head's layer is None."""
        key_layer = None if layer is None else self._alike[layer]
        key = (key_layer, group, choice.operator, choice.num_bits)
        return self._sizes.get(key) or self._size(key, GROUPS[group])

    def cache_bytes(self, settings: RunSettings) -> float:
        """Of one layer, read by one token, in the middle of the decode."""
        attention = self._spec.geometry.attention
        if isinstance(attention, Mla):
            width = attention.kv_lora_rank + attention.qk_rope_dim
        else:
            width = 2 * attention.num_kv_heads * attention.head_dim
        n_bytes, num_values = ALL_KV_TYPES[settings.kv_type]
        positions = self._workload.prompt_tokens + self._workload.output_tokens / 2
        return positions * width * n_bytes / num_values

    def is_shared(self, layer: int) -> bool:
        """Whether the layer's `mlp` is a shared expert beside routed ones."""
        return (self._alike[layer], Role.SHARED_LINEAR) in self._infos

    def _size(self, key: tuple[int | None, str, str, int | None], roles: tuple[Role, ...]) -> Size:
        if key not in self._sizes:
            layer, _, operator, num_bits = key
            infos = [info for role in roles for info in self._infos.get((layer, role), ())]
            n_bytes = operator_named(operator).weight_bytes(
                infos, dtype_bytes=self._dtype_bytes, num_bits=num_bits or 4
            )
            self._sizes[key] = Size(n_bytes, sum(info.n_elements for info in infos))
        return self._sizes[key]


def _infos_by_layer_and_role(
    spec: ModelSpec,
) -> Mapping[tuple[int | None, Role], list[TensorInfo]]:
    infos: dict[tuple[int | None, Role], list[TensorInfo]] = defaultdict(list)
    for module in spec.modules:
        if module.tensors:
            infos[module.layer, module.role] += spec.tensor_infos(module)
    return infos


def _first_alike(
    num_layers: int, infos: Mapping[tuple[int | None, Role], list[TensorInfo]]
) -> list[int]:
    """Layer → the first layer whose roles have the same shapes and types."""
    signatures: dict[int, list[object]] = {layer: [] for layer in range(num_layers)}
    for (layer, role), tensors in infos.items():
        if layer is not None:
            tensor_kinds = [(info.shape, info.ggml_type.value) for info in tensors]
            signatures[layer].append((role.value, tensor_kinds))
    first: dict[str, int] = {}
    return [first.setdefault(repr(signatures[layer]), layer) for layer in range(num_layers)]
