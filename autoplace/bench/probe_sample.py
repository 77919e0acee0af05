"""A few layers of a model, run by the engine itself: what operators cost where they stand.

Operators that are timed one by one miss what is between them: the calls, the small products of the
attention, threads that fell asleep, caches that others filled. So the probe writes a file of some
usual layers with random weights, loads it under a few uniform placements, and times whole tokens
and whole chunks, under every number of threads.
"""

import logging
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import product
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory

import numpy as np

from autoplace.architectures import file_metadata, file_tensors, spec_from_gguf
from autoplace.architectures.geometry import Geometry
from autoplace.architectures.spec import ModelSpec
from autoplace.bench.metrics import Spread
from autoplace.bench.threads import set_threads
from autoplace.engine.loader import load_model
from autoplace.engine.model import HybridModel
from autoplace.errors import AutoplaceError
from autoplace.hardware.ledger import Ledger
from autoplace.hardware.machine import Machine
from autoplace.placement.expand import Expander
from autoplace.placement.options import GROUPS, layers_with
from autoplace.placement.placement import Choice, LayerPlacement, Placement
from autoplace.placement.settings import RunSettings
from autoplace.weights.ggml import TensorInfo
from autoplace.weights.gguf_file import GGUFFile
from autoplace.weights.synthesize import write_gguf
from autoplace.workload import Workload

logger = logging.getLogger(__name__)

MOST_WEIGHTS = 200_000_000
"""Of the layers: more than caches hold, and written and packed in seconds."""
MOST_HEAD_WEIGHTS = 40_000_000
CHUNKS = (32, 128)
DECODED = 8
SHORT, LONG = 16, 768
"""Positions in the cache while tokens are decoded."""
NUM_REPEATS = 2
ROUNDS = ((1, *CHUNKS), (1,), CHUNKS)
"""Tokens of the passes, round by round, so that what disturbs one is seen in another. Decode comes
again first: it takes less time, and others on the machine disturb it more."""
LEAST_REPEAT_S = 0.12
"""Of one repeat: short calls are made again until then."""
LONG_CALL_S = 0.3
"""Of one call: it is timed once a round."""
GPU_FAMILIES = ("marlin4", "marlin8", "dense")
QUANT = "q4_k_m"
"""Of tensors that the model does not have under the names of its own geometry."""


@dataclass(frozen=True)
class Timed:
    """One pass through the sample: a decoded token, or a prefilled chunk."""

    spec: ModelSpec
    """The sample's."""
    placement: Placement
    num_threads: int
    tokens: int
    """1: decode."""
    position: int
    """Tokens in the cache before."""
    seconds: Spread
    """Median and extremes of the repeats."""


@dataclass(frozen=True)
class Sample:
    """The file and its spec."""

    path: Path
    spec: ModelSpec

    @property
    def workload(self) -> Workload:
        """As long as anything that is timed."""
        most = max(LONG + DECODED, max(CHUNKS))
        return Workload("sample", max(CHUNKS), 1, min(most, self.spec.geometry.context_length))


