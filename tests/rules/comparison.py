"""What our rules mean and what KTransformers' own code makes of them, in the same terms."""

from collections.abc import Mapping
from dataclasses import replace
from functools import cache
from typing import Any

from hypothesis import strategies as st

from autoplace.architectures.registry import spec_from_geometry
from autoplace.architectures.spec import ModelSpec, Role
from autoplace.placement.assignment import Assignment
from autoplace.placement.placement import Choice, Placement
from autoplace.rules.rule import Rule
from tests.rules.specs import GEOMETRIES, KTRANSFORMERS_FAMILIES

FAMILIES = {
    "0.2.1.post1": (*KTRANSFORMERS_FAMILIES, "mixtral-8x7b"),
    "0.3": (*KTRANSFORMERS_FAMILIES, "mixtral-8x7b", "qwen3-30b-a3b"),
    "0.3.2": (*KTRANSFORMERS_FAMILIES, "mixtral-8x7b", "qwen3-30b-a3b"),
}
"""Families that each version has rules for."""


@cache
def small(family: str) -> ModelSpec:
    """The model with the 8 experts a layer that the oracle builds."""
    geometry = GEOMETRIES[family]
    assert geometry.moe is not None
    return spec_from_geometry(
        family, replace(geometry, moe=replace(geometry.moe, num_experts=8)), quant="q4_k_m"
    )


def theirs(config: Mapping[str, Mapping[str, Any]]) -> dict[str, tuple[str, object]]:
    return {path: (entry["class"], entry["kwargs"]) for path, entry in config.items()}


def ours(assignment: Assignment) -> dict[str, tuple[str, object]]:
    """In their terms: an unmatched module has the default device as keywords."""
    unmatched = {"generate_device": "cuda:0", "prefill_device": "cuda:0"}
    return {
        path: (
            entry.class_name or "default",
            unmatched if entry.rule is None else _plain(dict(entry.kwargs)),
        )
        for path, entry in assignment.modules.items()
    }


def _plain(value: Any) -> Any:
    """As the oracle's answers spell mappings that have other keys than strings."""
    if isinstance(value, dict):
        if all(isinstance(key, str) for key in value):
            return {key: _plain(item) for key, item in value.items()}
        return {"pairs": [[key, _plain(item)] for key, item in value.items()]}
    return [_plain(item) for item in value] if isinstance(value, tuple) else value


NAMES = st.sampled_from(
    [
        "",
        "mlp",
        "^model$",
        "^lm_head",
        r"^model\.layers\.(?:0|1|2|3)\.",
        r"^model\.layers\.([0-9]|1[0-9])\.",
        r"^model\.layers\.([30-59])\.",
        r"^model\.layers\.([0-2][0-9])\.",
        r"model.layers.1",
        r"^model\.layers\..*\.mlp\.experts$",
        r"(?:mlp|block_sparse_moe)\.experts$",
        r"experts\.[0-3]\.",
        r"experts\.\d+$",
        r"\.(?:3|4)\.",
        r"^model\.layers\.(?!.*self_attn\.kv_b_proj).*$",
        r"self_attn$",
        r"_proj$",
        r"(^model\.norm)|(^lm_head)",
        r"^model\.layers\.(?:5|25)\.mlp$",
        r"gate",
        r"^model\.embed_tokens$",
        r"norm$",
        r"(?i)MLP\.GATE$",
        r"\w+\.\d\d\.",
    ]
)
CLASSES = {
    "deepseek-v2": "modeling_deepseek.DeepseekV2",
    "deepseek-v2-lite": "modeling_deepseek.DeepseekV2",
    "deepseek-v3": "modeling_deepseek_v3.DeepseekV3",
    "qwen2-57b-a14b": "modeling_qwen2_moe.Qwen2Moe",
    "mixtral-8x7b": "modeling_mixtral.Mixtral",
    "qwen3-30b-a3b": "modeling_qwen3_moe.Qwen3Moe",
}
COMMON = [
    "torch.nn.Linear",
    "torch.nn.modules.linear.Linear",
    "torch.nn.Module",
    "torch.nn.ModuleList",
    "torch.nn.Embedding",
]
KWARGS = st.sampled_from(
    [
        None,
        {},
        {"generate_device": "cuda:1", "prefill_device": "cuda:1"},
        {"generate_device": "cuda"},
        {"transfer_map": {3: "cuda:1", "4": "cuda:0"}},
        {"generate_device": "cpu", "generate_op": "KExpertsCPU", "out_device": "cuda:0"},
    ]
)
INJECTED = st.sampled_from(
    [
        "default",
        "ktransformers.operators.linear.KTransformersLinear",
        "ktransformers.operators.experts.KTransformersExperts",
        "ktransformers.operators.models.KDeepseekV2Model",
    ]
)


def rule_lists(family: str) -> st.SearchStrategy[list[Rule]]:
    base = f"ktransformers.models.{CLASSES[family]}"
    own = [f"{base}{name}" for name in ("RMSNorm", "Attention", "RotaryEmbedding", "Model")]
    classes = st.sampled_from(COMMON + own)
    rule = st.builds(
        lambda where, replace_class, kwargs, recursive: Rule(
            where[0], where[1], replace_class, kwargs or {}, recursive
        ),
        st.tuples(NAMES, st.none() | classes) | st.tuples(st.none(), classes),
        INJECTED,
        KWARGS,
        st.booleans() | st.just(True),
    )
    return st.lists(rule, min_size=1, max_size=8)


def check_injected(
    injected: Mapping[str, Mapping[str, Any]],
    placement: Placement,
    assignment: Assignment,
    model: ModelSpec,
) -> None:
    """What their constructors made, module by module, against the placement itself."""
    assert injected["model.embed_tokens"]["class"].endswith(".Embedding")
    for path, entry in assignment.modules.items():
        made = injected.get(path)
        if made is None or entry.class_name is None:
            continue
        assert made["class"] == entry.class_name, path
        if path != "model" and made["device"] != "cuda":
            assert made["device"] == entry.device, path
        assert made.get("operator") == entry.operator, path
    for module in model.modules:
        choice = _choice(placement, module.role, module.layer)
        if choice is not None:
            _check_choice(injected[module.path], choice, placement, module.layer)
    moves = injected["model"].get("transfer_map")
    expected = [
        [index, layer.device]
        for index, layer in enumerate(placement.layers)
        if index and layer.device != placement.layers[index - 1].device
    ]
    assert moves == ({"pairs": expected} if expected else None)
    assert injected["model"].get("per_layer_prefill_intput_threshold", 0) == 0


def _choice(placement: Placement, role: Role, index: int | None) -> Choice | None:
    if role is Role.LM_HEAD:
        return placement.lm_head
    if index is None:
        return None
    layer = placement.layers[index]
    return {
        Role.ATTENTION_LINEAR: layer.attention,
        Role.DENSE_LINEAR: layer.mlp,
        Role.SHARED_LINEAR: layer.mlp,
        Role.EXPERTS: layer.experts,
    }.get(role)


def _check_choice(
    made: Mapping[str, Any], choice: Choice, placement: Placement, index: int | None
) -> None:
    assert (made["operator"], made["device"]) == (choice.operator, choice.device)
    if choice.operator == "KLinearMarlin":
        assert made["num_bits"] == choice.num_bits
    if choice.operator == "KExpertsCPU":
        assert index is not None
        assert made["out_device"] == placement.layers[index].device
