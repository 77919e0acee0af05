"""Which placements are best by prediction: the front of the whole space, with a bound on the gap.

For each weighting of decode and prefill and each pair of settings, `split` finds ranges, operators
and numbers of experts under a few prices; each becomes a placement, is held to the exact memory,
and is predicted exactly. The best is compared with the largest lower bound.
"""

import random
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from autoplace.catalog.engines import ENGINES
from autoplace.errors import AutoplaceError
from autoplace.placement.memory import layer_cache_bytes
from autoplace.placement.options import chunk_choices, thread_choices
from autoplace.placement.placement import Choice, LayerPlacement, Placement
from autoplace.placement.settings import RunSettings
from autoplace.placement.space import SearchSpace, Value
from autoplace.placement.workspace import graph_bytes, workspace_bytes
from autoplace.predict.choices import Choices, HostExperts, embedding_bytes, undominated
from autoplace.predict.latency import LatencyModel, Prediction
from autoplace.predict.split import Part, Split, Splitter
from autoplace.units import MIB

Overrun = Callable[[Placement, RunSettings], Mapping[str, int]]
"""Bytes over the budget per device, negative where there is room: `MemoryPlan.overrun_bytes`."""
WEIGHTINGS = (1.0, 1000.0, 8.0, 0.125, 0.001)
"""Decode against prefill, times what the workload weighs them; the workload's own first."""
NUM_REALISED = 3
"""Candidates that are made placements of, for each weighting."""
NUM_REPAIRS = 6


@dataclass(frozen=True)
class Predicted:
    """A placement with its predicted time."""

    placement: Placement
    settings: RunSettings
    prediction: Prediction


@dataclass(frozen=True)
class Solved:
    """What solving found; all of it fits."""

    front: tuple[Predicted, ...]
    """No other is better in both; fastest decode first."""
    pool: tuple[Predicted, ...]
    """Everything that was made and fits, the least seconds a request first."""
    bound_s: float
    """No placement takes less for a request of the workload. Infinite where nothing can fit."""

    @property
    def pick(self) -> Predicted | None:
        return self.pool[0] if self.pool else None


@dataclass(frozen=True)
class _Candidate:
    value: float
    """Estimated; exact but for experts that must go elsewhere than planned."""
    split: Split
    choices: Choices
    host: HostExperts | None
    splitter: Splitter


