"""A placement as the launch flags of kt-kernel in sglang: equal GPUs, the same split everywhere.

Source: kt-kernel's README (`--kt-method`, `--kt-weight-path`, `--kt-cpuinfer`,
`--kt-threadpool-count`, `--kt-num-gpu-experts`) and sglang's `--tensor-parallel-size`.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from autoplace.architectures.spec import ModelSpec, Role
from autoplace.errors import AutoplaceError
from autoplace.export.sglang_kt_memory import plan_sglang_kt
from autoplace.hardware.machine import Machine
from autoplace.placement.assignment import Assignment
from autoplace.placement.memory import MemoryPlan
from autoplace.placement.settings import RunSettings
from autoplace.workload import Workload

ENGINE = "sglang-kt"


@dataclass(frozen=True)
class Launch:
    """The flags that decide where the model goes."""

    gpus: tuple[str, ...]
    num_gpu_experts: int
    """Routed experts of each layer that are on GPUs too."""
    num_threads: int
    numa_nodes: int

    def line(self) -> str:
        """The command, with MODEL and GGUF for what only the user's machine knows."""
        words = [
            "python -m sglang.launch_server --model MODEL",
            f"--tensor-parallel-size {len(self.gpus)}",
            "--kt-method LLAMAFILE --kt-weight-path GGUF",
            f"--kt-cpuinfer {self.num_threads}",
            f"--kt-threadpool-count {self.numa_nodes}",
            f"--kt-num-gpu-experts {self.num_gpu_experts}",
        ]
        return " ".join(words)

    def plan(self, spec: ModelSpec, workload: Workload, settings: RunSettings) -> MemoryPlan:
        """Bytes by device."""
        return plan_sglang_kt(
            spec,
            self.gpus,
            num_gpu_experts=self.num_gpu_experts,
            workload=workload,
            settings=settings,
        )


def flags_of(
    assignment: Assignment,
    homes: Sequence[str],
    spec: ModelSpec,
    machine: Machine,
    settings: RunSettings,
) -> Launch:
    """The launch that a placement means. Raises `AutoplaceError` for what flags cannot say."""
    gpus = tuple(sorted({home for home in homes if home != "cpu"}))
    if "cpu" in homes or not gpus:
        raise AutoplaceError(f"{ENGINE} export: every layer must be on a GPU, its experts aside")
    _refuse_unequal(machine, gpus)
    num_experts = _gpu_experts(assignment, spec)
    return Launch(gpus, num_experts, settings.num_threads, machine.numa_nodes)


@dataclass(frozen=True)
class LaunchChange:
    """One change, after which everything fits."""

    what: str
    plan: MemoryPlan
    launch: Launch


def smaller_launches(
    launch: Launch, spec: ModelSpec, machine: Machine, workload: Workload, settings: RunSettings
) -> list[LaunchChange]:
    """More of the machine's equal GPUs, or fewer experts on them, that fit; the least of each."""
    found = []
    for candidates in (_on_more_gpus(launch, machine), _with_fewer_experts(launch)):
        for what, after in candidates:
            plan = after.plan(spec, workload, settings)
            if all(n_bytes <= 0 for n_bytes in plan.overrun_bytes(machine).values()):
                found.append(LaunchChange(what, plan, after))
                break
    return found


def _on_more_gpus(launch: Launch, machine: Machine) -> Iterator[tuple[str, Launch]]:
    before = len(launch.gpus)
    for gpus in _more_gpus(launch, machine):
        what = f"--tensor-parallel-size {len(gpus)} instead of {before}"
        yield what, replace(launch, gpus=gpus)


def _with_fewer_experts(launch: Launch) -> Iterator[tuple[str, Launch]]:
    before = launch.num_gpu_experts
    for count in range(before - 1, -1, -1):
        what = f"--kt-num-gpu-experts {count} instead of {before}"
        yield what, replace(launch, num_gpu_experts=count)


def _more_gpus(launch: Launch, machine: Machine) -> list[tuple[str, ...]]:
    """Powers of two more, as tensor parallelism wants them, of the same kind."""
    kind = machine.by_name.get(launch.gpus[0])
    alike = tuple(
        gpu.name
        for gpu in machine.gpus
        if kind and (gpu.model, gpu.memory_bytes) == (kind.model, kind.memory_bytes)
    )
    return [alike[:n] for n in (2, 4, 8) if len(launch.gpus) < n <= len(alike)]


def _refuse_unequal(machine: Machine, gpus: Sequence[str]) -> None:
    """Tensor parallelism gives every GPU the same share."""
    kinds = {
        (machine.by_name[gpu].model, machine.by_name[gpu].memory_bytes)
        for gpu in gpus
        if gpu in machine.by_name
    }
    if len(kinds) > 1:
        names = ", ".join(sorted(model for model, _ in kinds))
        raise AutoplaceError(f"{ENGINE} export: the GPUs must be equal, but they are {names}")


def _gpu_experts(assignment: Assignment, spec: ModelSpec) -> int:
    """Experts of each layer on GPUs: one number for all layers is all that the flag can say."""
    on_gpu = [
        entry.device != "cpu"
        for module in spec.of_role(Role.EXPERTS)
        if (entry := assignment.modules.get(module.path)) is not None
    ]
    if any(on_gpu) and not all(on_gpu):
        raise AutoplaceError(
            f"{ENGINE} export: --kt-num-gpu-experts is the same for every layer, but the experts "
            f"of {sum(on_gpu)} of {len(on_gpu)} layers are on GPUs"
        )
    return spec.geometry.moe.num_experts if spec.geometry.moe and all(on_gpu) else 0
