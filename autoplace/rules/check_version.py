"""Checks: what the engine's version can load, from which types, and what that costs."""

from collections import defaultdict
from collections.abc import Sequence

from autoplace.architectures.spec import Module, Role
from autoplace.catalog.engines import ENGINES
from autoplace.catalog.operators import OPERATORS
from autoplace.placement.assignment import ModuleAssignment
from autoplace.rules.check_operators import wrapped
from autoplace.rules.families import family_of, is_served
from autoplace.rules.finding import Severity
from autoplace.rules.subject import Subject, layers_of
from autoplace.weights.ggml import GGMLType

ERROR, WARNING, ADVICE = Severity.ERROR, Severity.WARNING, Severity.ADVICE
_GPU_TYPES = ENGINES["ktransformers-0.3"].gpu_expert_types
"""What KTransformers dequantises on a GPU, linears and experts alike (rules §2)."""
_NO_CPU_KERNEL = frozenset({GGMLType.MXFP4})
"""Newer than KTransformers' CPU kernels."""
_BUGS = {
    "ktransformers-0.2.1": "KExpertsTorch cannot load in this version (a bug)",
    "ktransformers-0.3.2": "its constructor fails in 0.3.1 and 0.3.2 (KeyError, TypeError)",
}
_AMX = ("AMXBF16", "AMXInt8")
_BACKENDS = ("llamafile", *_AMX)


def _check_gpu_experts(subject: Subject) -> None:
    """Which experts the version loads on a GPU, and what they cost."""
    profile = ENGINES[subject.assignment.engine]
    on_gpu = []
    for module, entry, kind in wrapped(subject):
        if kind != "experts" or entry.device == "cpu" or entry.operator == "KExpertsCPU":
            continue
        if entry.operator in profile.gpu_experts:
            on_gpu.append((module, entry))
            continue
        loads = " or ".join((*profile.gpu_experts, "KExpertsCPU"))
        subject.report_at(
            module,
            entry,
            ERROR,
            "engine",
            f"{entry.operator} cannot load on a GPU in {profile.name}",
            effect=_BUGS.get(profile.name, "loading stops"),
            remedy=f"use {loads}",
        )
    if on_gpu and profile.gpu_experts_disable_cuda_graph:
        layers = sorted(layers_of([module for module, _ in on_gpu]))
        first = subject.spec.moe_layers[0]
        subject.report(
            ADVICE,
            "cuda-graph",
            f"experts on a GPU need CUDA graphs off for the whole model "
            f"(layer {first} is the model's first expert layer)",
            layers=layers,
            rules=[entry.rule for _, entry in on_gpu],
            effect="with graphs on, decoding stops with 'operation not permitted when stream is "
            "capturing'; without, every layer is launched by itself, so 0 expert layers on GPUs "
            f"decode faster than {len(layers)}",
            remedy="launch with --use_cuda_graph False, or put all experts on the CPU",
        )


def _check_host_linears(subject: Subject) -> None:
    for module, entry, kind in wrapped(subject):
        waits = kind == "linear" and entry.device == "cpu" and entry.operator == "KLinearTorch"
        if waits and subject.is_ktransformers:
            subject.report_at(
                module,
                entry,
                ADVICE,
                "cuda-graph",
                "KLinearTorch on the cpu needs CUDA graphs off for the whole model",
                effect="it waits for the host inside the graph",
                remedy="use KLinearCPUInfer there, or launch with --use_cuda_graph False",
            )


def _check_types(subject: Subject) -> None:
    """The file's types against what makes weights out of them."""
    wrong: dict[tuple[Role, str | None], list[_WrongType]] = defaultdict(list)
    for module, entry in subject.entries():
        found = {info.ggml_type for info in subject.spec.tensor_infos(module)}
        if not found:
            continue
        operator = OPERATORS.get(entry.operator or "")
        keeps = operator is not None and operator.keeps_blocks
        if subject.is_ktransformers:
            bad = found & _NO_CPU_KERNEL if keeps else found - _GPU_TYPES
        else:
            bad = found - operator.ggml_types if operator is not None else set()
        if bad and not (entry.device == "cpu" and not keeps):
            wrong[module.role, entry.operator].append((module, entry, frozenset(bad)))
    for (role, operator_name), found_wrong in wrong.items():
        _report_types(subject, role, operator_name, found_wrong)


