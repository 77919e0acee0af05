"""Loads a model: every module from the GGUF, by the operator and on the device that rules say."""

import logging

import torch
from torch import nn

from autoplace.architectures.spec import ModelSpec, Module, Role
from autoplace.engine.caches import attach_cache
from autoplace.engine.devices import Route, assigned_device, refuse_strays, route_of, why_no_graphs
from autoplace.engine.model import HybridModel
from autoplace.engine.one_token import use_kernels_for_one_token
from autoplace.engine.plain import make_plain
from autoplace.engine.threads import use_threads
from autoplace.engine.tree import build_tree
from autoplace.errors import AutoplaceError, did_you_mean
from autoplace.hardware.ledger import Ledger
from autoplace.hardware.machine import Machine
from autoplace.models.allocation import Allocator
from autoplace.models.out_of_memory import translated
from autoplace.models.place import HOST, Place, places_of
from autoplace.models.source import TensorSource
from autoplace.operators.base import OperatorContext
from autoplace.operators.marlin import GROUP
from autoplace.operators.registry import make_experts, make_linear
from autoplace.operators.wrappers import KTransformersExperts, KTransformersLinear
from autoplace.placement.assignment import Assignment, ModuleAssignment
from autoplace.placement.settings import CUDA_GRAPHS, RunSettings
from autoplace.placement.workspace import graph_bytes, workspace_bytes
from autoplace.weights.gguf_file import GGUFFile
from autoplace.workload import Workload

log = logging.getLogger(__name__)

DTYPES = {"bfloat16": torch.bfloat16, "float32": torch.float32}


class ModuleLoader:
    """Makes one module at a time, plain or with its operator, and declares what it takes."""

    def __init__(
        self,
        gguf: GGUFFile,
        spec: ModelSpec,
        assignment: Assignment,
        *,
        machine: Machine,
        allocator: Allocator,
        dtype: torch.dtype,
        interleave: bool = True,
    ) -> None:
        self._gguf = gguf
        self._spec = spec
        self._assignment = assignment
        self._places = places_of(machine)
        self._allocator = allocator
        self._dtype = dtype
        self._interleave = interleave
        self.route: Route = route_of(spec, assignment)
        refuse_strays(spec, assignment, self.route)
        self.no_graphs = why_no_graphs(spec, assignment, self.route)

    def make(self, module: Module) -> nn.Module:
        """The module with its weights. Raise `DeviceOutOfMemoryError` where they do not fit."""
        sources = tuple(TensorSource(self._gguf, self._spec.tensors[n]) for n in module.tensors)
        if not sources:
            context = self._context(module, HOST, 4)
            return make_plain(module, self._spec.geometry, context, ())
        assigned = self._assignment.modules.get(module.path)
        place = self.place(assigned_device(self._assignment, module))
        if assigned is None or assigned.operator is None:
            context = self._context(module, place, 4)
            return make_plain(module, self._spec.geometry, context, sources)
        return self._injected(module, assigned, place, sources)

    @property
    def layer_places(self) -> tuple[Place, ...]:
        """Where the activations of each layer are."""
        return tuple(self.place(device) for device in self.route.layers)

    def place(self, device: str) -> Place:
        if device not in self._places:
            raise AutoplaceError(
                f"the rules name {device}, which this machine does not have"
                + did_you_mean(device, self._places)
            )
        return self._places[device]

    def _injected(
        self,
        module: Module,
        assigned: ModuleAssignment,
        place: Place,
        sources: tuple[TensorSource, ...],
    ) -> nn.Module:
        assert assigned.operator is not None
        context = self._context(module, place, _num_bits(assigned))
        home = self.place(self.route.of(module))
        if module.role is Role.EXPERTS:
            experts = make_experts(assigned.operator, context, sources)
            return KTransformersExperts(experts, home)
        if module.role in (Role.KV_B, Role.EMBEDDING, Role.NORM):
            raise AutoplaceError(
                f"{module.path} cannot be replaced by {assigned.operator}: expected it to stay "
                "as it is (class default)"
            )
        return KTransformersLinear(make_linear(assigned.operator, context, sources), home)

    def _context(self, module: Module, place: Place, num_bits: int) -> OperatorContext:
        return OperatorContext(
            module.path, place, self._dtype, self._allocator, num_bits, self._interleave
        )


def _num_bits(assigned: ModuleAssignment) -> int:
    group = assigned.kwargs.get("group_size", GROUP)
    if group != GROUP:
        raise AutoplaceError(
            f"{assigned.path}: the builtin engine has groups of {GROUP}, but got group_size={group}"
        )
    num_bits = assigned.kwargs.get("num_bits", 4)
    if not isinstance(num_bits, int):
        raise AutoplaceError(f"{assigned.path}: expected num_bits 4 or 8 but got {num_bits!r}")
    return num_bits


