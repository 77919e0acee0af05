"""A placement as the launch flags of kt-kernel in sglang: equal GPUs, the same split everywhere.

Source: kt-kernel's README (`--kt-method`, `--kt-weight-path`, `--kt-cpuinfer`,
`--kt-threadpool-count`, `--kt-num-gpu-experts`) and sglang's `--tensor-parallel-size`.
"""

from collections.abc import Sequence

from autoplace.architectures.spec import ModelSpec, Role
from autoplace.errors import AutoplaceError
from autoplace.hardware.machine import Machine
from autoplace.placement.assignment import Assignment
from autoplace.placement.settings import RunSettings

ENGINE = "sglang-kt"


def flags_of(
    assignment: Assignment,
    homes: Sequence[str],
    spec: ModelSpec,
    machine: Machine,
    settings: RunSettings,
) -> str:
    """The command line, with MODEL and GGUF for what only the user's machine knows.

    Raises `AutoplaceError` for what the flags cannot say.
    """
    gpus = sorted({home for home in homes if home != "cpu"})
    if "cpu" in homes or not gpus:
        raise AutoplaceError(f"{ENGINE} export: every layer must be on a GPU, its experts aside")
    _refuse_unequal(machine, gpus)
    num_experts = _gpu_experts(assignment, spec)
    words = [
        "python -m sglang.launch_server --model MODEL",
        f"--tensor-parallel-size {len(gpus)}",
        "--kt-method LLAMAFILE --kt-weight-path GGUF",
        f"--kt-cpuinfer {settings.num_threads}",
        f"--kt-threadpool-count {machine.numa_nodes}",
        f"--kt-num-gpu-experts {num_experts}",
    ]
    return " ".join(words)


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
