"""The smallest changes with which a placement that does not fit would, each with its bytes."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace

from autoplace.architectures.spec import Module, Role
from autoplace.placement.memory import MemoryPlan
from autoplace.placement.resplit import resplit
from autoplace.placement.situation import HOST, Situation, reassigned
from autoplace.units import format_bytes

_LINEARS = (Role.ATTENTION_LINEAR, Role.DENSE_LINEAR, Role.SHARED_LINEAR, Role.LM_HEAD)
_MOST = 3
_EXPERTS = "ktransformers.operators.experts.KTransformersExperts"


@dataclass(frozen=True)
class Change:
    """One change, after which everything fits."""

    what: str
    after: Situation
    changes_rules: bool = True
    """Whether a rule file can say it; a shorter context is for the launch line."""

    @property
    def plan(self) -> MemoryPlan:
        """The bytes after the change."""
        return self.after.plan


def smallest_changes(situation: Situation) -> list[Change]:
    """Up to three changes that fit, each by itself; else of two together; else none."""
    found = [change for make in _SINGLE for change in make(situation) if _fits(change.after)]
    if not found:
        found = [change for change in _pairs(situation) if _fits(change.after)]
    return found[:_MOST]


def _fits(situation: Situation) -> bool:
    return not situation.over


def _pairs(situation: Situation) -> Iterator[Change]:
    """Two changes after each other, where one is not enough."""
    for first in _SINGLE:
        for change in first(situation, even_if_not_enough=True):
            for second in _SINGLE:
                for then in second(change.after) if second is not first else ():
                    what = f"{change.what}; and {then.what}"
                    rules = change.changes_rules or then.changes_rules
                    yield Change(what, then.after, rules)


def _lm_head_by_torch(
    situation: Situation, *, even_if_not_enough: bool = False
) -> Iterator[Change]:
    """Packing lm_head takes 14 B a weight for a moment; plain bf16 takes 2 for good."""
    (lm_head,) = situation.spec.of_role(Role.LM_HEAD)
    entry = situation.entry(lm_head)
    if entry is None or entry.operator != "KLinearMarlin" or entry.device not in situation.over:
        return
    memory = situation.plan.by_device[entry.device]
    if memory.load_peak <= memory.standing:
        return
    after = situation.with_modules(
        [lm_head],
        lambda old: reassigned(old, device=old.device, operator="KLinearTorch", home=old.device),
    )
    yield Change(
        f"KLinearTorch for lm_head, whose packing takes {format_bytes(memory.load_peak)} "
        f"on {entry.device} while it loads",
        after,
    )


def _marlin_experts(situation: Situation, *, even_if_not_enough: bool = False) -> Iterator[Change]:
    """The operator is the cause: bf16 experts take nearly four times Marlin's bytes."""
    layers = [
        layer
        for layer in situation.expert_layers_on(situation.over_gpus)
        if _operator(situation, layer) == "KExpertsTorch" and _can_be_marlin(situation, layer)
    ]
    after = experts_as(situation, layers, "KExpertsMarlin")
    if layers and (even_if_not_enough or _fits(after)):
        saved = situation.bytes_as(situation.experts[layers[0]], "KExpertsTorch")
        takes = situation.bytes_as(situation.experts[layers[0]], "KExpertsMarlin")
        yield Change(
            f"KExpertsMarlin instead of KExpertsTorch for {layers_text(layers)}: "
            f"{takes:,} B a layer instead of {saved:,} B",
            after,
        )


def _operator(situation: Situation, layer: int) -> str | None:
    entry = situation.entry(situation.experts[layer])
    return entry.operator if entry else None


def _can_be_marlin(situation: Situation, layer: int) -> bool:
    module = situation.experts[layer]
    types = {info.ggml_type for info in situation.spec.tensor_infos(module)}
    entry = situation.entry(module)
    device = situation.homes[layer] if entry is None or entry.device == HOST else entry.device
    return (
        not situation.experts_on_host_only
        and "KExpertsMarlin" in situation.engine.gpu_experts
        and types <= situation.engine.gpu_expert_types
        and situation.can_run("KExpertsMarlin", device)
    )


