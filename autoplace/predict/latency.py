"""How long a placement takes: decode and prefill by part, for one placement or for many at once.

Source: prediction.md section 2, with the constants of the engine's profile, corrected by a
calibration where there is one.
"""

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from autoplace.architectures.spec import ModelSpec
from autoplace.catalog import llama_cpp
from autoplace.hardware.machine import Machine
from autoplace.placement.placement import Choice, LayerPlacement, Placement
from autoplace.placement.settings import RunSettings
from autoplace.predict.calibration import Calibration
from autoplace.predict.costs import PARTS, Cost, CostModel
from autoplace.predict.table import LatencyTable
from autoplace.predict.traffic import TrafficModel
from autoplace.workload import Workload

PART_NAMES = {
    "dense": "attention and dense weights",
    "host_experts": "experts on the host",
    "gpu_experts": "experts on GPUs",
    "hops": "moving activations",
    "launches": "launches",
    "head": "lm_head and the choice of a token",
}


@dataclass(frozen=True)
class Prediction:
    """Seconds by part: one decoded token, and the prefill of the prompt. Always predicted."""

    decode_s: Mapping[str, float]
    """By the names of `PARTS`."""
    prefill_s: Mapping[str, float]
    bytes_per_token: int
    """Weight and cache bytes that one decoded token reads, over all devices."""
    decode_error: float
    """Expected relative error of the decode rate."""
    prefill_error: float

    @property
    def decode_tok_per_s(self) -> float:
        return 1 / sum(self.decode_s.values())

    @property
    def prefill_latency_s(self) -> float:
        return sum(self.prefill_s.values())

    @property
    def ceiling(self) -> str:
        """`host-bound: experts on the host are 84 % of a token`."""
        total = sum(self.decode_s.values())
        part = max(self.decode_s, key=lambda name: self.decode_s[name])
        bound = {"host_experts": "host", "hops": "link", "launches": "launch"}.get(part, "read")
        share = self.decode_s[part] / total
        return f"{bound}-bound: {PART_NAMES[part]} are {share:.0%} of a token".replace("%", " %")

    def request_s(self, workload: Workload) -> float:
        return workload.request_s(
            prefill_latency_s=self.prefill_latency_s, decode_tok_per_s=self.decode_tok_per_s
        )


