"""ModelSpec: the declarative list of a model's modules that everything else derives from."""

from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum
from functools import cached_property

from autoplace.architectures.geometry import Geometry
from autoplace.weights.ggml import TensorInfo


class Role(Enum):
    """What a module does; memory, time, the compiler and the torch model go by it."""

    ROOT = "root"
    MODEL = "model"
    CONTAINER = "container"
    """A module without weights that no rule needs to name: layer lists, layers, activations."""
    EMBEDDING = "embedding"
    ATTENTION = "attention"
    ROTARY = "rotary"
    ATTENTION_LINEAR = "attention_linear"
    """q, k, v, o, q_a, q_b, kv_a: every replaceable linear of the attention."""
    KV_B = "kv_b"
    """MLA's kv_b_proj: a linear that must stay plain, since absorption reads its weight."""
    NORM = "norm"
    MLP = "mlp"
    """The container of a dense MLP, a shared expert or a MoE block."""
    DENSE_LINEAR = "dense_linear"
    ROUTER = "router"
    EXPERTS = "experts"
    SHARED_LINEAR = "shared_linear"
    SHARED_GATE = "shared_gate"
    LM_HEAD = "lm_head"


@dataclass(frozen=True)
class Module:
    """One module of the Hugging Face tree, as rules see it."""

    path: str
    """`model.layers.3.mlp.experts`; the root is the empty string."""
    class_name: str
    """Import path of its own class, `torch.nn.Linear`."""
    role: Role
    layer: int | None = None
    tensors: tuple[str, ...] = ()
    """Names of its GGUF tensors, weight first; for experts gate, up, down."""
    is_moe: bool = False
    """On an MLP container: whether it is a MoE block."""


@dataclass(frozen=True)
class ModelSpec:
    """A model without its weights: modules in Hugging Face's traversal order, and tensors.

    The thousands of modules below a layer's routed experts are not listed; `rules.match` makes
    them when a rule file descends into them.
    """

    name: str
    geometry: Geometry
    modules: tuple[Module, ...]
    tensors: Mapping[str, TensorInfo]
    """Tensors that the modules use, by GGUF name."""
    fingerprint: str
    """Hash of geometry, tensor names, shapes, types: what studies and rule files are keyed by."""

    @cached_property
    def by_path(self) -> Mapping[str, Module]:
        return {module.path: module for module in self.modules}

    def of_role(self, role: Role, layer: int | None = None) -> tuple[Module, ...]:
        """Modules of a role, in order; of one layer if one is given."""
        if layer is None:
            return tuple(module for module in self.modules if module.role is role)
        return self._in_layers.get((role, layer), ())

    @cached_property
    def _in_layers(self) -> Mapping[tuple[Role, int], tuple[Module, ...]]:
        found: dict[tuple[Role, int], tuple[Module, ...]] = {}
        for module in self.modules:
            if module.layer is not None:
                key = (module.role, module.layer)
                found[key] = (*found.get(key, ()), module)
        return found

    @cached_property
    def moe_layers(self) -> tuple[int, ...]:
        return tuple(m.layer for m in self.of_role(Role.EXPERTS) if m.layer is not None)

    def tensor_infos(self, module: Module) -> tuple[TensorInfo, ...]:
        return tuple(self.tensors[name] for name in module.tensors)

    def n_bytes(self, module: Module) -> int:
        """Bytes of the module's tensors as they lie in the GGUF."""
        return sum(info.n_bytes for info in self.tensor_infos(module))
