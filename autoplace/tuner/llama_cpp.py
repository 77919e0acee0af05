"""What a study of llama.cpp has in place of rule files: lines of arguments, and its baselines."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property

from autoplace.architectures.spec import ModelSpec
from autoplace.bench.llama_cpp.fit import fitted_arguments
from autoplace.bench.llama_cpp.tools import FIT, Tools
from autoplace.errors import AutoplaceError
from autoplace.export.llama_cpp import (
    LlamaCppArgs,
    args_of_placement,
    buffers_of,
    check_overrides,
    nearest_placement,
    parse_args,
    placement_of,
)
from autoplace.export.llama_cpp.memory import plan_llama_cpp
from autoplace.export.llama_cpp.names import EVERY_LAYERS_EXPERTS
from autoplace.export.llama_cpp.placed import settings_of
from autoplace.hardware.machine import Machine
from autoplace.placement.memory import MemoryPlan
from autoplace.placement.placement import Placement
from autoplace.placement.settings import RunSettings
from autoplace.workload import Workload

FITTED = "--fit"
"""The baseline that a study's gain is told against."""


@dataclass(frozen=True)
class Baseline:
    """Arguments that everybody could have used, as a placement with settings."""

    name: str
    placement: Placement
    settings: RunSettings
    line: str


@dataclass(frozen=True)
class LlamaCppStudy:
    """llama.cpp as it is installed, for one model on one machine."""

    spec: ModelSpec
    machine: Machine
    workload: Workload
    tools: Tools
    model_path: str
    own: LlamaCppArgs | None = None
    """The user's own arguments."""
    keep: bool = False
    """Whether what they override stays there in every trial."""
    notes: list[str] = field(default_factory=list, compare=False)
    """What could not be compared with, and why."""

    @cached_property
    def buffers(self) -> dict[str, str]:
        return buffers_of(self.machine)

    @property
    def kept(self) -> tuple[tuple[str, str], ...]:
        return self.own.overrides if self.keep and self.own is not None else ()

    def args(self, placement: Placement, settings: RunSettings, line: str | None) -> LlamaCppArgs:
        """What is run: the line where there is one, else what says the placement.

        Kept overrides come first, since the first pattern that is found wins.
        """
        if line is not None:
            return self._with_servers(parse_args(line))
        args = args_of_placement(
            placement,
            settings,
            self.spec,
            self.buffers,
            context_tokens=self.workload.context_tokens,
        )
        return replace(args, overrides=(*self.kept, *args.overrides))

    def plan(self, args: LlamaCppArgs) -> MemoryPlan:
        return plan_llama_cpp(
            self.spec, args, self.buffers, context_tokens=self.workload.context_tokens
        )

    def overrun_bytes(self, placement: Placement, settings: RunSettings) -> Mapping[str, int]:
        """Bytes over the budget per device; a whole device over where no arguments say it."""
        try:
            plan = self.plan(self.args(placement, settings, None))
        except AutoplaceError:
            return {device.name: device.memory_bytes for device in self.machine.devices}
        return plan.overrun_bytes(self.machine)

    def baselines(self) -> Iterator[Baseline]:
        """Yours, the defaults, `--fit` and `--cpu-moe`; those that mean the same are one."""
        found: dict[tuple[Placement, RunSettings, str], Baseline] = {}
        for name, args in self._named():
            placement = nearest_placement(args, self.spec, self.buffers)
            settings = settings_of(args, num_cores=self.machine.num_cores)
            line = line_of(args)
            known = found.get((placement, settings, self.parted(line)))
            one = Baseline(name, placement, settings, line)
            if known is not None:
                one = replace(known, name=f"{known.name}, {name}")
            found[placement, settings, self.parted(line)] = one
        yield from found.values()

    def parted(self, line: str | None) -> str:
        """The line where it splits what a placement keeps together, as `--fit` does; else empty.

        Its placement is then only the nearest, and does not tell it from others.
        """
        if line is None:
            return ""
        try:
            placement_of(self._with_servers(parse_args(line)), self.spec, self.buffers)
        except AutoplaceError:
            return line
        return ""

    def _named(self) -> Iterator[tuple[str, LlamaCppArgs]]:
        """`fit` is off but where it is asked for, so that a line means the same everywhere."""
        if self.own is not None:
            yield "your arguments", self._checked(self.own)
        plain = self._with_servers(
            LlamaCppArgs(context=self.workload.context_tokens, parallel=1, fit=False)
        )
        yield "defaults", plain
        fitted = self._fitted(plain)
        if fitted is not None:
            yield FITTED, fitted
        if self.spec.moe_layers:
            yield "--cpu-moe", replace(plain, overrides=((EVERY_LAYERS_EXPERTS, "CPU"),))

    def _fitted(self, plain: LlamaCppArgs) -> LlamaCppArgs | None:
        """Without devices there is nothing to fit: the same as the defaults."""
        if not self.machine.gpus:
            return plain
        if FIT not in self.tools.programs:
            self.notes.append(
                f"llama.cpp's --fit was not measured: there is no {FIT} beside "
                f"{self.tools.measurer}"
            )
            return None
        try:
            return fitted_arguments(plain, self.tools, self.machine, self.model_path)
        except AutoplaceError as error:
            self.notes.append(f"llama.cpp's --fit found nothing: {error}")
            return None

    def _checked(self, own: LlamaCppArgs) -> LlamaCppArgs:
        """With what every trial has. Raise `AutoplaceError` for patterns that match nothing."""
        findings = check_overrides(own, list(self.spec.tensors), self.buffers)
        if findings:
            raise AutoplaceError(f"engine.args: {findings[0].message}")
        context = own.context if own.context is not None else self.workload.context_tokens
        if context and context < self.workload.context_tokens:
            raise AutoplaceError(
                f"engine.args: -c {context} is less than the {self.workload.context_tokens} tokens "
                f"of workload {self.workload.name}"
            )
        return self._with_servers(replace(own, context=context, model=None))

    def _with_servers(self, args: LlamaCppArgs) -> LlamaCppArgs:
        endpoints = tuple(gpu.endpoint for gpu in self.machine.gpus if gpu.endpoint)
        return replace(args, rpc=endpoints or args.rpc)


def line_of(args: LlamaCppArgs) -> str:
    """The words without the program and the model: what a trial is kept as."""
    return replace(args, model=None).line("llama-server").removeprefix("llama-server").strip()


def lines_to_paste(line: str, model: str = "MODEL.gguf") -> tuple[str, str]:
    """The same for the server, and for a chat in the terminal."""
    args = replace(parse_args(line), model=model)
    return args.line("llama-server"), args.line("llama-cli")