_WrongType = tuple[Module, ModuleAssignment, frozenset[GGMLType]]


def _report_types(
    subject: Subject, role: Role, operator: str | None, wrong: Sequence[_WrongType]
) -> None:
    what = "routed experts" if role is Role.EXPERTS else "weights"
    names = ", ".join(sorted({kind.name for _, _, bad in wrong for kind in bad}))
    what += f" for {operator}" if operator else ""
    remedy = "leave them to KExpertsCPU" if role is Role.EXPERTS else "use another file"
    subject.report(
        ERROR,
        "type",
        f"{subject.assignment.engine} cannot make {what} from {names}",
        layers=layers_of([module for module, _, _ in wrong]),
        rules=[entry.rule for _, entry, _ in wrong],
        effect="loading stops with NotImplementedError: it cannot dequantise that type there",
        remedy=remedy,
    )


def _check_backend(subject: Subject) -> None:
    """AMX backends re-pack BF16 weights; nothing else."""
    experts = [
        (module, entry)
        for module, entry, kind in wrapped(subject)
        if kind == "experts" and subject.is_ktransformers
    ]
    types = [{i.ggml_type for i in subject.spec.tensor_infos(module)} for module, _ in experts]
    names = ", ".join(sorted({found.name for of_layer in types for found in of_layer}))
    for (module, entry), found in zip(experts, types, strict=True):
        backend = entry.kwargs.get("backend", "llamafile")
        if backend not in _BACKENDS:
            message = f"there is no backend {backend!r}; there are {', '.join(_BACKENDS)}"
        elif backend in _AMX and found != {GGMLType.BF16}:
            message = f"backend {backend} needs BF16 experts, but the file has {names}"
        else:
            continue
        subject.report_at(
            module,
            entry,
            ERROR,
            "backend",
            message,
            effect="an assertion stops the loading",
            remedy="write backend: llamafile, or leave it out",
        )


def _check_marlin_sizes(subject: Subject) -> None:
    """Up to 0.2.1, Marlin falls back to Torch silently where 64 does not divide a dimension."""
    if subject.assignment.engine != "ktransformers-0.2.1":
        return
    for module, entry, _ in wrapped(subject):
        shape = subject.spec.tensor_infos(module)[0].shape if module.tensors else ()
        if entry.operator == "KLinearMarlin" and any(size % 64 for size in shape):
            subject.report_at(
                module,
                entry,
                ADVICE,
                "marlin-falls-back",
                f"a dimension of {shape} is no multiple of 64, so KLinearMarlin becomes Torch",
                effect="it takes 2 B a weight instead of 0.56",
                remedy="write KLinearTorch, or use 0.2.2 and later, which pad",
            )


def _check_family(subject: Subject) -> None:
    """Families that only the server has rules for."""
    engine = subject.assignment.engine
    family = family_of(subject.spec)
    if not subject.is_ktransformers or family.in_chat or is_served(subject.spec, engine=engine):
        return
    others = ", ".join((*family.server_engines, "builtin", "llama.cpp"))
    subject.report(
        ERROR,
        "family",
        f"{engine} has no rules for {subject.spec.geometry.architecture}",
        effect="it builds no such model",
        remedy=f"check it for {others} or sglang-kt",
    )


def _check_replaced_gates(subject: Subject) -> None:
    """A shared expert's gate has one output: Marlin pads it to 64 and needs none of that."""
    for module, entry, _ in wrapped(subject):
        if module.role is Role.SHARED_GATE and entry.operator == "KLinearMarlin":
            subject.report_at(
                module,
                entry,
                ADVICE,
                "gate-marlin",
                "shared_expert_gate has one output row, which Marlin pads to 64",
                remedy="exclude it, as KTransformers' own later rules do",
            )


CHECKS = (
    _check_family,
    _check_gpu_experts,
    _check_host_linears,
    _check_types,
    _check_backend,
    _check_marlin_sizes,
    _check_replaced_gates,
)