class LatencyModel:
    """Predicts placements of one model on one machine for one workload and engine."""

    def __init__(
        self,
        spec: ModelSpec,
        machine: Machine,
        workload: Workload,
        *,
        dtype_bytes: int = 2,
        engine: str = "builtin",
        calibration: Calibration | None = None,
    ) -> None:
        self.spec = spec
        self.machine = machine
        self.workload = workload
        self.calibration = calibration or Calibration()
        self.traffic = TrafficModel(
            spec, workload, dtype_bytes=dtype_bytes, keeps_blocks=engine == llama_cpp.ENGINE
        )
        self.cost_model = CostModel(
            spec, machine, workload, self.traffic, engine=engine, calibration=self.calibration
        )
        self._layers: dict[tuple[int, LayerPlacement, RunSettings], tuple[Cost, ...]] = {}
        self._heads: dict[tuple[Choice, str, RunSettings], tuple[Cost, ...]] = {}
        self._hops: dict[tuple[str, str, RunSettings], Cost] = {}

    def predict(self, placement: Placement, settings: RunSettings) -> Prediction:
        """Parts of the time of one token and of the prompt."""
        decode_s, prefill_s = dict.fromkeys(PARTS, 0.0), dict.fromkeys(PARTS, 0.0)
        for cost in self.costs(placement, settings):
            decode_s[cost.part] += cost.decode_s
            prefill_s[cost.part] += cost.prefill_s
        traffic = self.traffic.of(placement, settings)
        return Prediction(
            decode_s,
            prefill_s,
            round(sum(device.decode_bytes for device in traffic.values())),
            self.calibration.decode_error,
            self.calibration.prefill_error,
        )

    def by_key(
        self, placement: Placement, settings: RunSettings
    ) -> tuple[Mapping[str, float], Mapping[str, float]]:
        """Seconds of decode and of prefill by cost key: what calibration corrects."""
        decode_s: dict[str, float] = defaultdict(float)
        prefill_s: dict[str, float] = defaultdict(float)
        for cost in self.costs(placement, settings):
            decode_s[cost.key] += cost.decode_s
            prefill_s[cost.key] += cost.prefill_s
        return decode_s, prefill_s

    def costs(self, placement: Placement, settings: RunSettings) -> list[Cost]:
        """Every cost of a placement."""
        costs: list[Cost] = []
        here = placement.layers[0].device
        breaks_graph = False
        for index, layer in enumerate(placement.layers):
            costs += self.layer_costs(index, layer, settings)
            if layer.device != here:
                costs.append(self.hop_cost(here, layer.device, settings))
                here = layer.device
            breaks_graph |= self.breaks_graph(layer)
        costs += self.head_costs(placement.lm_head, here, settings)
        for layer in placement.layers:
            if self.cost_model.has_graph(layer.device):
                launch = self.cost_model.launch(layer.device, settings)
                decode_s = launch.decode_s if breaks_graph else 0.0
                costs.append(Cost(launch.part, launch.key, decode_s, launch.prefill_s))
        return costs

    def layer_costs(
        self, index: int, layer: LayerPlacement, settings: RunSettings
    ) -> tuple[Cost, ...]:
        """Of one layer; layers with the same tensors share them."""
        key = (self.traffic.alike(index), layer, settings)
        if key not in self._layers:
            self._layers[key] = tuple(self.cost_model.layer(index, layer, settings))
        return self._layers[key]

    def head_costs(self, head: Choice, last: str, settings: RunSettings) -> tuple[Cost, ...]:
        key = (head, last, settings)
        if key not in self._heads:
            self._heads[key] = tuple(self.cost_model.head(head, last, settings))
        return self._heads[key]

    def hop_cost(self, source: str, target: str, settings: RunSettings) -> Cost:
        key = (source, target, settings)
        if key not in self._hops:
            self._hops[key] = self.cost_model.hop(source, target, settings)
        return self._hops[key]

    def breaks_graph(self, layer: LayerPlacement) -> bool:
        """Whether its experts turn CUDA graphs off for the whole model."""
        return layer.experts is not None and layer.experts.device != self.machine.host.name

    def table(
        self,
        options: Sequence[LayerPlacement],
        heads: Sequence[Choice],
        settings: RunSettings,
    ) -> LatencyTable:
        """Costs of the options of every layer and of lm_head, to predict many placements from.

        A layer without routed experts takes an option without its experts.
        """
        num_layers = self.spec.geometry.num_layers
        moe = frozenset(self.spec.moe_layers)
        layers = np.zeros((num_layers, len(options), 2 * len(PARTS)))
        breaks_graph = np.zeros((num_layers, len(options)), bool)
        for option, placed in enumerate(options):
            for index in range(num_layers):
                layer = self.on_layer(placed, has_experts=index in moe)
                layers[index, option] = self._vector(self.layer_costs(index, layer, settings))
                breaks_graph[index, option] = self.breaks_graph(layer)
        devices = sorted({option.device for option in options})
        at = {name: i for i, name in enumerate(devices)}
        hops = np.zeros((len(devices), len(devices), 2 * len(PARTS)))
        head = np.zeros((len(heads), len(devices), 2 * len(PARTS)))
        launches = np.zeros((len(devices), 2 * len(PARTS)))
        for source in devices:
            for target in devices:
                if source != target:
                    cost = self.hop_cost(source, target, settings)
                    hops[at[source], at[target]] = self._vector((cost,))
            for i, choice in enumerate(heads):
                head[i, at[source]] = self._vector(self.head_costs(choice, source, settings))
            if self.cost_model.has_graph(source):
                launches[at[source]] = self._vector((self.cost_model.launch(source, settings),))
        return LatencyTable(
            layers=layers,
            devices=np.array([at[option.device] for option in options]),
            breaks_graph=breaks_graph,
            hops=hops,
            heads=head,
            launches=launches,
        )

    @staticmethod
    def on_layer(option: LayerPlacement, *, has_experts: bool) -> LayerPlacement:
        """The option as a layer without routed experts takes it."""
        if has_experts or option.experts is None:
            return option
        return LayerPlacement(option.device, option.attention, option.mlp, None)

    @staticmethod
    def _vector(costs: Sequence[Cost]) -> NDArray[np.float64]:
        """Decode seconds by part, then prefill seconds by part."""
        vector = np.zeros(2 * len(PARTS))
        for cost in costs:
            part = PARTS.index(cost.part)
            vector[part] += cost.decode_s
            vector[len(PARTS) + part] += cost.prefill_s
        return vector
