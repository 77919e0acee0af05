"""How long a placement takes, from bytes over bandwidth: a ranking, not yet a calibrated figure.

Source: prediction.md section 2. The efficiencies are its starting values, fitted to no machine.
"""

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass

from autoplace.architectures.spec import ModelSpec
from autoplace.hardware.machine import Device, Machine
from autoplace.placement.placement import Placement
from autoplace.placement.settings import RunSettings
from autoplace.predict.traffic import Traffic, TrafficModel
from autoplace.workload import Workload

GPU_EFFICIENCY = 0.70
HOST_EFFICIENCY = 0.53
COMPUTE_EFFICIENCY = 0.5
HOP_S = 46e-6
"""One transfer of activations between devices, peer access off."""


@dataclass(frozen=True)
class Prediction:
    """Seconds by part: one decoded token, and the prefill of the prompt. Always predicted."""

    decode_s: Mapping[str, float]
    """`cpu`, `cuda:0`, …: reading weights and cache; `hops`: moving activations."""
    prefill_s: Mapping[str, float]
    bytes_per_token: int
    """Weight and cache bytes that one decoded token reads, over all devices."""

    @property
    def decode_tok_per_s(self) -> float:
        return 1 / sum(self.decode_s.values())

    @property
    def prefill_latency_s(self) -> float:
        return sum(self.prefill_s.values())

    def request_s(self, workload: Workload) -> float:
        return workload.request_s(
            prefill_latency_s=self.prefill_latency_s, decode_tok_per_s=self.decode_tok_per_s
        )


class LatencyModel:
    """Predicts placements of one model on one machine for one workload."""

    def __init__(
        self, spec: ModelSpec, machine: Machine, workload: Workload, *, dtype_bytes: int = 2
    ) -> None:
        self._machine = machine
        self._workload = workload
        self._traffic = TrafficModel(spec, workload, dtype_bytes=dtype_bytes)

    def predict(self, placement: Placement, settings: RunSettings) -> Prediction:
        """Parts of the time of one token and of the prompt, each on the device that spends them.

        Decode: bytes read over the device's sustained bandwidth. Prefill, per chunk: the larger of
        that (with the experts a chunk hits) and of 2 flops a weight and token. Hops: one latency
        each time the activations change device.
        """
        chunks = _chunk_lengths(self._workload.prompt_tokens, settings.prefill_chunk)
        hops_s = HOP_S * _num_hops(placement)
        decode_s = {"hops": hops_s}
        prefill_s = {"hops": hops_s * sum(chunks.values())}
        bytes_per_token = 0.0
        for name, traffic in self._traffic.of(placement, settings).items():
            speed = _speed(self._machine, self._machine.by_name[name], settings)
            decode_s[name] = traffic.decode_bytes / speed.bytes_per_s
            prefill_s[name] = sum(
                count * _chunk_s(traffic, tokens, speed) for tokens, count in chunks.items()
            )
            bytes_per_token += traffic.decode_bytes
        return Prediction(decode_s, prefill_s, round(bytes_per_token))


@dataclass(frozen=True)
class _Speed:
    bytes_per_s: float
    flops: float


def _speed(machine: Machine, device: Device, settings: RunSettings) -> _Speed:
    """What a device sustains. An emulated GPU is the host under another name.

    The host's bandwidth takes half of its cores to saturate, its flops all of them.
    """
    if device.is_gpu and not machine.emulated:
        return _Speed(
            GPU_EFFICIENCY * device.bandwidth_bytes_per_s, COMPUTE_EFFICIENCY * device.flops
        )
    host = machine.host
    share = min(1.0, settings.num_threads / machine.num_cores)
    return _Speed(
        HOST_EFFICIENCY * host.bandwidth_bytes_per_s * min(1.0, 2 * share),
        COMPUTE_EFFICIENCY * host.flops * share,
    )


def _chunk_s(traffic: Traffic, num_tokens: int, speed: _Speed) -> float:
    read_s = traffic.chunk_bytes(num_tokens) / speed.bytes_per_s
    compute_s = 2 * num_tokens * traffic.weights_per_token / speed.flops
    return max(read_s, compute_s)


def _chunk_lengths(num_tokens: int, chunk: int) -> Counter[int]:
    """Length of a chunk → how many of them a prompt of `num_tokens` is cut into."""
    lengths = Counter({chunk: num_tokens // chunk})
    lengths[num_tokens % chunk] += 1
    return Counter({length: count for length, count in lengths.items() if length and count})


def _num_hops(placement: Placement) -> int:
    """Changes of device on the way of one token through layers, experts and lm_head."""
    hops = 0
    here = placement.layers[0].device
    for layer in placement.layers:
        hops += layer.device != here
        here = layer.device
        hops += 2 * (layer.experts is not None and layer.experts.device != here)
    return hops + (placement.lm_head.device != here)
