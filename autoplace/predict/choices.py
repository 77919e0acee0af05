"""What solving needs to know of a search space under given settings, as arrays.

L layers. Costs are pairs (decode seconds, prefill seconds), kept in a last axis of 2, until a
weighting makes one number of them. A `Kind` is a class of equal devices under one combination of
operators; layers are costed without routed experts, which are added by layer.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import product

import numpy as np
from numpy.typing import NDArray

from autoplace.architectures.spec import Role
from autoplace.hardware.machine import Device
from autoplace.placement.memory import layer_cache_bytes
from autoplace.placement.options import GROUPS, layers_with, operator_choices
from autoplace.placement.placement import Choice, LayerPlacement
from autoplace.placement.settings import RunSettings
from autoplace.placement.space import SearchSpace
from autoplace.predict.costs import Cost
from autoplace.predict.latency import LatencyModel

Floats = NDArray[np.float64]


@dataclass(frozen=True)
class Combination:
    """Operators of one device, with the costs and bytes of all layers under them."""

    attention: Choice
    mlp: Choice | None
    experts: Choice | None
    """On this device; None where it can hold none."""
    base: Floats
    """[L, 2]: layers without routed experts."""
    base_bytes: Floats
    """[L]: with the layer's cache."""
    expert: Floats
    """[2]: the experts of one layer of its own; the least over layers."""
    expert_bytes: float
    """Of one layer; the least over layers."""


@dataclass(frozen=True)
class HostExperts:
    """The routed experts on the host under one operator."""

    choice: Choice
    costs: Floats
    """[L, 2]: beyond the layer without them; the least over devices. Zero in dense layers."""
    n_bytes: Floats
    """[L]"""


@dataclass(frozen=True)
class Head:
    """lm_head on one device, behind a last layer there."""

    choice: Choice
    costs: Floats
    n_bytes: int


def cost_pair(costs: Sequence[Cost]) -> Floats:
    return np.array([sum(c.decode_s for c in costs), sum(c.prefill_s for c in costs)])


