"""What `plan` works out: the front, the pick, what binds it, and how it does elsewhere."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from autoplace.architectures.spec import ModelSpec
from autoplace.commands.fit import Fit, fit_of
from autoplace.config import PlanConfig
from autoplace.errors import AutoplaceError
from autoplace.export.memory import PlacementMemory
from autoplace.hardware.machine import Machine
from autoplace.placement.assignment import Assignment
from autoplace.placement.baselines import Baseline, obvious_placements
from autoplace.placement.memory import MemoryPlan, plan_memory
from autoplace.placement.placement import Placement
from autoplace.placement.settings import RunSettings
from autoplace.placement.space import SearchSpace
from autoplace.predict.calibration import Calibration
from autoplace.predict.explain import AtLength, Margin, lengths_to_try, margins, same_settings
from autoplace.predict.latency import LatencyModel, Prediction
from autoplace.predict.predicted import Predicted
from autoplace.predict.quick_memory import quick_overrun
from autoplace.predict.solve import Solver, worthwhile_settings
from autoplace.predict.zones import Zone, zone
from autoplace.rules.match import assign
from autoplace.rules.read import load_rules
from autoplace.rules.read_back import read_back
from autoplace.workload import Workload


@dataclass(frozen=True)
class PlannedPlacement:
    """One placement with what it is predicted to need and to do."""

    name: str
    settings: RunSettings
    fit: Fit
    zone: Zone
    placement: Placement | None
    """None where a rule file means no placement: it can be planned for, but not timed."""
    prediction: Prediction | None


@dataclass(frozen=True)
class Planned:
    """Everything that is said of one machine and engine."""

    machine: Machine
    engine: str
    spec: ModelSpec
    calibration: Calibration
    placements: tuple[PlannedPlacement, ...]
    """What is solved for, the pick first, then the obvious ones; or one rule file."""
    front: tuple[PlannedPlacement, ...] = ()
    bound_s: float | None = None
    """No placement takes less for a request, by this model."""
    margins: tuple[Margin, ...] = ()
    at_lengths: tuple[AtLength, ...] = ()

    @property
    def pick(self) -> PlannedPlacement | None:
        first = self.placements[0]
        return first if first.fit.fits else None


class Planner:
    """Plans for one machine and engine of a config."""

    def __init__(
        self,
        config: PlanConfig,
        spec: ModelSpec,
        *,
        machine: Machine | None = None,
        engine: str | None = None,
        calibration: Calibration | None = None,
    ) -> None:
        self.config, self.spec = config, spec
        self.machine = machine or config.machine
        self.engine = engine or config.engine.name
        self.calibration = calibration or Calibration()
        self._bytes = PlacementMemory(spec, self.machine, dtype_bytes=config.engine.dtype_bytes)
        self.model = self._model(config.workload)

    def plan(self, *, lengths: bool = True) -> Planned:
        """Solve, and set the obvious placements beside the solution."""
        space = self._space()
        solved = Solver(
            space,
            self.model,
            self.overrun,
            settings=self._settings(space),
            dtype_bytes=self.config.engine.dtype_bytes,
        ).solve()
        shown = self._named(solved.pool, solved.front)
        obvious = [self._obvious(one) for one in self._baselines(space)]
        margin: tuple[Margin, ...] = ()
        at_lengths: tuple[AtLength, ...] = ()
        if solved.pick is not None:
            margin = margins(space, self.model, self.overrun, solved.pick)
            at_lengths = tuple(self._at_lengths(solved.pick)) if lengths else ()
        return Planned(
            self.machine,
            self.engine,
            self.spec,
            self.calibration,
            (*shown, *self._ranked(obvious)),
            front=tuple(self._planned(one, f"front {i}") for i, one in enumerate(solved.front, 1)),
            bound_s=solved.bound_s,
            margins=margin,
            at_lengths=at_lengths,
        )

    def plan_rules(self) -> Planned:
        """One rule file, timed if it means a placement."""
        assert self.config.rules is not None
        rule_file = load_rules(self.config.rules)
        header = rule_file.header.settings if rule_file.header else None
        settings = self.config.settings.resolve(self.machine, header)
        assignment = assign(rule_file.rules, self.spec, engine=self.engine)
        try:
            placement = read_back(assignment, self.spec)
        except AutoplaceError:
            placement = None
        prediction = None
        if placement is not None and _devices(placement) <= set(self.machine.by_name):
            prediction = self.model.predict(placement, settings)
        memory = self._memory(assignment, settings, self.config.workload)
        planned = self._of(self.config.rules.name, settings, memory, placement, prediction)
        answer = Planned(self.machine, self.engine, self.spec, self.calibration, (planned,))
        if placement is None or prediction is None:
            return answer
        predicted = Predicted(placement, settings, prediction)
        return replace(
            answer,
            margins=margins(self._space(), self.model, self.overrun, predicted),
            at_lengths=tuple(self._at_lengths(predicted)),
        )

    def overrun(self, placement: Placement, settings: RunSettings) -> Mapping[str, int]:
        """Bytes over the budget per device, negative where there is room."""
        plan = self._bytes.plan(placement, settings, self.config.workload)
        return plan.overrun_bytes(self.machine)

    # Parts.

    def _space(self) -> SearchSpace:
        kv_type = self.config.settings.kv_type or "f16"
        return SearchSpace(
            self.spec, self.machine, self.config.workload, self.engine, kv_types=(kv_type,)
        )

    def _model(self, workload: Workload) -> LatencyModel:
        return LatencyModel(
            self.spec,
            self.machine,
            workload,
            dtype_bytes=self.config.engine.dtype_bytes,
            engine=self.engine,
            calibration=self.calibration,
        )

    def _settings(self, space: SearchSpace) -> Sequence[RunSettings]:
        """What may be chosen; what was given stays as it is."""
        found = worthwhile_settings(space, self.model)
        given = self.config.settings
        return tuple(
            dict.fromkeys(
                replace(
                    one,
                    num_threads=given.num_threads or one.num_threads,
                    prefill_chunk=given.prefill_chunk or one.prefill_chunk,
                )
                for one in found
            )
        )

    def _baselines(self, space: SearchSpace) -> tuple[Baseline, ...]:
        is_exact = self.engine != "builtin"
        over = self.overrun if is_exact else quick_overrun(self.model, space)

        def overrun(placement: Placement, settings: RunSettings) -> Mapping[str, int]:
            return over(placement, self.config.settings.resolve(self.machine, settings))

        return obvious_placements(space, overrun)

    def _named(
        self, pool: Sequence[Predicted], front: Sequence[Predicted]
    ) -> list[PlannedPlacement]:
        """The pick, the next best that is another placement, and the rest of the front."""
        if not pool:
            return []
        pick = pool[0]
        others = [one for one in pool[1:] if one.placement != pick.placement]
        shown = [self._planned(pick, "pick")]
        if others:
            shown.append(self._planned(others[0], "next best"))
        rest = [one for one in front if one is not pick and one not in others[:1]]
        return shown + [self._planned(one, "on the front") for one in rest]

    def _planned(self, one: Predicted, name: str) -> PlannedPlacement:
        memory = self._bytes.plan(one.placement, one.settings, self.config.workload)
        return self._of(name, one.settings, memory, one.placement, one.prediction)

    def _obvious(self, baseline: Baseline) -> PlannedPlacement:
        settings = self.config.settings.resolve(self.machine, baseline.settings)
        prediction = self.model.predict(baseline.placement, settings)
        return self._planned(Predicted(baseline.placement, settings, prediction), baseline.name)

    def _of(
        self,
        name: str,
        settings: RunSettings,
        memory: MemoryPlan,
        placement: Placement | None,
        prediction: Prediction | None,
    ) -> PlannedPlacement:
        verdict = zone(memory.overrun_bytes(self.machine), self.machine, engine=self.engine)
        return PlannedPlacement(
            name, settings, fit_of(memory, self.machine), verdict, placement, prediction
        )

    def _ranked(self, planned: list[PlannedPlacement]) -> list[PlannedPlacement]:
        return sorted(planned, key=lambda p: (not p.fit.fits, request_s(p, self.config.workload)))

    def _at_lengths(self, predicted: Predicted) -> list[AtLength]:
        found = []
        for workload in lengths_to_try(self.config.workload, self.spec.geometry.context_length):
            settings = same_settings(predicted.settings, workload)
            prediction = self._model(workload).predict(predicted.placement, settings)
            plan = self._bytes.plan(predicted.placement, settings, workload)
            found.append(AtLength(workload, prediction, plan.overrun_bytes(self.machine)))
        return found

    def _memory(
        self, assignment: Assignment, settings: RunSettings, workload: Workload
    ) -> MemoryPlan:
        return plan_memory(
            self.spec,
            assignment,
            workload=workload,
            settings=settings,
            dtype_bytes=self.config.engine.dtype_bytes,
        )


def request_s(planned: PlannedPlacement, workload: Workload) -> float:
    if planned.prediction is None:
        return float("inf")
    return planned.prediction.request_s(workload)


def _devices(placement: Placement) -> set[str]:
    choices = [
        choice
        for layer in placement.layers
        for choice in (layer.attention, layer.mlp, layer.experts)
        if choice is not None
    ]
    return {choice.device for choice in (*choices, placement.lm_head)} | {
        layer.device for layer in placement.layers
    }