def experts_as(situation: Situation, layers: Sequence[int], operator: str) -> Situation:
    """Experts of layers where they are (or at home, where on the host), by another operator."""
    homes = {situation.experts[layer].path: situation.homes[layer] for layer in layers}
    modules = [situation.experts[layer] for layer in layers]

    def change_to(device_of: Callable[[str, str], str]) -> Situation:
        return situation.with_modules(
            modules,
            lambda old: reassigned(
                old,
                device=device_of(old.device, homes[old.path]),
                operator=operator,
                home=homes[old.path],
                class_name=old.class_name if old.operator else _EXPERTS,
            ),
        )

    if operator == "KExpertsCPU":
        return change_to(lambda device, home: HOST)
    return change_to(lambda device, home: home if device == HOST else device)


def _experts_to_host(situation: Situation, *, even_if_not_enough: bool = False) -> Iterator[Change]:
    """Of each GPU that is too small as few layers as needed, those that take least on the host."""
    chosen: list[int] = []
    for gpu in situation.over_gpus:
        chosen += _fewest(situation, gpu, chosen)
    if not chosen:
        return
    after = experts_as(situation, chosen, "KExpertsCPU")
    if even_if_not_enough or _fits(after):
        host = sum(situation.spec.n_bytes(situation.experts[layer]) for layer in chosen)
        yield Change(f"experts of {layers_text(chosen)} to the CPU ({host:,} B there)", after)