def sample_geometry(geometry: Geometry) -> Geometry:
    """Some layers with routed experts, or dense ones where the model has no others."""
    moe = geometry.moe
    while moe is not None and _layer_weights(replace(geometry, moe=moe)) > 2 * MOST_WEIGHTS:
        half = moe.num_experts // 2
        if half < 2 * moe.top_k or half % max(moe.num_groups, 1):
            break
        moe = replace(moe, num_experts=half)
    fewer = replace(geometry, moe=moe, num_mtp_layers=0)
    most = geometry.num_layers - (geometry.num_dense_lead_layers if moe else 0)
    num_layers = max(1, min(most, MOST_WEIGHTS // _layer_weights(fewer)))
    return replace(
        fewer,
        num_layers=num_layers,
        num_dense_lead_layers=0 if moe else num_layers,
        vocab=min(geometry.vocab, MOST_HEAD_WEIGHTS // geometry.hidden),
    )


def _layer_weights(geometry: Geometry) -> int:
    """Of one of the sample's layers."""
    lead = 0 if geometry.moe else 1
    one = replace(geometry, num_layers=1, num_dense_lead_layers=lead, num_mtp_layers=0, vocab=32)
    return sum(
        info.n_elements for info in file_tensors(one, quant="f16") if info.name.startswith("blk.")
    )


def sample_tensors(spec: ModelSpec, geometry: Geometry) -> tuple[TensorInfo, ...]:
    """The file's tensors, with the types that layers spread over the model have."""
    layers = spec.moe_layers or tuple(range(spec.geometry.num_layers))
    spread = np.linspace(0, len(layers) - 1, geometry.num_layers).round().astype(int)
    found = []
    for info in file_tensors(geometry, quant=QUANT):
        name = info.name
        if name.startswith("blk."):
            _, layer, rest = name.split(".", 2)
            name = f"blk.{layers[spread[int(layer)]]}.{rest}"
        known = spec.tensors.get(name)
        found.append(replace(info, ggml_type=known.ggml_type) if known else info)
    return tuple(found)


def write_sample(spec: ModelSpec, folder: Path) -> Sample:
    """Write it with random weights: some hundred MB, a second."""
    path = folder / "sample.gguf"
    geometry = sample_geometry(spec.geometry)
    metadata = file_metadata("sample", geometry, QUANT)
    write_gguf(path, metadata=metadata, tensors=sample_tensors(spec, geometry), seed=0)
    return Sample(path, spec_from_gguf(GGUFFile.open(path)))


_OPERATORS = {
    "blocks": ("KLinearCPUInfer", "KExpertsCPU", None),
    "dense": ("KLinearTorch", "KExpertsTorch", None),
    "marlin4": ("KLinearMarlin", "KExpertsMarlin", 4),
    "marlin8": ("KLinearMarlin", "KExpertsMarlin", 8),
}


def sample_placements(
    spec: ModelSpec, machine: Machine, families: Sequence[str]
) -> Iterator[Placement]:
    """Every family for everything, and every other one beside experts in GGUF blocks.

    Packed weights are on the first GPU, everything else on the host. On a real GPU packed and
    plain weights are timed besides.
    """
    homes = dict.fromkeys(families, machine.host.name)
    homes |= {f: machine.gpus[0].name for f in families if f.startswith("marlin")}
    yield from _uniform(spec, homes, machine.host.name)
    if machine.gpus and not machine.emulated:
        gpu = dict.fromkeys(GPU_FAMILIES, machine.gpus[0].name)
        yield from _uniform(spec, gpu, machine.host.name)


def _uniform(spec: ModelSpec, homes: Mapping[str, str], host: str) -> Iterator[Placement]:
    """`homes`: family → the device that its weights are on."""
    pairs = [(family, family) for family in homes]
    if spec.moe_layers:
        beside = [(family, "blocks") for family in homes if family != "blocks"]
        pairs = [*pairs[:2], *beside, *pairs[2:]]
    mlp_layers = layers_with(spec, GROUPS["mlp"])
    for linears, experts in pairs:
        home = homes[linears]
        linear_name, _, bits = _OPERATORS[linears]
        linear = Choice(home, linear_name, bits)
        _, experts_name, bits = _OPERATORS[experts]
        routed = Choice(host if experts == "blocks" else homes[experts], experts_name, bits)
        layers = tuple(
            LayerPlacement(
                home,
                linear,
                linear if layer in mlp_layers else None,
                routed if layer in spec.moe_layers else None,
            )
            for layer in range(spec.geometry.num_layers)
        )
        yield Placement("builtin", layers, linear)


def time_sample(
    spec: ModelSpec,
    machine: Machine,
    families: Sequence[str],
    threads: Sequence[int],
    *,
    deadline_s: float,
    interleave: str = "auto",
) -> Iterator[Timed]:
    """Passes under every placement and number of threads, the most threads first, in `ROUNDS`.

    What is late is left out; `deadline_s` is on `time.monotonic`'s clock. `interleave`: as the
    engine is told to.
    """
    with TemporaryDirectory(prefix="autoplace-probe-") as folder:
        sample = write_sample(spec, Path(folder))
        placements = list(sample_placements(sample.spec, machine, families))
        for lengths, placement in product(ROUNDS, placements):
            if time.monotonic() > deadline_s:
                return
            try:
                model = load(sample, placement, machine, interleave=interleave)
            except AutoplaceError as problem:
                logger.warning("a placement of the sample is left out: %s", problem)
                continue
            try:
                for num_threads in sorted(threads, reverse=True):
                    set_threads(num_threads)
                    yield from _passes(
                        model,
                        sample,
                        placement,
                        num_threads,
                        lengths,
                        positions=(SHORT, LONG) if placement is placements[0] else (SHORT,),
                        deadline_s=deadline_s,
                    )
            finally:
                model.close()


def load(sample: Sample, placement: Placement, machine: Machine, *, interleave: str) -> HybridModel:
    """The sample under a placement; budgets do not count, since it is no trial."""
    return load_model(
        GGUFFile.open(sample.path),
        sample.spec,
        Expander(sample.spec).expand(placement),
        machine=machine,
        ledger=Ledger({}),
        settings=RunSettings(1, max(CHUNKS)),
        workload=sample.workload,
        interleave=interleave,
    )


def _passes(
    model: HybridModel,
    sample: Sample,
    placement: Placement,
    num_threads: int,
    lengths: Sequence[int],
    *,
    positions: Sequence[int],
    deadline_s: float,
) -> Iterator[Timed]:
    """Passes of so many tokens, decode at the positions; none starts after the deadline."""
    rng = np.random.default_rng(0)
    vocab, context = sample.spec.geometry.vocab, sample.workload.context_tokens

    def decode(position: int) -> None:
        model.position = position
        for token in rng.integers(0, vocab, DECODED):
            int(model.decode(int(token)).argmax())

    def prefill(chunk: list[int]) -> None:
        model.reset()
        int(model.prefill(chunk).argmax())

    for position in positions if 1 in lengths else ():
        if position + DECODED <= context and time.monotonic() < deadline_s:
            spread = _times(partial(decode, position), DECODED)
            yield Timed(sample.spec, placement, num_threads, 1, position, spread)
    for tokens in (length for length in lengths if length > 1):
        chunk = [int(token) for token in rng.integers(0, vocab, tokens)]
        if tokens <= context and time.monotonic() < deadline_s:
            spread = _times(partial(prefill, chunk), 1)
            yield Timed(sample.spec, placement, num_threads, tokens, 0, spread)


def _times(call: Callable[[], None], count: int) -> Spread:
    """Seconds of a few repeats over `count` a call, after one call for warming up."""
    seconds: list[float] = []
    call()
    while not seconds or (len(seconds) < NUM_REPEATS and count * seconds[0] < LONG_CALL_S):
        begin, calls = time.perf_counter(), 0
        while calls == 0 or time.perf_counter() - begin < LEAST_REPEAT_S:
            call()
            calls += 1
        seconds.append((time.perf_counter() - begin) / (calls * count))
    return Spread(median(seconds), min(seconds), max(seconds), len(seconds))
