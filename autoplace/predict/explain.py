"""Why a placement is as fast as it is: what binds it, what would help, why others lose."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace

from autoplace.placement.options import GROUPS, operator_choices
from autoplace.placement.placement import Choice, LayerPlacement, Placement
from autoplace.placement.settings import RunSettings
from autoplace.placement.space import SearchSpace
from autoplace.predict.latency import PART_NAMES, LatencyModel, Prediction
from autoplace.predict.predicted import Overrun, Predicted
from autoplace.units import GIB, format_bytes, format_seconds
from autoplace.workload import Workload


@dataclass(frozen=True)
class Margin:
    """What one more layer of experts on a GPU would need and give."""

    device: str
    left_bytes: int
    """Free now."""
    next_bytes: int
    """Of the experts of one more layer there."""
    gain_tok_per_s: float
    """In decode, if it went there from the host; negative where it would cost."""

    @property
    def missing_bytes(self) -> int:
        return max(0, self.next_bytes - self.left_bytes)

    @property
    def gain_per_gib(self) -> float:
        """Of memory that is missing; of the layer where none is."""
        return self.gain_tok_per_s / ((self.missing_bytes or self.next_bytes) / GIB)

    def __str__(self) -> str:
        gain = f"{self.gain_tok_per_s:+.2g} tok/s"
        if self.missing_bytes:
            return (
                f"{self.device} is full ({format_bytes(self.left_bytes)} left): the experts of one "
                f"more layer need {format_bytes(self.missing_bytes)} more and would give {gain}, "
                f"{self.gain_per_gib:+.2g} a GiB"
            )
        return (
            f"{self.device} has room for more ({format_bytes(self.left_bytes)} left), but the "
            f"experts of a layer there would give {gain}"
        )


def margins(
    space: SearchSpace, model: LatencyModel, overrun: Overrun, predicted: Predicted
) -> tuple[Margin, ...]:
    """Of every GPU, most for its bytes first; none where no experts are left on the host."""
    on_host = [
        index
        for index, layer in enumerate(predicted.placement.layers)
        if layer.experts is not None and layer.experts.device == space.machine.host.name
    ]
    if not on_host:
        return ()
    over = overrun(predicted.placement, predicted.settings)
    found = []
    for gpu in space.machine.gpus:
        choice = _expert_choice(space, predicted.placement, gpu.name)
        if choice is None:
            continue
        index = _dearest(model, predicted, on_host, gpu.name)
        moved = _with_experts(predicted.placement, index, choice)
        rate = model.predict(moved, predicted.settings).decode_tok_per_s
        size = model.traffic.size(index, "experts", choice).n_bytes
        gain = rate - predicted.prediction.decode_tok_per_s
        found.append(Margin(gpu.name, max(0, -over.get(gpu.name, 0)), size, gain))
    return tuple(sorted(found, key=lambda margin: -margin.gain_per_gib))


def _expert_choice(space: SearchSpace, placement: Placement, gpu: str) -> Choice | None:
    """The operator of the GPU's experts, or the usual one there."""
    for layer in placement.layers:
        if layer.experts is not None and layer.experts.device == gpu:
            return layer.experts
    options = operator_choices(
        space.spec, space.machine.by_name[gpu], GROUPS["experts"], engine=space.engine
    )
    return next(iter(options), None)


def _dearest(model: LatencyModel, predicted: Predicted, layers: list[int], gpu: str) -> int:
    """The layer whose experts cost most on the host, the GPU's own first among equals."""

    def key(index: int) -> tuple[float, bool, int]:
        layer = predicted.placement.layers[index]
        costs = model.layer_costs(index, layer, predicted.settings)
        host_s = sum(cost.decode_s for cost in costs if cost.part == "host_experts")
        return -host_s, layer.device != gpu, index

    return min(layers, key=key)


def _with_experts(placement: Placement, index: int, choice: Choice) -> Placement:
    layers = list(placement.layers)
    old = layers[index]
    layers[index] = LayerPlacement(old.device, old.attention, old.mlp, choice)
    return replace(placement, layers=tuple(layers))


def why_it_loses(loser: Prediction, winner: Prediction, workload: Workload) -> str:
    """`0.42 s a request more: experts on the host +0.50 s, launches -0.08 s`."""
    num_decoded = max(0, workload.output_tokens - 1)
    more = {
        part: loser.prefill_s[part]
        - winner.prefill_s[part]
        + num_decoded * (loser.decode_s[part] - winner.decode_s[part])
        for part in PART_NAMES
    }
    total = sum(more.values())
    largest = sorted(more, key=lambda part: -abs(more[part]))[:2]
    parts = [
        f"{PART_NAMES[part]} {'+' if more[part] >= 0 else '-'}{format_seconds(abs(more[part]))}"
        for part in largest
        if abs(more[part]) > 0.1 * abs(total)
    ]
    sign = "more" if total >= 0 else "less"
    return (
        f"{format_seconds(abs(total))} a request {sign}"
        + (": " if parts else "")
        + ", ".join(parts)
    )


@dataclass(frozen=True)
class AtLength:
    """The same placement at other lengths."""

    workload: Workload
    prediction: Prediction
    overrun_bytes: Mapping[str, int]


def lengths_to_try(workload: Workload, longest: int) -> Iterator[Workload]:
    """A quarter, four and sixteen times the prompt, as far as the model's context goes."""
    for factor in (0.25, 4, 16):
        prompt = round(workload.prompt_tokens * factor)
        context = prompt + workload.output_tokens
        if prompt >= 1 and context <= longest:
            yield Workload(f"{prompt} tokens", prompt, workload.output_tokens, context)


def same_settings(settings: RunSettings, workload: Workload) -> RunSettings:
    """Chunks no longer than the prompt."""
    return replace(settings, prefill_chunk=min(settings.prefill_chunk, workload.prompt_tokens))
