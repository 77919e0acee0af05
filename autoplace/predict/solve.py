"""Which placements are best by prediction: the front of the whole space, with a bound on the gap.

For each weighting of decode and prefill and each pair of settings, `split` finds ranges, operators
and numbers of experts under a few prices; each becomes a placement (`candidate`), is held to the
exact memory, and is predicted exactly. The best is compared with the largest lower bound.
"""

from collections.abc import Iterator, Sequence
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from autoplace.catalog import llama_cpp
from autoplace.catalog.engines import ENGINES
from autoplace.errors import AutoplaceError
from autoplace.placement.options import chunk_choices, thread_choices
from autoplace.placement.placement import Placement
from autoplace.placement.settings import RunSettings
from autoplace.placement.space import SearchSpace
from autoplace.placement.workspace import graph_bytes, workspace_bytes
from autoplace.predict.candidate import Candidate, placement_of, repaired, trimmed
from autoplace.predict.choices import Choices, HostExperts, embedding_bytes, undominated
from autoplace.predict.latency import LatencyModel
from autoplace.predict.predicted import Overrun, Predicted, Solved, front_of
from autoplace.predict.split import Split, Splitter

WEIGHTINGS = (1.0, 1000.0, 8.0, 0.125, 0.001)
"""Decode against prefill, times what the workload weighs them; the workload's own first."""
NUM_REALISED = 3
"""Candidates that are made placements of, for each weighting."""
NUM_REPAIRS = 6


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
        if not ENGINES[space.engine].uses_rules and space.engine != llama_cpp.ENGINE:
            raise AutoplaceError(
                f"engine {space.engine} is launched by flags that say nothing of layers, so there "
                "is nothing to solve for; `plan` takes builtin, llama.cpp and ktransformers-*, and "
                f"`export engine={space.engine} rules=FILE` makes its launch line of what it wrote"
            )
        self._space, self._model, self._overrun = space, model, overrun
        self._dtype_bytes = dtype_bytes
        self._graphs = graph_bytes(
            space.spec.geometry, context_tokens=space.workload.context_tokens
        )
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

    def _worthwhile(self, candidates: Sequence[Candidate]) -> tuple[RunSettings, ...]:
        """Settings for the other weightings: the best three for the workload."""
        ranked = sorted(candidates, key=lambda one: one.value)
        settings = dict.fromkeys(candidate.choices.settings for candidate in ranked)
        return tuple(settings)[:3] or self._settings

    def _candidates(
        self, settings: Sequence[RunSettings], weights: tuple[float, float]
    ) -> tuple[list[Candidate], float]:
        """Candidates of all settings, and the least of their bounds."""
        found: list[Candidate] = []
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
    ) -> tuple[list[Candidate], float]:
        """Candidates by price, and the largest lower bound."""
        launches_s = self._launches(choices, splitter) if gpu_experts else 0.0
        if host is None:
            split = splitter.solve(0.0)
            if split is None:
                return [], np.inf
            return [Candidate(split.value, split, choices, None, splitter)], split.value
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
                found.append(Candidate(value, split, choices, host, splitter))
        return found, lower + launches_s

    def _splits(
        self, splitter: Splitter, values: NDArray[np.float64], most: int
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

    def _best(self, candidates: Sequence[Candidate]) -> Iterator[Candidate]:
        seen = set()
        for candidate in sorted(candidates, key=lambda one: one.value):
            key = (candidate.split.parts, candidate.choices.settings)
            if key not in seen:
                seen.add(key)
                yield candidate
            if len(seen) == NUM_REALISED:
                return

    def _make(self, candidate: Candidate) -> None:
        """The candidate as a placement that fits, experts taken off where there is no room."""
        parts = trimmed(candidate)
        for _ in range(NUM_REPAIRS):
            placement = placement_of(candidate, parts)
            settings = candidate.choices.settings
            if (placement, settings) in self._made:
                return
            over = {n: b for n, b in self._overrun(placement, settings).items() if b > 0}
            if not over:
                prediction = self._model.predict(placement, settings)
                self._made[placement, settings] = Predicted(placement, settings, prediction)
                return
            fewer = repaired(candidate, parts, over)
            if fewer is None:
                return
            parts = fewer

    # What settings share.

    def _of(self, settings: RunSettings) -> Choices:
        if settings not in self._choices:
            self._choices[settings] = Choices(self._space, self._model, settings)
        return self._choices[settings]

    def _budgets(self, settings: RunSettings) -> dict[str, float]:
        """For weights and cache, at most: what every device that is used needs besides is off."""
        engine = ENGINES[self._space.engine]
        if engine.name == "builtin":
            fixed, graphs = self._workspace(settings), self._graphs
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
        replace(
            space.default_settings, num_threads=threads[i], prefill_chunk=chunk, kv_type=kv_type
        )
        for i in undominated(speeds)
        for chunk in reversed(chunk_choices(space.workload))
        for kv_type in space.kv_types
    )