class Solver:
    """Solves one space; keeps what settings and weightings share."""

    def __init__(
        self,
        space: SearchSpace,
        model: LatencyModel,
        overrun: Overrun,
        *,
        settings: Sequence[RunSettings] | None = None,
        dtype_bytes: int = 2,
    ) -> None:
        if not ENGINES[space.engine].uses_rules:
            raise AutoplaceError(
                f"engine {space.engine} runs no rule files, so it has no search space"
            )
        self._space, self._model, self._overrun = space, model, overrun
        self._dtype_bytes = dtype_bytes
        self._settings = tuple(settings or worthwhile_settings(space, model))
        self._choices: dict[RunSettings, Choices] = {}
        self._made: dict[tuple[Placement, RunSettings], Predicted] = {}

    def solve(self, weightings: Sequence[float] = WEIGHTINGS) -> Solved:
        """The front over the weightings; the bound is of the workload's own, if that is there."""
        bound_s = 0.0
        kept = self._settings
        for weighting in weightings:
            weights = (weighting * max(1, self._space.workload.output_tokens - 1), 1.0)
            candidates, bound = self._candidates(kept, weights)
            if weighting == 1.0:
                bound_s = bound
                kept = self._worthwhile(candidates)
            for candidate in self._best(candidates):
                self._make(candidate)
        pool = sorted(
            self._made.values(), key=lambda one: one.prediction.request_s(self._space.workload)
        )
        return Solved(tuple(front_of(pool)), tuple(pool), bound_s)

    def _worthwhile(self, candidates: Sequence[_Candidate]) -> tuple[RunSettings, ...]:
        """Settings for the other weightings: the best three for the workload."""
        ranked = sorted(candidates, key=lambda one: one.value)
        settings = dict.fromkeys(candidate.choices.settings for candidate in ranked)
        return tuple(settings)[:3] or self._settings

    def _candidates(
        self, settings: Sequence[RunSettings], weights: tuple[float, float]
    ) -> tuple[list[_Candidate], float]:
        """Candidates of all settings, and the least of their bounds."""
        found: list[_Candidate] = []
        bound = np.inf
        for one in settings:
            choices = self._of(one)
            budgets = self._budgets(one)
            for host in choices.host_experts or (None,):
                for gpu_experts in (True, False):
                    splitter = Splitter(choices, weights, budgets, gpu_experts=gpu_experts)
                    best, lower = self._priced(splitter, choices, host, gpu_experts=gpu_experts)
                    found += best
                    bound = min(bound, lower)
                    if not self._has_graph(choices):
                        break
        return found, float(bound)

    def _priced(
        self,
        splitter: Splitter,
        choices: Choices,
        host: HostExperts | None,
        *,
        gpu_experts: bool,
    ) -> tuple[list[_Candidate], float]:
        """Candidates by price, and the largest lower bound."""
        launches_s = self._launches(choices, splitter) if gpu_experts else 0.0
        if host is None:
            split = splitter.solve(0.0)
            if split is None:
                return [], np.inf
            return [_Candidate(split.value, split, choices, None, splitter)], split.value
        values, least = splitter.host_value(host, self._host_budget(choices))
        most = splitter.num_moe if gpu_experts and self._has_gpu_experts(choices) else 0
        least = max(least, 1) if gpu_experts and launches_s else least
        if least > most:
            return [], np.inf
        counts = np.arange(least, most + 1)
        found, lower = [], -np.inf
        for mu, split in self._splits(splitter, values, most):
            if split is None:
                return [], np.inf
            lower = max(lower, split.value + float((values[counts] + mu * counts).min()))
            count = min(split.num_experts, most)
            if count >= least:
                value = split.value + mu * split.num_experts + float(values[count]) + launches_s
                found.append(_Candidate(value, split, choices, host, splitter))
        return found, lower + launches_s

    def _splits(
        self, splitter: Splitter, values: "np.ndarray[tuple[int], np.dtype[np.float64]]", most: int
    ) -> Iterator[tuple[float, Split | None]]:
        """Splits at prices around the worth of the last expert layer that finds room."""
        if not most:
            yield 0.0, splitter.solve(0.0)
            return
        worth = values[:-1] - values[1:]  # of the first, second, … layer that leaves the host
        high = float(worth[0]) * 1.001
        split = splitter.solve(high)
        yield high, split
        if split is None:
            return
        tried = {high}
        last = min(split.num_experts, most)
        prices = [float(worth[last - 1])] if last else []
        if last < most:
            prices.append(float(worth[last]))
        else:
            prices += [splitter.least_expert * factor for factor in (1.0001, 1.1, 1.5)]
        for price in prices:
            if price not in tried:
                tried.add(price)
                yield price, splitter.solve(price)

    # Placements.

    def _best(self, candidates: Sequence[_Candidate]) -> Iterator[_Candidate]:
        seen = set()
        for candidate in sorted(candidates, key=lambda one: one.value):
            key = (candidate.split.parts, candidate.choices.settings)
            if key not in seen:
                seen.add(key)
                yield candidate
            if len(seen) == NUM_REALISED:
                return

    def _make(self, candidate: _Candidate) -> None:
        """The candidate as a placement that fits, experts taken off where there is no room."""
        parts = _trimmed(candidate)
        for _ in range(NUM_REPAIRS):
            placement = _placement(candidate, parts)
            settings = candidate.choices.settings
            if (placement, settings) in self._made:
                return
            over = {n: b for n, b in self._overrun(placement, settings).items() if b > 0}
            if not over:
                prediction = self._model.predict(placement, settings)
                self._made[placement, settings] = Predicted(placement, settings, prediction)
                return
            repaired = _repaired(candidate, parts, over)
            if repaired is None:
                return
            parts = repaired

    # What settings share.

    def _of(self, settings: RunSettings) -> Choices:
        if settings not in self._choices:
            self._choices[settings] = Choices(self._space, self._model, settings)
        return self._choices[settings]

    def _budgets(self, settings: RunSettings) -> dict[str, float]:
        """For weights and cache, at most: what every device that is used needs besides is off."""
        engine = ENGINES[self._space.engine]
        if engine.name == "builtin":
            fixed, graphs = self._workspace(settings), _graph_bytes(self._space)
        else:
            fixed, graphs = engine.memory.context_bytes, 0
        return {
            device.name: device.budget_bytes - fixed - (graphs if device.is_gpu else 0)
            for device in self._space.machine.devices
        }

    def _workspace(self, settings: RunSettings) -> int:
        return workspace_bytes(
            self._space.spec.geometry,
            prefill_chunk=settings.prefill_chunk,
            context_tokens=self._space.workload.context_tokens,
        )

    def _host_budget(self, choices: Choices) -> float:
        """For routed experts on the host, at most."""
        host = self._space.machine.host
        budget = host.budget_bytes - embedding_bytes(self._space, self._dtype_bytes)
        if self._space.engine == "builtin":
            budget -= self._workspace(choices.settings)
        return budget

    def _has_graph(self, choices: Choices) -> bool:
        return self._model.cost_model.has_graph(choices.devices[0].name)

    def _has_gpu_experts(self, choices: Choices) -> bool:
        return any(c.experts for device in choices.combinations.values() for c in device)

    def _launches(self, choices: Choices, splitter: Splitter) -> float:
        """What the first expert on a GPU costs: launches of every layer."""
        if not self._has_graph(choices):
            return 0.0
        launch = self._model.cost_model.launch(choices.devices[0].name, choices.settings)
        return float(choices.num_layers * launch.decode_s * splitter.weights[0])