def load_model(
    gguf: GGUFFile,
    spec: ModelSpec,
    assignment: Assignment,
    *,
    machine: Machine,
    ledger: Ledger,
    settings: RunSettings,
    workload: Workload,
    dtype: str = "bfloat16",
    cuda_graphs: str = "auto",
    interleave: str = "auto",
) -> HybridModel:
    """Build the model that the rules describe and declare every byte of it to the ledger.

    Weights first, in `spec.modules`' order, then the KV cache layer by layer, then the workspace:
    see `placement.workspace` for what is declared beside weights and cache. `cuda_graphs`: `auto`
    decodes by CUDA graphs on real GPUs where the placement lets it, `on` refuses to load elsewhere,
    `off` never does. `interleave`: `auto` copies CPU weights for faster kernels where the CPU gains
    by it, `off` reads them from the mapped file. Raise
    `DeviceOutOfMemoryError`, with everything given back, where a budget is too small, and
    `AutoplaceError` where the engine cannot run the assignment.
    """
    if dtype not in DTYPES:
        raise AutoplaceError(f"expected engine.dtype bfloat16 or float32 but got {dtype!r}")
    use_threads(settings.num_threads)
    _say_what_is_ignored(assignment)
    allocator = Allocator(ledger)
    try:
        loader = ModuleLoader(
            gguf,
            spec,
            assignment,
            machine=machine,
            allocator=allocator,
            dtype=DTYPES[dtype],
            interleave=interleave != "off",
        )
        by_graphs = _decodes_by_graphs(cuda_graphs, loader)
        with torch.inference_mode(), translated("loading"):
            root = build_tree(spec.modules, loader.make)
            _attach_caches(root, loader, allocator, settings, workload)
        _declare_workspace(spec, assignment, loader, allocator, settings, workload)
    except BaseException:
        allocator.close()
        raise
    for layer, place in enumerate(loader.layer_places):
        decoder = root.get_submodule(f"model.layers.{layer}")
        use_kernels_for_one_token(decoder, spec.geometry, place)
    model = HybridModel(
        root,
        spec.geometry,
        loader.layer_places,
        allocator=allocator,
        prefill_chunk=settings.prefill_chunk,
        context_tokens=workload.context_tokens,
        no_graphs=loader.no_graphs,
    )
    if by_graphs:
        _use_graphs(model)
    return model


def _use_graphs(model: HybridModel) -> None:
    try:
        with translated("what CUDA graphs read"):
            model.use_graphs()
    except BaseException:
        model.close()
        raise


def _decodes_by_graphs(cuda_graphs: str, loader: ModuleLoader) -> bool:
    """Raise `AutoplaceError` where graphs are asked for and cannot be."""
    if cuda_graphs not in CUDA_GRAPHS:
        raise AutoplaceError(
            f"expected engine.cuda_graphs {', '.join(CUDA_GRAPHS)} but got {cuda_graphs!r}"
        )
    emulated = [p.name for p in loader.layer_places if p.is_gpu and p.runs_on_host]
    reason = loader.no_graphs or (f"{emulated[0]} is emulated" if emulated else None)
    if reason is not None and cuda_graphs == "on":
        raise AutoplaceError(f"engine.cuda_graphs=on cannot be: {reason}")
    if reason is not None and cuda_graphs == "auto":
        log.info("decoding without CUDA graphs: %s", reason)
    return reason is None and cuda_graphs != "off"


def _attach_caches(
    root: nn.Module,
    loader: ModuleLoader,
    allocator: Allocator,
    settings: RunSettings,
    workload: Workload,
) -> None:
    for layer, device in enumerate(loader.route.layers):
        attach_cache(
            root.get_submodule(f"model.layers.{layer}"),
            loader.place(device),
            allocator,
            context=workload.context_tokens,
            kv_type=settings.kv_type,
            what=f"the KV cache of layer {layer}",
        )


def _declare_workspace(
    spec: ModelSpec,
    assignment: Assignment,
    loader: ModuleLoader,
    allocator: Allocator,
    settings: RunSettings,
    workload: Workload,
) -> None:
    n_bytes = workspace_bytes(
        spec.geometry,
        prefill_chunk=settings.prefill_chunk,
        context_tokens=workload.context_tokens,
    )
    devices = {assigned_device(assignment, m) for m in spec.modules if m.tensors}
    graphs = graph_bytes(spec.geometry, context_tokens=workload.context_tokens)
    for device in sorted(devices | {HOST.name}):
        place = loader.place(device)
        allocator.declare(place, n_bytes, kind="workspace", what="the workspace")
        if place.is_gpu:
            allocator.declare(place, graphs, kind="workspace", what="room for CUDA graphs")


def _say_what_is_ignored(assignment: Assignment) -> None:
    ignored = {
        key
        for module in assignment.modules.values()
        for key in module.kwargs
        if str(key).startswith("prefill_")
    }
    if ignored:
        log.info(
            "builtin prefills with the decode operators: %s are ignored",
            ", ".join(sorted(map(str, ignored))),
        )
