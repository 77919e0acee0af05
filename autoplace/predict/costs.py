"""What each part of one layer costs in seconds, for one decoded token and for the whole prompt.

Source: prediction.md section 2. Every cost has a part, for people, and a key, for calibration:
costs of one key share a correction factor.
"""

import math
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from autoplace.architectures.geometry import Mla
from autoplace.architectures.spec import ModelSpec
from autoplace.errors import AutoplaceError
from autoplace.hardware.machine import Device, Machine
from autoplace.placement.placement import Choice, LayerPlacement
from autoplace.placement.settings import RunSettings
from autoplace.predict.calibration import Calibration
from autoplace.predict.engine_times import EngineTimes, engine_times
from autoplace.predict.rates import COMPUTE_EFFICIENCY, HostSpeed, family_of
from autoplace.predict.traffic import Size, TrafficModel
from autoplace.workload import Workload

PARTS = ("dense", "host_experts", "gpu_experts", "hops", "launches", "head")
GPU_EFFICIENCY = 0.70
MEASURED_GPU_EFFICIENCY = 0.85
"""Of what a copy was measured to reach, which is itself about 0.85 of the data sheet."""
HOP_S = 46e-6
"""One transfer of activations between GPUs, peer access off, where the machine lists no link."""
HANDOVER_S = 7.5e-6
"""α + o: one way between a GPU and experts on the host."""
EMULATED_HOP_S = 1e-6
ACTIVATION_PASSES = 60
"""Reads and writes of a hidden state in a layer outside of the operators, at prefill."""
LEAST_STREAMED = 32
"""Streaming experts pays from so many tokens an expert on."""


@dataclass(frozen=True)
class Cost:
    """Seconds of one thing: of one decoded token, and of the prompt's prefill."""

    part: str
    key: str
    decode_s: float
    prefill_s: float


