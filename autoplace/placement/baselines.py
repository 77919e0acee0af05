"""The placements anyone would try first: a search must beat them by more than the noise."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from autoplace.placement.placement import Placement
from autoplace.placement.settings import RunSettings
from autoplace.placement.space import SearchSpace, Value

Overrun = Callable[[Placement, RunSettings], Mapping[str, int]]
"""Bytes over the budget per device, negative where there is room: `MemoryPlan.overrun_bytes`."""


@dataclass(frozen=True)
class Baseline:
    """An obvious placement, by name."""

    name: str
    placement: Placement
    settings: RunSettings


def obvious_placements(space: SearchSpace, overrun: Overrun) -> tuple[Baseline, ...]:
    """All experts on the host, an even split, a split by memory, one GPU alone.

    Everything on the host only where there is no GPU. The splits fill each GPU with the experts of
    as many layers as `overrun` lets it hold. Placements that come out equal are listed once.
    """
    found: dict[tuple[Placement, RunSettings], Baseline] = {}
    for name, values in _candidates(space, overrun):
        placement, settings = space.decode(values)
        found.setdefault((placement, settings), Baseline(name, placement, settings))
    return tuple(found.values())


def _candidates(space: SearchSpace, overrun: Overrun) -> Iterator[tuple[str, dict[str, Value]]]:
    if not space.machine.gpus:
        yield "everything on the CPU", _settings(space)
        return
    even = _split(space, [1.0] * len(space.machine.gpus))
    yield "all experts on the CPU" if space.spec.moe_layers else "even split", even
    yield "even split", _fill(space, even, overrun)
    if len(space.machine.gpus) > 1:
        by_memory = _split(space, [float(gpu.budget_bytes) for gpu in space.machine.gpus])
        yield "split by memory", _fill(space, by_memory, overrun)
        yield "one GPU alone", _fill(space, _split(space, _only_the_largest(space)), overrun)


def _only_the_largest(space: SearchSpace) -> list[float]:
    largest = max(space.machine.gpus, key=lambda gpu: gpu.budget_bytes)
    return [float(gpu is largest) for gpu in space.machine.gpus]


def _settings(space: SearchSpace) -> dict[str, Value]:
    settings = space.default_settings
    return {
        "num_threads": settings.num_threads,
        "prefill_chunk": settings.prefill_chunk,
        "kv_type": settings.kv_type,
    }


def _split(space: SearchSpace, shares: Sequence[float]) -> dict[str, Value]:
    """Layers over the GPUs by share, experts on the host, lm_head behind the last layer."""
    num_layers = space.spec.geometry.num_layers
    values = _settings(space)
    ends = [round(num_layers * sum(shares[: i + 1]) / sum(shares)) for i in range(len(shares))]
    for gpu, end in zip(space.machine.gpus[:-1], ends, strict=False):
        values[f"{gpu.name}.end_layer"] = end
    last = next(i for i, end in enumerate(ends) if end == num_layers)
    values["lm_head"] = space.head_on(space.machine.gpus[last].name)
    return values


def _fill(space: SearchSpace, values: dict[str, Value], overrun: Overrun) -> dict[str, Value]:
    """Each GPU in turn takes the experts of as many of its own layers as it has room for."""
    filled = dict(values)
    placement, _ = space.decode(values)
    for gpu in space.machine.gpus:
        own = sum(
            layer.device == gpu.name and layer.experts is not None for layer in placement.layers
        )
        if own and f"{gpu.name}.num_experts" in space.names:
            _fill_gpu(space, filled, gpu.name, own, overrun)
    return filled


def _fill_gpu(
    space: SearchSpace, values: dict[str, Value], gpu: str, most: int, overrun: Overrun
) -> None:
    """Set the largest number of expert layers, 0..most, that the GPU has room for; bisected."""
    low, high = 0, most
    while low < high:
        middle = (low + high + 1) // 2
        values[f"{gpu}.num_experts"] = middle
        fits = overrun(*space.decode(values)).get(gpu, 0) <= 0
        low, high = (middle, high) if fits else (low, middle - 1)
    values[f"{gpu}.num_experts"] = low
