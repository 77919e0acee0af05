"""What a study of llama.cpp has in place of rule files: lines of arguments, and its baselines."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property

from autoplace.architectures.spec import ModelSpec
from autoplace.bench.llama_cpp.fit import fitted_arguments
from autoplace.bench.llama_cpp.tools import FIT, Tools
from autoplace.bench.llama_cpp.words import refuse_what_it_has_not
from autoplace.errors import AutoplaceError
from autoplace.export.llama_cpp import (
    LlamaCppArgs,
    args_of_placement,
    buffers_of,
    live_overrides,
    nearest_placement,
    parse_args,
    placement_of,
    tensor_devices,
    warnings_of,
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
    """What could not be compared with, and why; what is doubtful in the user's line."""

    @cached_property
    def buffers(self) -> dict[str, str]:
        return buffers_of(self.machine)

    @cached_property
    def kept(self) -> tuple[tuple[str, str], ...]:
        """The user's overrides that stay in every trial, but for those that match nothing."""
        own = self.own.overrides if self.keep and self.own is not None else ()
        return live_overrides(own, self.spec.tensors)

    def args(self, placement: Placement, settings: RunSettings, line: str | None) -> LlamaCppArgs:
        """What is run: the line where there is one, else what says the placement.

        Kept overrides come first, since the first pattern that is found wins; what they leave
        nothing of is left out.
        """
        if line is not None:
            return self._with_servers(parse_args(line))
        args = self._args_of(placement, settings)
        if not self.kept:
            return args
        overrides = live_overrides((*self.kept, *args.overrides), self.spec.tensors)
        return replace(args, overrides=overrides)

    def _args_of(self, placement: Placement, settings: RunSettings) -> LlamaCppArgs:
        return args_of_placement(
            placement,
            settings,
            self.spec,
            self.buffers,
            context_tokens=self.workload.context_tokens,
        )

    def placed(self, placement: Placement, args: LlamaCppArgs) -> Placement:
        """Where the arguments of a placement put it: kept overrides have the last word."""
        return nearest_placement(args, self.spec, self.buffers) if self.kept else placement

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
        """The line where it says more than its placement and settings do; else empty.

        It splits what a placement keeps together, as `--fit` does, or has other words.
        """
        if line is None:
            return ""
        args = self._with_servers(parse_args(line))
        try:
            placement = placement_of(args, self.spec, self.buffers)
            plain = self._args_of(placement, settings_of(args, num_cores=self.machine.num_cores))
        except AutoplaceError:
            return line
        is_plain = self._devices(args) == self._devices(plain)
        return "" if is_plain and not _says_more(args, self.workload.context_tokens) else line

    def _devices(self, args: LlamaCppArgs) -> dict[str, str]:
        return tensor_devices(args, self.spec, self.buffers)

    def _named(self) -> Iterator[tuple[str, LlamaCppArgs]]:
        """`fit` is off but where it is asked for, so that a line means the same everywhere."""
        if self.own is not None:
            yield "your arguments", self._with_servers(self._live(self.own))
        plain = self._with_servers(
            LlamaCppArgs(context=self.workload.context_tokens, parallel=1, fit=False)
        )
        yield "defaults", plain
        fitted = self._fitted(plain)
        if fitted is not None:
            yield FITTED, self._live(fitted)
        if self.spec.moe_layers:
            yield "--cpu-moe", replace(plain, overrides=((EVERY_LAYERS_EXPERTS, "CPU"),))

    def _fitted(self, plain: LlamaCppArgs) -> LlamaCppArgs | None:
        """Without devices there is nothing to fit: the same as the defaults."""
        if not self.machine.gpus:
            self.notes.append(
                "there is no device beside the host to fit to: llama.cpp's --fit was not run, "
                "since it leaves the defaults as they are"
            )
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

    def _live(self, args: LlamaCppArgs) -> LlamaCppArgs:
        """The same without a path and without patterns that move nothing: fit to be exported."""
        context = args.context if args.context is not None else self.workload.context_tokens
        overrides = live_overrides(args.overrides, self.spec.tensors)
        return replace(args, overrides=overrides, context=context, model=None)

    def check(self) -> list[str]:
        """Warnings about the user's own line. Raise `AutoplaceError` for what cannot be run."""
        if self.own is None:
            return []
        source, own = "engine.args", self.own
        warnings = warnings_of(own, list(self.spec.tensors), self.buffers, source=source)
        if own.context and own.context < self.workload.context_tokens:
            raise AutoplaceError(
                f"{source}: -c {own.context} is less than the {self.workload.context_tokens} "
                f"tokens of workload {self.workload.name}"
            )
        refuse_what_it_has_not(self._with_servers(own), self.tools, source=source)
        for kv_type in {own.cache_type_k, own.cache_type_v} - {"f16"}:
            warnings.append(
                f"{source}: its cache is {kv_type}, not f16: by how much answers differ is not "
                "measured"
            )
        if own.parallel not in (None, 1):
            warnings.append(
                f"{source}: -np {own.parallel} is for several users; one is measured at a time"
            )
        return warnings

    def _with_servers(self, args: LlamaCppArgs) -> LlamaCppArgs:
        endpoints = tuple(gpu.endpoint for gpu in self.machine.gpus if gpu.endpoint)
        return replace(args, rpc=endpoints or args.rpc)


def _says_more(args: LlamaCppArgs, context_tokens: int) -> bool:
    """Whether it has words that no placement and no settings stand for."""
    as_usual = LlamaCppArgs(
        n_gpu_layers=args.n_gpu_layers,
        tensor_split=args.tensor_split,
        overrides=args.overrides,
        cache_type_k=args.cache_type_k,
        cache_type_v=args.cache_type_k,
        batch=args.batch,
        ubatch=args.ubatch,
        threads=args.threads,
        threads_batch=args.threads_batch if args.threads_batch == args.threads else None,
        flash_attn=args.flash_attn,
        context=args.context if args.context == context_tokens else None,
        rpc=args.rpc,
        fit=None if args.fit else args.fit,
        parallel=args.parallel if args.parallel == 1 else None,
    )
    return args != as_usual


def line_of(args: LlamaCppArgs) -> str:
    """The words without the program and the model: what a trial is kept as."""
    return replace(args, model=None).line("llama-server").removeprefix("llama-server").strip()


def lines_to_paste(line: str, model: str = "MODEL.gguf") -> tuple[str, str]:
    """The same for the server, and for a chat in the terminal."""
    args = replace(parse_args(line), model=model)
    return args.line("llama-server"), args.line("llama-cli")
