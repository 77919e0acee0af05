"""Facts about the engine and the file that decide the answer before any placement does."""

from collections.abc import Iterator
from dataclasses import replace

from autoplace.placement.remedies import experts_as, fill_gpus
from autoplace.placement.situation import HOST, Situation
from autoplace.units import format_bytes


def facts(situation: Situation) -> list[str]:
    """What to say first, one sentence each."""
    return [*_graphs(situation), *_no_split(situation), *_host(situation)]


def _graphs(situation: Situation) -> Iterator[str]:
    plain = set(situation.plain_experts)
    held = situation.expert_layers_on(gpu.name for gpu in situation.machine.gpus)
    on_gpu = [layer for layer in held if layer not in plain]
    if on_gpu and situation.engine.gpu_experts_disable_cuda_graph:
        yield (
            f"any expert on a GPU turns CUDA graphs off in {situation.engine.name}: "
            f"0 expert layers on GPUs decode faster than {len(on_gpu)}"
        )


def _no_split(situation: Situation) -> Iterator[str]:
    """The operator is the cause, not the split: all experts by it are more than all the GPUs.

    Of experts that no rule replaces the findings say more.
    """
    layers = situation.expert_layers_on(situation.over_gpus)
    operators = {
        entry.operator
        for layer in layers
        if (entry := situation.entry(situation.experts[layer])) is not None
    }
    for operator in sorted(operator for operator in operators if operator):
        total = sum(situation.bytes_as(module, operator) for module in situation.experts.values())
        gpus = situation.machine.gpus
        have = sum(gpu.memory_bytes for gpu in gpus)
        if total > have:
            name = "bf16 (KExpertsTorch)" if operator == "KExpertsTorch" else operator
            yield (
                f"no split of this rule fits: all experts in {name} are {total:,} B, more than the "
                f"{len(gpus)} GPU{'s' if len(gpus) > 1 else ''} together ({have:,} B): "
                "the operator is the cause, not the split"
            )


def _host(situation: Situation) -> Iterator[str]:
    if HOST not in situation.over:
        return
    host = situation.plan.by_device[HOST]
    budget = situation.plan.budget_bytes(situation.machine, HOST)
    layers = situation.expert_layers_on([HOST])
    experts = sum(situation.spec.n_bytes(situation.experts[layer]) for layer in layers)
    copies = f" × {situation.numa_copies} NUMA copies" if situation.numa_copies > 1 else ""
    used = [_used(situation, gpu.name) for gpu in situation.machine.gpus]
    most = max(used, default=1.0)
    empty = ""
    if most < 0.6:
        how = "are nearly empty" if most < 0.35 else "have room"
        empty = f", while the GPUs {how} ({most:.0%} used at most)"
    yield (
        f"host memory is what is short: {host.peak:,} B ({experts:,} B of experts{copies}) of "
        f"{budget:,} B{empty}"
    )
    yield from _no_placement(situation)


def _used(situation: Situation, gpu: str) -> float:
    memory = situation.plan.by_device.get(gpu)
    return (memory.peak if memory else 0) / max(1, situation.machine.by_name[gpu].memory_bytes)


def _no_placement(situation: Situation) -> Iterator[str]:
    """Whether any placement of the file fits, with the GPUs as full of Marlin experts as can be."""
    on_gpu = situation.expert_layers_on(gpu.name for gpu in situation.machine.gpus)
    base = replace(experts_as(situation, on_gpu, "KExpertsCPU"), numa_copies=1)
    sizes = [base.spec.n_bytes(module) for module in base.experts.values()]
    if not sizes or HOST not in base.over or _pooled(base) >= base.over[HOST]:
        return
    up = fill_gpus(base)
    rest = [layer for layer in base.experts if layer not in up]
    left = sum(base.spec.n_bytes(base.experts[layer]) for layer in rest)
    budget = base.plan.budget_bytes(base.machine, HOST)
    other = base.plan.by_device[HOST].peak - sum(sizes)
    weights = sum(
        info.n_elements for layer in rest for info in base.spec.tensor_infos(base.experts[layer])
    )
    bits = int(10 * 8 * (budget - other) / weights) / 10
    text = (
        f"no placement of this file fits this machine: with Marlin experts of {len(up)} layers on "
        f"the GPUs, those of {len(rest)} stay on the host and take {left:,} B"
    )
    would = f"; experts of at most {bits} bits would" if bits >= 1 else ""
    yield f"{text} of {format_bytes(budget)}{would}"


def _pooled(base: Situation) -> int:
    """Host bytes freed if the GPUs' room were one: no placement frees more."""
    first = next(iter(base.experts.values()))
    if "KExpertsMarlin" not in base.engine.gpu_experts:
        return 0
    room = sum(max(0, base.room(gpu.name)) for gpu in base.machine.gpus)
    count = room // base.bytes_as(first, "KExpertsMarlin")
    largest = sorted((base.spec.n_bytes(module) for module in base.experts.values()), reverse=True)
    return sum(largest[:count])
