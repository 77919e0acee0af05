"""Which of a family's own modules KTransformers replaces, and by what.

Source: the rule files that KTransformers 0.2.1.post1 and 0.3 ship, and its operators' classes.
"""

from collections.abc import Mapping
from dataclasses import dataclass

from autoplace.architectures.spec import ModelSpec, Module, Role
from autoplace.catalog.classes import is_instance

_OPERATORS = "ktransformers.operators"


@dataclass(frozen=True)
class Injection:
    """One replacement: modules of a class become another."""

    match_class: str | None
    replace_class: str
    moe_only: bool = False

    def covers(self, module: Module) -> bool:
        """Whether it is meant for this module: of the MLPs only MoE blocks are."""
        if self.match_class is not None and not is_instance(module.class_name, self.match_class):
            return False
        return module.is_moe or not self.moe_only


@dataclass(frozen=True)
class Family:
    """Class names of a family: its own below `ktransformers.models`, ours below `operators`."""

    package: str
    rotary: tuple[str, str] = ("", "")
    plain_rotary: tuple[str, str] = ("", "")
    """Where the model has no YaRN."""
    moe: tuple[str, str] = ("", "")
    router: tuple[str, str] = ("", "")
    attention: str = ""
    model: str = ""
    """Empty where KTransformers has no class that moves activations between devices."""

    experts: str = "KTransformersExperts"
    norm: tuple[str, str] = ("", "")
    """Where the engine calls the norms with more than activations."""

    can_split: bool = False
    """Whether it has rules that move activations between GPUs, outside the server."""
    in_chat: bool = True
    """Whether it has rules outside the server at all."""
    server_engines: tuple[str, ...] = ()
    """Versions whose server (balance_serve, one GPU) has rules for a family that is not in chat."""

    def path(self, name: str) -> str:
        """Of one of the family's classes; Qwen3's attention borrows one of Qwen2's."""
        package = "modeling_qwen2_moe" if name.startswith("Qwen2Moe") else self.package
        return f"ktransformers.models.{package}.{name}"


_V2 = Family(
    "modeling_deepseek",
    rotary=("DeepseekV2YarnRotaryEmbedding", "YarnRotaryEmbedding"),
    plain_rotary=("DeepseekV2RotaryEmbedding", "RotaryEmbedding"),
    moe=("DeepseekV2MoE", "KDeepseekV2MoE"),
    attention="KDeepseekV2Attention",
    model="KDeepseekV2Model",
    can_split=True,
)
_V3 = Family(
    "modeling_deepseek_v3",
    rotary=("DeepseekV3RotaryEmbedding", "YarnRotaryEmbeddingV3"),
    plain_rotary=("DeepseekV3RotaryEmbedding", "RotaryEmbeddingV3"),
    moe=("DeepseekV3MoE", "KDeepseekV3MoE"),
    router=("MoEGate", "KMoEGate"),
    attention="KDeepseekV2Attention",
    model="KDeepseekV2Model",
    can_split=True,
)
_QWEN2_MOE = Family(
    "modeling_qwen2_moe",
    plain_rotary=("Qwen2MoeRotaryEmbedding", "RotaryEmbedding"),
    moe=("Qwen2MoeSparseMoeBlock", "KQwen2MoeSparseMoeBlock"),
    model="KQwen2MoeModel",
    can_split=True,
)
_QWEN3_MOE = Family(
    "modeling_qwen3_moe",
    plain_rotary=("Qwen2MoeRotaryEmbedding", "RotaryEmbedding"),
    moe=("Qwen3MoeSparseMoeBlock", "KQwen3MoeSparseMoeBlockV2"),
    norm=("Qwen3MoeRMSNorm", "KQwen3MoeRMSNorm"),
    attention="KQwen3MoeAttention",
    experts="KTransformersExpertsV2",
    model="KQwen2MoeModel",
    in_chat=False,
    server_engines=("ktransformers-0.3", "ktransformers-0.3.2"),
)
"""Its attention has Qwen2's rotary embedding (Qwen3Moe-serve.yaml)."""
_MIXTRAL = Family(
    "modeling_mixtral",
    plain_rotary=("MixtralRotaryEmbedding", "RotaryEmbedding"),
    moe=("MixtralSparseMoeBlock", "KMistralSparseMoEBlock"),
)
_LLAMA = Family("modeling_llama", model="KLlamaModel", in_chat=False)

_FAMILIES: Mapping[str, Family] = {
    "DeepseekV2Model": _V2,
    "DeepseekV3Model": _V3,
    "Qwen2MoeModel": _QWEN2_MOE,
    "Qwen3MoeModel": _QWEN3_MOE,
    "MixtralModel": _MIXTRAL,
    "LlamaModel": _LLAMA,
    "Glm4MoeModel": Family("modeling_glm4_moe", in_chat=False),
    "GptOssModel": Family("modeling_gpt_oss", in_chat=False),
    "MiniMaxM2Model": Family("modeling_minimax_m2", in_chat=False),
}


def family_of(spec: ModelSpec) -> Family:
    """The family, known by the class of the module `model`."""
    return _FAMILIES[spec.by_path["model"].class_name.rpartition(".")[2]]


def is_served(spec: ModelSpec, *, engine: str) -> bool:
    """Whether KTransformers runs the model by its server only: one GPU, experts on the CPU.

    The server calls every linear and norm with the size of the batch, so none may stay plain.
    """
    return engine in family_of(spec).server_engines


def experts_class(spec: ModelSpec, *, engine: str) -> str:
    """The wrapper of routed experts."""
    name = family_of(spec).experts if is_served(spec, engine=engine) else "KTransformersExperts"
    return f"{_OPERATORS}.experts.{name}"


def injections(spec: ModelSpec, *, engine: str) -> Mapping[Role, Injection]:
    """Replacements by role. Roles without one stay as they are, as does the router of V2."""
    family = family_of(spec)
    if family.server_engines and not is_served(spec, engine=engine):
        return _model_alone(family, engine)
    has_yarn = spec.geometry.rope.yarn_factor != 1.0
    pairs = {
        Role.ROTARY: ("RoPE", *(family.rotary if has_yarn else family.plain_rotary)),
        Role.MLP: ("experts", *family.moe),
        Role.ROUTER: ("gate", *family.router),
        Role.NORM: ("layernorm", *family.norm),
    }
    found = {
        role: Injection(family.path(theirs), f"{_OPERATORS}.{module}.{ours}", role is Role.MLP)
        for role, (module, theirs, ours) in pairs.items()
        if ours
    }
    if family.attention:
        module = "balance_serve_attention" if family.server_engines else "attention"
        found[Role.ATTENTION] = Injection(None, f"{_OPERATORS}.{module}.{family.attention}")
    return {**found, **_model_alone(family, engine)}


def _model_alone(family: Family, engine: str) -> Mapping[Role, Injection]:
    model = family.model or ("KLlamaModel" if engine == "builtin" else "")
    return {Role.MODEL: Injection(None, f"{_OPERATORS}.models.{model}")} if model else {}
