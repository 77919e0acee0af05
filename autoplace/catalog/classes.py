"""Class names that rules may match and inject, with bases and aliases; nothing is ever imported.

Source: the class statements of torch, of KTransformers 0.2.1.post1's `models/*.py` and
`operators/*.py`, and of 0.3's `modeling_qwen3_moe.py`.
"""

from collections.abc import Iterator, Mapping
from functools import cache

MODULE = "torch.nn.Module"
_MODELS = "ktransformers.models"

ALIASES: Mapping[str, str] = {
    "torch.nn.modules.module.Module": MODULE,
    "torch.nn.modules.linear.Linear": "torch.nn.Linear",
    "torch.nn.modules.sparse.Embedding": "torch.nn.Embedding",
    "torch.nn.modules.container.ModuleList": "torch.nn.ModuleList",
    "torch.nn.modules.activation.SiLU": "torch.nn.SiLU",
}
"""Where torch defines a class → the name by which rules call it."""

_FAMILY_CLASSES: Mapping[str, tuple[str, str]] = {
    # python module: (prefix, the classes that no other class of the family is the base of)
    "modeling_deepseek": ("DeepseekV2", "RMSNorm MLP MoE Attention DecoderLayer"),
    "modeling_deepseek_v3": ("DeepseekV3", "RMSNorm MLP MoE Attention DecoderLayer"),
    "modeling_llama": ("Llama", "RMSNorm MLP Attention DecoderLayer"),
    "modeling_mixtral": (
        "Mixtral",
        "RMSNorm BlockSparseTop2MLP SparseMoeBlock Attention DecoderLayer",
    ),
    "modeling_qwen2_moe": ("Qwen2Moe", "RMSNorm MLP SparseMoeBlock Attention DecoderLayer"),
    "modeling_qwen3_moe": ("Qwen3Moe", "RMSNorm MLP SparseMoeBlock Attention DecoderLayer"),
    "modeling_glm4_moe": ("Glm4Moe", "RMSNorm MLP MoE TopkRouter Attention DecoderLayer"),
    "transformers.models.gpt_oss.modeling_gpt_oss": (
        "GptOss",
        "RMSNorm MLP TopKRouter Experts Attention DecoderLayer",
    ),
    "transformers.models.minimax_m2.modeling_minimax_m2": (
        "MiniMaxM2",
        "RMSNorm MLP SparseMoeBlock TopKRouter Attention DecoderLayer",
    ),
}
_ROTARY_SUBCLASSES: Mapping[str, tuple[str, ...]] = {
    "modeling_deepseek": ("LinearScaling", "DynamicNTKScaling", "Yarn"),
    "modeling_deepseek_v3": ("LinearScaling", "DynamicNTKScaling", "Yarn"),
    "modeling_llama": ("LinearScaling", "DynamicNTKScaling"),
}
_PRETRAINED = "transformers.modeling_utils.PreTrainedModel"


def _torch_classes() -> Iterator[tuple[str, str]]:
    for name in ("Linear", "Embedding", "ModuleList", "SiLU"):
        yield f"torch.nn.{name}", MODULE
    yield _PRETRAINED, MODULE


def _family_classes() -> Iterator[tuple[str, str]]:
    for python_module, (prefix, names) in _FAMILY_CLASSES.items():
        module = python_module if "." in python_module else f"{_MODELS}.{python_module}"
        path = f"{module}.{prefix}"
        for name in names.split():
            yield path + name, MODULE
        rotary = f"{path}RotaryEmbedding"
        yield rotary, MODULE
        for kind in _ROTARY_SUBCLASSES.get(python_module, ()):
            yield f"{path}{kind}RotaryEmbedding", rotary
        yield f"{path}PreTrainedModel", _PRETRAINED
        yield f"{path}Model", f"{path}PreTrainedModel"
        yield f"{path}ForCausalLM", f"{path}PreTrainedModel"
    for python_module in ("modeling_deepseek", "modeling_deepseek_v3"):
        yield f"{_MODELS}.{python_module}.MoEGate", MODULE


BASES: Mapping[str, str] = {**dict(_torch_classes()), **dict(_family_classes())}
"""Class → its base; every chain ends at `torch.nn.Module`."""

MODULE_CLASSES = frozenset({MODULE, *BASES, *ALIASES})
"""What a rule's `match` may name. (PreTrainedModel has more bases in `transformers`; no rule
names them.)"""

_INJECTABLE: Mapping[str, str] = {
    "linear": "KTransformersLinear",
    "experts": "KTransformersExperts KDeepseekV2MoE KDeepseekV3MoE KQwen2MoeSparseMoeBlock "
    "KMistralSparseMoEBlock",
    "attention": "KDeepseekV2Attention KLlamaAttention",
    "RoPE": "RotaryEmbedding RotaryEmbeddingV2 RotaryEmbeddingV3 YarnRotaryEmbedding "
    "YarnRotaryEmbeddingV3 DynamicNTKScalingRotaryEmbedding",
    "gate": "KMoEGate",
    "models": "KDeepseekV2Model KQwen2MoeModel KLlamaModel",
}

_SERVER: Mapping[str, str] = {
    "experts": "KTransformersExpertsV2 KDeepseekV3MoEV2 KQwen2MoeSparseMoeBlockV2 "
    "KQwen3MoeSparseMoeBlockV2",
    "balance_serve_attention": "flashinfer_attn KQwen2MoeAttention KQwen3MoeAttention",
    "layernorm": "RMSNorm KQwen2MoeRMSNorm KQwen3MoeRMSNorm",
    "mlp": "kDeepseekV3MLP KQwen2MoeMLP",
}


def _operator_paths(names_by_module: Mapping[str, str]) -> frozenset[str]:
    return frozenset(
        f"ktransformers.operators.{python_module}.{name}"
        for python_module, names in names_by_module.items()
        for name in names.split()
    )


SERVER_CLASSES = _operator_paths(_SERVER)
"""Classes that only the server (balance_serve, since 0.2.4) calls as they want to be called."""
INJECTABLE_CLASSES = _operator_paths(_INJECTABLE) | SERVER_CLASSES
"""What a rule's `replace` may name beside `default`: the classes of 0.2.1 to 0.3.2."""


@cache
def is_instance(class_name: str, match_class: str) -> bool:
    """Whether an object of one class is an instance of the other, as Python's isinstance says.

    A class that the catalogue does not know is an instance of itself and of `torch.nn.Module`.
    """
    current, wanted = _canonical(class_name), _canonical(match_class)
    while current != wanted:
        if current == MODULE:
            return False
        current = BASES.get(current, MODULE)
    return True


def _canonical(name: str) -> str:
    return ALIASES.get(name, name)