class Choices:
    """Everything about one space under one pair of settings that a split is chosen by."""

    def __init__(self, space: SearchSpace, model: LatencyModel, settings: RunSettings) -> None:
        self.space, self.model, self.settings = space, model, settings
        self.num_layers = space.spec.geometry.num_layers
        self.moe = np.isin(np.arange(self.num_layers), list(space.spec.moe_layers))
        self._mlp_layers = layers_with(space.spec, GROUPS["mlp"])
        self.devices = space.layer_devices
        self.cache_bytes = layer_cache_bytes(
            space.spec.geometry,
            context_tokens=space.workload.context_tokens,
            kv_type=settings.kv_type,
        )
        self._known_options: dict[tuple[object, str], tuple[Choice, ...]] = {}
        self._known_combinations: dict[object, tuple[Combination, ...]] = {}
        self.combinations = {d.name: self._combinations_of(d) for d in self.devices}
        self.host_experts = tuple(self._host_experts())
        self.heads = {device.name: tuple(self._heads(device)) for device in space.machine.devices}
        self.hop = self._least([self._hop(a, b) for a in self.devices for b in self.devices])
        self.away = self._away()

    def _combinations_of(self, device: Device) -> tuple[Combination, ...]:
        """Worked out once for equal devices."""
        key = self._kind(device)
        if key not in self._known_combinations:
            self._known_combinations[key] = tuple(self._combinations(device))
        return tuple(
            replace(
                one,
                attention=replace(one.attention, device=device.name),
                mlp=one.mlp and replace(one.mlp, device=device.name),
                experts=one.experts and replace(one.experts, device=device.name),
            )
            for one in self._known_combinations[key]
        )

    def _kind(self, device: Device) -> object:
        """Equal for devices on which everything costs the same."""
        host = self.space.machine.host.name
        links = [
            (link.bandwidth_bytes_per_s, link.latency_s)
            for link in self.space.machine.links
            if {link.source, link.target} == {host, device.name}
        ]
        return (
            device.model,
            device.bandwidth_bytes_per_s,
            device.flops,
            device.compute_capability,
            tuple(links),
        )

    def _combinations(self, device: Device) -> Iterator[Combination]:
        """Combinations of operators that none is better than in bytes and both times."""
        some = next(iter(self.space.spec.moe_layers), self.num_layers - 1)
        attentions = self._undominated(device, "attention", some)
        mlps: tuple[Choice | None, ...] = self._undominated(device, "mlp", some) or (None,)
        experts: tuple[Choice | None, ...] = (None,)
        if device.is_gpu and self.moe.any():
            experts = self._undominated(device, "experts", some) or (None,)
        for attention, mlp, expert in product(attentions, mlps, experts):
            yield self._combination(device, attention, mlp, expert)

    def _combination(
        self, device: Device, attention: Choice, mlp: Choice | None, expert: Choice | None
    ) -> Combination:
        traffic = self.model.traffic
        base = np.zeros((self.num_layers, 2))
        base_bytes = np.zeros(self.num_layers)
        extra, expert_bytes = [np.full(2, np.inf)], [np.inf]
        for layer in range(self.num_layers):
            alike = traffic.alike(layer)
            if alike < layer:
                base[layer], base_bytes[layer] = base[alike], base_bytes[alike]
                continue
            placed = LayerPlacement(device.name, attention, self.mlp_of(layer, mlp), None)
            base[layer] = self._layer_pair(layer, placed)
            sizes = [traffic.as_is(layer), traffic.size(layer, "attention", attention)]
            if placed.mlp is not None:
                sizes.append(traffic.size(layer, "mlp", placed.mlp))
            base_bytes[layer] = sum(size.n_bytes for size in sizes) + self.cache_bytes
            if expert is not None and self.moe[layer]:
                own = LayerPlacement(device.name, attention, placed.mlp, expert)
                extra.append(self._layer_pair(layer, own) - base[layer])
                expert_bytes.append(traffic.size(layer, "experts", expert).n_bytes)
        return Combination(
            attention,
            mlp,
            expert,
            base,
            base_bytes,
            np.min(extra, axis=0),
            min(expert_bytes),
        )

    def mlp_of(self, layer: int, mlp: Choice | None) -> Choice | None:
        """The choice where the layer has linears for it."""
        return mlp if layer in self._mlp_layers else None

    def _host_experts(self) -> Iterator[HostExperts]:
        host = self.space.machine.host
        if not self.moe.any():
            return
        some = self.space.spec.moe_layers[0]
        for choice in self._undominated(host, "experts", some):
            costs, n_bytes = np.zeros((self.num_layers, 2)), np.zeros(self.num_layers)
            for layer in self.space.spec.moe_layers:
                alike = self.model.traffic.alike(layer)
                if alike < layer:
                    costs[layer], n_bytes[layer] = costs[alike], n_bytes[alike]
                    continue
                costs[layer] = self._least(
                    [
                        self._beyond(layer, device.name, combination, choice)
                        for device in self._different_devices()
                        for combination in self.combinations[device.name]
                    ]
                )
                n_bytes[layer] = self.model.traffic.size(layer, "experts", choice).n_bytes
            yield HostExperts(choice, costs, n_bytes)

    def _different_devices(self) -> tuple[Device, ...]:
        """One of each kind."""
        return tuple({self._kind(device): device for device in self.devices}.values())

    def _beyond(self, layer: int, device: str, combination: Combination, choice: Choice) -> Floats:
        mlp = self.mlp_of(layer, combination.mlp)
        placed = LayerPlacement(device, combination.attention, mlp, choice)
        pair: Floats = self._layer_pair(layer, placed) - combination.base[layer]
        return pair

    def _heads(self, device: Device) -> Iterator[Head]:
        heads = []
        for choice in self._options(device, "lm_head"):
            costs = self.model.head_costs(choice, device.name, self.settings)
            size = self.model.traffic.size(None, "lm_head", choice)
            heads.append(Head(choice, cost_pair(costs), size.n_bytes))
        keys = [(head.n_bytes, *head.costs) for head in heads]
        yield from (heads[i] for i in undominated(keys))

    def _undominated(self, device: Device, group: str, layer: int) -> tuple[Choice, ...]:
        """Operators of a group that no other is better than in bytes and times, on this layer."""
        home = device if device in self.devices else self.devices[0]
        attention = self._options(home, "attention")[0]
        mlp = next(iter(self._options(home, "mlp")), None)
        options = self._options(device, group)
        keys = []
        for option in options:
            placed = LayerPlacement(
                home.name,
                option if group == "attention" else attention,
                self.mlp_of(layer, option if group == "mlp" else mlp),
                option if group == "experts" else None,
            )
            n_bytes = self.model.traffic.size(layer, group, option).n_bytes
            keys.append((n_bytes, *self._layer_pair(layer, placed)))
        return tuple(options[i] for i in undominated(keys))

    def _options(self, device: Device, group: str) -> tuple[Choice, ...]:
        """What can hold a group on a device, worked out once for equal devices."""
        key = (self._kind(device), group)
        if key not in self._known_options:
            self._known_options[key] = operator_choices(
                self.space.spec, device, GROUPS[group], engine=self.space.engine
            )
        return tuple(replace(one, device=device.name) for one in self._known_options[key])

    def _layer_pair(self, layer: int, placed: LayerPlacement) -> Floats:
        return cost_pair(self.model.layer_costs(layer, placed, self.settings))

    def _hop(self, source: Device, target: Device) -> Floats:
        if source.name == target.name:
            return np.full(2, np.inf)
        return cost_pair((self.model.hop_cost(source.name, target.name, self.settings),))

    def _away(self) -> Floats:
        """There and back to experts on another GPU, at least."""
        return 2 * self.hop if len(self.devices) > 1 else np.full(2, np.inf)

    @staticmethod
    def _least(pairs: Sequence[Floats]) -> Floats:
        return np.asarray(np.min(pairs, axis=0), float)


def undominated(keys: Sequence[tuple[float, ...]]) -> list[int]:
    """Indices of the tuples that no other is as good as in everything; of equals the first."""
    return [
        i
        for i, key in enumerate(keys)
        if not any(
            all(a <= b for a, b in zip(other, key, strict=True)) and (other != key or j < i)
            for j, other in enumerate(keys)
            if j != i
        )
    ]


def embedding_bytes(space: SearchSpace, dtype_bytes: int) -> int:
    """Of the token embedding, on the host."""
    spec = space.spec
    return sum(
        info.n_elements * dtype_bytes
        for module in spec.of_role(Role.EMBEDDING)
        for info in spec.tensor_infos(module)
    )