def worthwhile_settings(space: SearchSpace, model: LatencyModel) -> tuple[RunSettings, ...]:
    """Every chunk and cache type, and thread counts that no other is better than in both phases."""
    threads = tuple(reversed(thread_choices(space.machine)))
    speeds = [model.cost_model.host_slowness(count) for count in threads]
    return tuple(
        RunSettings(threads[i], chunk, kv_type)
        for i in undominated(speeds)
        for chunk in reversed(chunk_choices(space.workload))
        for kv_type in space.kv_types
    )


def _graph_bytes(space: SearchSpace) -> int:
    return graph_bytes(space.spec.geometry, context_tokens=space.workload.context_tokens)


def quick_overrun(model: LatencyModel, space: SearchSpace) -> Overrun:
    """Bytes over the budget from the sizes that the model knows: a hundred times as fast as a plan.

    For `builtin`, to within the MiB that it adds for the small things that no rule names. What is
    chosen by it is planned exactly afterwards.
    """
    graphs = _graph_bytes(space) if space.engine == "builtin" else 0
    budgets = {
        device.name: device.budget_bytes - (graphs if device.is_gpu else 0)
        for device in space.machine.devices
    }

    def overrun(placement: Placement, settings: RunSettings) -> Mapping[str, int]:
        cache_bytes = layer_cache_bytes(
            space.spec.geometry,
            context_tokens=space.workload.context_tokens,
            kv_type=settings.kv_type,
        )
        besides = MIB + workspace_bytes(
            space.spec.geometry,
            prefill_chunk=settings.prefill_chunk,
            context_tokens=space.workload.context_tokens,
        )
        layers = Counter(layer.device for layer in placement.layers)
        return {
            name: round(traffic.dense_bytes + traffic.expert_bytes)
            + layers[name] * cache_bytes
            + besides
            - budgets[name]
            for name, traffic in model.traffic.of(placement, settings).items()
        }

    return overrun


def front_of(pool: Sequence[Predicted]) -> list[Predicted]:
    """Those that no other beats in both decode rate and prefill latency, fastest decode first."""
    front: list[Predicted] = []
    for one in sorted(
        pool, key=lambda p: (-p.prediction.decode_tok_per_s, p.prediction.prefill_latency_s)
    ):
        latest = one.prediction.prefill_latency_s
        if not front or latest < front[-1].prediction.prefill_latency_s * (1 - 1e-9):
            front.append(one)
    return front


def _trimmed(candidate: _Candidate) -> tuple[Part, ...]:
    """No more experts than there are layers: taken off the GPUs that are slowest with them."""
    too_many = candidate.split.num_experts - candidate.splitter.num_moe
    parts = list(candidate.split.parts)
    slowest = sorted(range(len(parts)), key=lambda i: -candidate.splitter.expert_s(parts[i]))
    for i in slowest:
        take = min(max(too_many, 0), parts[i].num_experts)
        parts[i] = replace(parts[i], num_experts=parts[i].num_experts - take)
        too_many -= take
    return tuple(parts)