def _fewest(situation: Situation, gpu: str, already: Sequence[int]) -> list[int]:
    """The fewest layers whose experts have to leave a GPU; all of them where that is too few."""
    layers = situation.expert_layers_on([gpu])
    layers.sort(key=lambda layer: (situation.spec.n_bytes(situation.experts[layer]), -layer))
    if not layers:
        return []
    each = situation.bytes_as(
        situation.experts[layers[0]], _operator(situation, layers[0]) or "KExpertsTorch"
    )
    count = min(len(layers), max(1, -(-situation.over[gpu] // each)))
    while count < len(layers):
        after = experts_as(situation, [*already, *layers[:count]], "KExpertsCPU")
        if gpu not in after.over:
            break
        count += 1
    return layers[:count]


def _experts_to_gpus(situation: Situation, *, even_if_not_enough: bool = False) -> Iterator[Change]:
    """The host is too small: as few layers as needed move up, those that free most first."""
    if HOST not in situation.over:
        return
    moved = fill_gpus(situation, until_host_fits=True)
    if not moved:
        return
    after = experts_as(situation, moved, "KExpertsMarlin")
    if even_if_not_enough or _fits(after):
        graphs = situation.engine.gpu_experts_disable_cuda_graph
        cost = ", which turns CUDA graphs off" if graphs else ""
        yield Change(
            f"experts of {layers_text(moved)} to their GPUs by KExpertsMarlin{cost}", after
        )


def fill_gpus(situation: Situation, *, until_host_fits: bool = False) -> list[int]:
    """Layers whose experts can leave the host for the GPUs of their layers, by Marlin."""
    room = {gpu.name: situation.room(gpu.name) for gpu in situation.machine.gpus}
    lacking = situation.over.get(HOST, 0)
    layers = [
        layer for layer in situation.expert_layers_on([HOST]) if _can_be_marlin(situation, layer)
    ]
    layers.sort(key=lambda layer: (-situation.spec.n_bytes(situation.experts[layer]), layer))
    moved = []
    for layer in layers:
        takes = situation.bytes_as(situation.experts[layer], "KExpertsMarlin")
        gpu = situation.homes[layer]
        if until_host_fits and lacking <= 0:
            break
        if room.get(gpu, 0) >= takes:
            room[gpu] -= takes
            lacking -= situation.numa_copies * situation.spec.n_bytes(situation.experts[layer])
            moved.append(layer)
    return sorted(moved)


def _other_split(situation: Situation, *, even_if_not_enough: bool = False) -> Iterator[Change]:
    """Whole layers to GPUs that have room; the order of the GPUs stays."""
    if not situation.over_gpus:
        return
    after = resplit(situation)
    if after is not None and (even_if_not_enough or _fits(after)):
        runs = ", ".join(
            f"{layers_text(_layers_on(after, device))} on {device}"
            for device in dict.fromkeys(after.homes)
        )
        yield Change(f"another split of the layers: {runs}", after)


def _layers_on(situation: Situation, device: str) -> list[int]:
    return [layer for layer, home in enumerate(situation.homes) if home == device]


def _marlin_linears(situation: Situation, *, even_if_not_enough: bool = False) -> Iterator[Change]:
    """Linears that stay plain, or are held by Torch, on GPUs that are too small."""
    modules = [
        module
        for module in situation.spec.modules
        if module.role in _LINEARS and _is_torch_linear(situation, module)
    ]
    homes = {m.path: situation.homes[m.layer if m.layer is not None else -1] for m in modules}
    after = situation.with_modules(
        modules,
        lambda old: reassigned(
            old,
            device=old.device,
            operator="KLinearMarlin",
            home=homes[old.path],
            class_name="ktransformers.operators.linear.KTransformersLinear",
        ),
    )
    if modules and (even_if_not_enough or _fits(after)):
        yield Change(f"KLinearMarlin for {len(modules)} plain linears", after)


def _is_torch_linear(situation: Situation, module: Module) -> bool:
    entry = situation.entry(module)
    if entry is None or entry.device not in situation.over_gpus:
        return False
    return entry.operator in (None, "KLinearTorch") and situation.can_run(
        "KLinearMarlin", entry.device
    )


def _shorter_context(situation: Situation, *, even_if_not_enough: bool = False) -> Iterator[Change]:
    """The longest context that fits, where the cache is what is too large."""
    low, high = 0, situation.workload.context_tokens // 64
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (
            (middle, high) if _fits(_with_context(situation, 64 * middle)) else (low, middle)
        )
    if low:
        yield Change(
            f"a context of {64 * low} tokens instead of {situation.workload.context_tokens}",
            _with_context(situation, 64 * low),
            changes_rules=False,
        )


def _with_context(situation: Situation, tokens: int) -> Situation:
    workload = situation.workload
    prompt = min(workload.prompt_tokens, max(1, tokens - workload.output_tokens))
    return replace(
        situation,
        workload=replace(workload, prompt_tokens=prompt, context_tokens=tokens),
    )


def _one_copy(situation: Situation, *, even_if_not_enough: bool = False) -> Iterator[Change]:
    """A build without USE_NUMA=1 maps the file once."""
    if situation.numa_copies > 1 and HOST in situation.over:
        yield Change(
            "a build without USE_NUMA=1: the experts once instead of "
            f"{situation.numa_copies} times on the host",
            replace(situation, numa_copies=1),
            changes_rules=False,
        )


def layers_text(layers: Sequence[int]) -> str:
    """`layers 30-59`."""
    runs: list[list[int]] = []
    for layer in sorted(layers):
        if runs and layer == runs[-1][1] + 1:
            runs[-1][1] = layer
        else:
            runs.append([layer, layer])
    shown = ", ".join(str(a) if a == b else f"{a}-{b}" for a, b in runs)
    return f"layer{'s' if len(layers) > 1 else ''} {shown}"


_SINGLE = (
    _lm_head_by_torch,
    _marlin_experts,
    _experts_to_host,
    _other_split,
    _experts_to_gpus,
    _one_copy,
    _shorter_context,
    _marlin_linears,
)