def chunk_lengths(num_tokens: int, chunk: int) -> Counter[int]:
    """Length of a chunk → how many of them a prompt of `num_tokens` is cut into."""
    lengths = Counter({chunk: num_tokens // chunk})
    lengths[num_tokens % chunk] += 1
    return Counter({length: count for length, count in lengths.items() if length and count})


class CostModel:
    """Costs on one machine with one engine, for one workload."""

    def __init__(
        self,
        spec: ModelSpec,
        machine: Machine,
        workload: Workload,
        traffic: TrafficModel,
        *,
        engine: str,
        calibration: Calibration,
    ) -> None:
        self.engine: EngineTimes = engine_times(engine)
        self._geometry = spec.geometry
        self._machine = machine
        self._workload = workload
        self._traffic = traffic
        self._calibration = calibration
        self._host = HostSpeed(machine, calibration.rates, efficiency=self.engine.host_efficiency)
        self._links = {(link.source, link.target): link for link in machine.links}

    # What a layer costs.

    def layer(self, index: int, layer: LayerPlacement, settings: RunSettings) -> Iterator[Cost]:
        """All of a layer but the way to it and, with CUDA graphs, the launches."""
        if not (self._where(layer.device) == "host" and self._host.knows_layers):
            as_is = Choice(layer.device, self._traffic.as_is_operator)
            yield self._linear(as_is, self._traffic.as_is(index), settings)
        attention = self._traffic.size(index, "attention", layer.attention)
        yield self._linear(layer.attention, attention, settings)
        yield self._cache(layer.device, settings)
        yield self._attention(layer.device, settings)
        mlp = None
        if layer.mlp is not None:
            mlp = self._linear(layer.mlp, self._traffic.size(index, "mlp", layer.mlp), settings)
            yield self._beside(index, layer, mlp, settings)
        if layer.experts is not None:
            yield from self._experts(index, layer.experts, layer.device, settings)
        if not self.has_graph(layer.device):
            yield self.launch(layer.device, settings)

    def head(self, choice: Choice, last: str, settings: RunSettings) -> Iterator[Cost]:
        """lm_head on one position, behind the last layer, and what is outside of both."""
        size = self._traffic.size(None, "lm_head", choice)
        where = self._where(choice.device)
        family = family_of(choice.operator, choice.num_bits)
        seconds = size.n_bytes / self._decode_rate(choice.device, "head", family, settings)
        yield self._cost("head", f"head {where} {family}", seconds, seconds)
        token_s = self._host.token_s(settings.num_threads)
        token_s = self.engine.token_s if token_s is None else token_s
        if token_s:
            yield self._cost("head", "token host", token_s, token_s)
        if choice.device != last:
            yield self._transfers(last, choice.device, settings, 1)

    def hop(self, source: str, target: str, settings: RunSettings) -> Cost:
        """Activations move to the next layer's device."""
        return self._transfers(source, target, settings, 1)

    def launch(self, device: str, settings: RunSettings) -> Cost:
        """Around the operators of a layer: launches on a GPU, everything else on the host."""
        where = self._where(device)
        prefill_s = sum(
            count * self._around_s(where, device, tokens, settings)
            for tokens, count in self._chunks(settings).items()
        )
        once = self._around_s(where, device, 1, settings)
        return self._cost("launches", f"launch {where}", once, prefill_s)

    def has_graph(self, device: str) -> bool:
        """Whether a layer there costs no launches in decode while no expert is on a GPU."""
        return self.engine.has_cuda_graph and self._where(device) == "gpu"

    def host_slowness(self, num_threads: int) -> tuple[float, ...]:
        """Of one number of threads: seconds a byte in decode and a flop in prefill, by kind of
        operator, and around a layer. Linears and layers only where those can be on the host."""
        kinds = ["experts"]
        if self._machine.emulated or not self._machine.gpus:
            kinds.append("linear")
        found = []
        for kind in kinds:
            found += [1 / self._host.decode(kind, "blocks", num_threads)]
            found += [1 / self._host.prefill(kind, "blocks", num_threads)]
        around_s = self._host.layer_s(num_threads, 1) if "linear" in kinds else None
        return (*found, around_s or 0.0)

    # Parts of a layer.

    def _linear(self, choice: Choice, size: Size, settings: RunSettings) -> Cost:
        family = family_of(choice.operator, choice.num_bits)
        where = self._where(choice.device)
        decode_s = size.n_bytes / self._decode_rate(choice.device, "linear", family, settings)
        least_s = 0.0 if self._is_measured(choice.device, "linear", family) else decode_s
        prefill_s = 0.0
        for tokens, count in self._chunks(settings).items():
            flops = self._flops(choice.device, "linear", family, settings, tokens)
            prefill_s += count * max(least_s, 2 * tokens * size.num_weights / flops)
        return self._cost("dense", f"dense {where} {family}", decode_s, prefill_s)

    def _beside(self, index: int, layer: LayerPlacement, mlp: Cost, settings: RunSettings) -> Cost:
        """A shared expert on a GPU hides behind experts on the host: only its excess counts."""
        experts = layer.experts
        hides = (
            self.engine.overlaps_shared
            and experts is not None
            and self._traffic.is_shared(index)
            and self._where(layer.device) == "gpu"
            and self._where(experts.device) == "host"
        )
        if not hides or experts is None:
            return mlp
        routed = next(self._experts(index, experts, layer.device, settings))
        return Cost(
            mlp.part,
            mlp.key,
            max(0.0, mlp.decode_s - routed.decode_s),
            max(0.0, mlp.prefill_s - routed.prefill_s),
        )

    def _experts(
        self, index: int, choice: Choice, home: str, settings: RunSettings
    ) -> Iterator[Cost]:
        size = self._traffic.size(index, "experts", choice)
        family = family_of(choice.operator, choice.num_bits)
        where = self._where(choice.device)
        is_host = choice.device == self._machine.host.name
        part = "host_experts" if is_host else "gpu_experts"
        share = self._traffic.used_share
        rate = self._decode_rate(choice.device, "experts", family, settings)
        decode_s = size.n_bytes * share / rate
        prefill_s = sum(
            count * self._experts_chunk_s(choice, size, home, tokens, settings)
            for tokens, count in self._chunks(settings).items()
        )
        yield self._cost(part, f"experts {where} {family}", decode_s, prefill_s)
        loop_s = self.engine.expert_loop_s
        if where == "gpu" and loop_s and choice.operator == "KExpertsMarlin":
            assert self._geometry.moe is not None
            once = loop_s * self._geometry.moe.num_experts
            chunks = sum(self._chunks(settings).values())
            yield self._cost(part, "expert loop", once, once * chunks)
        if choice.device != home:
            yield self._transfers(home, choice.device, settings, 2)

    def _experts_chunk_s(
        self, choice: Choice, size: Size, home: str, tokens: int, settings: RunSettings
    ) -> float:
        """Experts that a chunk hits are read once: E(1 - (1 - top_k/E)^n) of them."""
        share = self._traffic.used_share
        hit_bytes = size.n_bytes * (1 - (1 - share) ** tokens)
        work = 2 * tokens * share * size.num_weights
        family = family_of(choice.operator, choice.num_bits)
        flops = self._flops(choice.device, "experts", family, settings, tokens * share)
        rate = self._decode_rate(choice.device, "experts", family, settings)
        on_the_spot = work / flops
        if not self._is_measured(choice.device, "experts", family):
            on_the_spot = max(hit_bytes / rate, on_the_spot)
        if not self._streams(choice.device, home, tokens):
            return on_the_spot
        link = self._links.get((self._machine.host.name, home))
        gpu = self._machine.by_name[home]
        bandwidth = link.bandwidth_bytes_per_s if link else gpu.bandwidth_bytes_per_s / 40
        streamed = size.n_bytes / bandwidth + work / (COMPUTE_EFFICIENCY * gpu.flops)
        return min(on_the_spot, streamed)

    def _streams(self, device: str, home: str, tokens: int) -> bool:
        enough = tokens * self._traffic.used_share >= LEAST_STREAMED
        return (
            self.engine.streams_prefill
            and enough
            and self._where(device) == "host"
            and self._where(home) == "gpu"
        )

    def _cache(self, device: str, settings: RunSettings) -> Cost:
        """Decode reads the cache. (Prefill's share of it is in `_attention`.)"""
        where = self._where(device)
        rate = self._decode_rate(device, "linear", "dense", settings)
        decode_s = self._traffic.cache_bytes(settings) / rate
        return self._cost("dense", f"cache {where}", decode_s, 0.0)

    def _attention(self, device: str, settings: RunSettings) -> Cost:
        """Scores and values of the prompt, and MLA's expansion of the cache for each chunk."""
        attention, heads = self._geometry.attention, self._geometry.num_heads
        if isinstance(attention, Mla):
            widths = attention.qk_nope_dim + attention.qk_rope_dim + attention.v_dim
            expand = attention.kv_lora_rank * (attention.qk_nope_dim + attention.v_dim)
        else:
            widths, expand = 2 * attention.head_dim, 0
        flops, seen, remaining = 0.0, 0, self._workload.prompt_tokens
        while remaining:
            tokens = min(settings.prefill_chunk, remaining)
            seen, remaining = seen + tokens, remaining - tokens
            flops += 2 * heads * seen * (tokens * widths + expand)
        rate = self._flops(device, "linear", "dense", settings)
        return self._cost("dense", f"attention {self._where(device)}", 0.0, flops / rate)

    def _transfers(self, source: str, target: str, settings: RunSettings, times: int) -> Cost:
        """Hidden states of a token, and of every chunk, over a link."""
        latency_s, bandwidth = self._link(source, target)
        row = 2 * self._geometry.hidden
        decode_s = times * (latency_s + row / bandwidth)
        prefill_s = sum(
            times * count * (latency_s + tokens * row / bandwidth)
            for tokens, count in self._chunks(settings).items()
        )
        host = self._machine.host.name
        key = "handover" if host in (source, target) else "hop"
        return self._cost("hops", key, decode_s, prefill_s)

    # Rates.

    def _link(self, source: str, target: str) -> tuple[float, float]:
        measured = self._calibration.links.get(f"{source} {target}")
        if measured is not None:
            return measured
        link = self._links.get((source, target))
        host = self._machine.host.name
        bandwidth = link.bandwidth_bytes_per_s if link else 20e9
        if self._machine.emulated:
            return self._calibration.handover_s or EMULATED_HOP_S, bandwidth
        if host in (source, target):
            return HANDOVER_S, bandwidth
        return (link.latency_s if link else HOP_S), bandwidth

    def _where(self, device: str) -> str:
        """An emulated GPU is the host under another name."""
        is_host = self._machine.emulated or device == self._machine.host.name
        return "host" if is_host else "gpu"

    def _decode_rate(self, device: str, kind: str, family: str, settings: RunSettings) -> float:
        if self._where(device) == "host":
            return self._host.decode(kind, family, settings.num_threads)
        return self._gpu_rate(device)

    def _flops(
        self,
        device: str,
        kind: str,
        family: str,
        settings: RunSettings,
        rows: float = math.inf,
    ) -> float:
        if self._where(device) == "host":
            return self._host.prefill(kind, family, settings.num_threads, rows)
        return COMPUTE_EFFICIENCY * self._machine.by_name[device].flops

    def _is_measured(self, device: str, kind: str, family: str) -> bool:
        """Whether a probe says how long so many rows take: reading the weights included."""
        return self._where(device) == "host" and self._host.was_measured(kind, family)

    def _around_s(self, where: str, device: str, tokens: int, settings: RunSettings) -> float:
        """Around the operators of a layer: launches and, at prefill, what activations pass."""
        if where == "host":
            measured = self._host.layer_s(settings.num_threads, tokens)
            if measured is not None:
                return measured
        once = self.engine.layer_launch_s if where == "gpu" else self.engine.host_layer_s
        if where == "gpu" and device in self._calibration.launch_s:
            once = self.engine.layer_calls * self._calibration.launch_s[device]
        if tokens == 1:
            return once
        return once + self._activations_s(where, device, tokens, settings)

    def _activations_s(self, where: str, device: str, tokens: int, settings: RunSettings) -> float:
        n_bytes = ACTIVATION_PASSES * 4 * tokens * self._geometry.hidden
        if where == "host":
            return n_bytes / self._host.bandwidth(settings.num_threads)
        return n_bytes / self._gpu_rate(device)

    def _gpu_rate(self, device: str) -> float:
        """Bytes of weights a second that a GPU gets through at batch 1."""
        measured = self._calibration.gpu_bytes_per_s.get(device)
        if measured is not None:
            return MEASURED_GPU_EFFICIENCY * measured
        return GPU_EFFICIENCY * _needed(self._machine.by_name[device], self._machine)

    def _chunks(self, settings: RunSettings) -> Mapping[int, int]:
        return chunk_lengths(self._workload.prompt_tokens, settings.prefill_chunk)

    def _cost(self, part: str, key: str, decode_s: float, prefill_s: float) -> Cost:
        """With the calibration's factors applied."""
        decode = self._calibration.decode.get(key, 1.0)
        prefill = self._calibration.prefill.get(key, 1.0)
        return Cost(part, key, decode_s * decode, prefill_s * prefill)


def _needed(device: Device, machine: Machine) -> float:
    if device.bandwidth_bytes_per_s <= 0:
        raise AutoplaceError(
            f"{machine.name} has no bandwidth for {device.name}, which `probe` measures"
        )
    return device.bandwidth_bytes_per_s