def _repaired(
    candidate: _Candidate, parts: Sequence[Part], over: Mapping[str, int]
) -> tuple[Part, ...] | None:
    """Fewer experts where there is too little room; None where that cannot help."""
    repaired = []
    for part in parts:
        missing = over.get(part.device, 0)
        combination = candidate.choices.combinations[part.device][part.combination]
        if missing > 0:
            fewer = int(-(-missing // combination.expert_bytes)) if part.num_experts else 0
            if not fewer:
                return None
            part = replace(part, num_experts=max(0, part.num_experts - fewer))
        repaired.append(part)
    return tuple(repaired) if tuple(repaired) != tuple(parts) else None


def _placement(candidate: _Candidate, parts: Sequence[Part]) -> Placement:
    choices = candidate.choices
    on_gpu = _expert_devices(candidate, parts)
    layers = []
    for part in parts:
        combination = choices.combinations[part.device][part.combination]
        for layer in range(part.start, part.end):
            experts = None
            if choices.moe[layer]:
                experts = on_gpu.get(layer) or _on_host(candidate)
            layers.append(
                LayerPlacement(
                    part.device,
                    combination.attention,
                    choices.mlp_of(layer, combination.mlp),
                    experts,
                )
            )
    head = next((choices.heads[p.device][p.head].choice for p in parts if p.head is not None), None)
    if head is None:
        head = choices.heads[choices.space.machine.host.name][0].choice
    return Placement(choices.space.engine, tuple(layers), head)


def _on_host(candidate: _Candidate) -> Choice:
    assert candidate.host is not None
    return candidate.host.choice


def _expert_devices(candidate: _Candidate, parts: Sequence[Part]) -> dict[int, Choice]:
    """Layer → the GPU's choice: a GPU's own layers first, dearest on the host first, then others'.

    Then a layer of a GPU gives way to a dearer one of another's while that pays for the way.
    """
    if candidate.host is None:
        return {}
    worth = candidate.splitter.layer_values(candidate.host)
    own = {p.device: range(p.start, p.end) for p in parts}
    moe = candidate.choices.moe
    held = {
        p.device: sorted((i for i in own[p.device] if moe[i]), key=lambda i: (-worth[i], i))[
            : p.num_experts
        ]
        for p in parts
    }
    for part in parts:
        _fill_with_others(part, held, worth, moe, candidate.splitter.away)
    chosen = {}
    for part in parts:
        expert = candidate.choices.combinations[part.device][part.combination].experts
        if expert is not None:
            chosen.update(dict.fromkeys(held[part.device], expert))
    return chosen


def _fill_with_others(
    part: Part,
    held: dict[str, list[int]],
    worth: "np.ndarray[tuple[int], np.dtype[np.float64]]",
    moe: "np.ndarray[tuple[int], np.dtype[np.bool_]]",
    away: float,
) -> None:
    taken = {layer for layers in held.values() for layer in layers}
    left = sorted(
        (i for i in range(len(moe)) if moe[i] and i not in taken), key=lambda i: -worth[i]
    )
    here = held[part.device]
    while left and len(here) < part.num_experts:
        here.append(left.pop(0))
    here.sort(key=lambda i: -worth[i])
    for position in reversed(range(len(here))):
        if not left or worth[left[0]] - worth[here[position]] <= away:
            return
        here[position] = left.pop(0)


NUM_DRAWS = 256
MAX_CHANGES = 6
MAX_CHECKS = 150


def best_placements(
    space: SearchSpace,
    model: LatencyModel,
    overrun: Overrun,
    *,
    count: int,
    seed: int,
    starts: Sequence[Mapping[str, Value]] = (),
    dtype_bytes: int = 2,
) -> tuple[Predicted, ...]:
    """At most `count` different placements that fit, least seconds a request first.

    The solutions, and walks of a few changes from them and from `starts` where samplers can follow:
    a solution that the space's parameters cannot say is not walked from.
    """
    rng = random.Random(seed)
    solved = Solver(space, model, overrun, dtype_bytes=dtype_bytes).solve()
    known = [space.encode(one.placement, one.settings) for one in solved.pool]
    origins = [*starts, *(values for values in known if values is not None)]
    drawn = {space.decode(_draw(space, origins, rng)) for _ in range(NUM_DRAWS)}
    walked = [Predicted(*one, model.predict(*one)) for one in sorted(drawn, key=repr)]
    solutions = {(one.placement, one.settings) for one in solved.pool}
    ranked = sorted(
        [*solved.pool, *walked], key=lambda one: one.prediction.request_s(space.workload)
    )
    found: list[Predicted] = []
    for one in ranked[: len(solved.pool) + MAX_CHECKS]:
        if len(found) == count:
            break
        key = (one.placement, one.settings)
        if all(one.placement != other.placement for other in found) and (
            key in solutions or max(overrun(*key).values()) <= 0
        ):
            found.append(one)
    return tuple(found)


def _draw(
    space: SearchSpace, origins: Sequence[Mapping[str, Value]], rng: random.Random
) -> Mapping[str, Value]:
    if not origins or not space.parameters or rng.random() < 0.25:
        return space.draw(rng)
    values = rng.choice(origins)
    for _ in range(rng.randint(1, MAX_CHANGES)):
        values = space.mutate(values, rng)
    return values
