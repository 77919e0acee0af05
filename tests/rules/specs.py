"""Models that the tests of rules are about: real geometries, no weights."""

from functools import cache

from autoplace.architectures.geometry import Geometry, Gqa, Mla, Moe, Rope
from autoplace.architectures.registry import spec_from_geometry
from autoplace.architectures.spec import ModelSpec

YARN = Rope(
    theta=10000.0,
    dim=64,
    interleaved=True,
    yarn_factor=40.0,
    original_context=4096,
    yarn_log_multiplier=0.1,
)
GEOMETRIES = {
    "deepseek-v2-lite": Geometry(
        architecture="deepseek2",
        num_layers=27,
        num_dense_lead_layers=1,
        hidden=2048,
        num_heads=16,
        dense_ffn=10944,
        vocab=102400,
        context_length=163840,
        rms_eps=1e-6,
        attention=Mla(None, 512, 128, 64, 128),
        rope=YARN,
        moe=Moe(num_experts=64, top_k=6, expert_ffn=1408, shared_ffn=2816),
    ),
    "deepseek-v2": Geometry(
        architecture="deepseek2",
        num_layers=60,
        num_dense_lead_layers=1,
        hidden=5120,
        num_heads=128,
        dense_ffn=12288,
        vocab=102400,
        context_length=163840,
        rms_eps=1e-6,
        attention=Mla(1536, 512, 128, 64, 128),
        rope=YARN,
        moe=Moe(
            num_experts=160,
            top_k=6,
            expert_ffn=1536,
            shared_ffn=3072,
            routed_scaling=16.0,
            num_groups=8,
            num_groups_used=3,
        ),
    ),
    "deepseek-v3": Geometry(
        architecture="deepseek2",
        num_layers=61,
        num_dense_lead_layers=3,
        hidden=7168,
        num_heads=128,
        dense_ffn=18432,
        vocab=129280,
        context_length=163840,
        rms_eps=1e-6,
        attention=Mla(1536, 512, 128, 64, 128),
        rope=YARN,
        moe=Moe(
            num_experts=256,
            top_k=8,
            expert_ffn=2048,
            shared_ffn=2048,
            gating="sigmoid",
            normalise_top_k=True,
            routed_scaling=2.5,
            num_groups=8,
            num_groups_used=4,
            expert_bias=True,
        ),
    ),
    "qwen2-57b-a14b": Geometry(
        architecture="qwen2moe",
        num_layers=28,
        num_dense_lead_layers=0,
        hidden=3584,
        num_heads=28,
        dense_ffn=18944,
        vocab=151936,
        context_length=32768,
        rms_eps=1e-6,
        attention=Gqa(4, 128, qkv_bias=True),
        rope=Rope(theta=1e6, dim=128, interleaved=False),
        moe=Moe(
            num_experts=64, top_k=8, expert_ffn=2560, shared_ffn=20480, shared_expert_gate=True
        ),
    ),
    "mixtral-8x7b": Geometry(
        architecture="llama",
        num_layers=32,
        num_dense_lead_layers=0,
        hidden=4096,
        num_heads=32,
        dense_ffn=14336,
        vocab=32000,
        context_length=32768,
        rms_eps=1e-5,
        attention=Gqa(8, 128),
        rope=Rope(theta=1e6, dim=128, interleaved=True),
        moe=Moe(num_experts=8, top_k=2, expert_ffn=14336, normalise_top_k=True),
    ),
    "qwen3-30b-a3b": Geometry(
        architecture="qwen3moe",
        num_layers=48,
        num_dense_lead_layers=0,
        hidden=2048,
        num_heads=32,
        dense_ffn=6144,
        vocab=151936,
        context_length=40960,
        rms_eps=1e-6,
        attention=Gqa(4, 128, qk_norm=True),
        rope=Rope(theta=1e6, dim=128, interleaved=False),
        moe=Moe(num_experts=128, top_k=8, expert_ffn=768, normalise_top_k=True),
    ),
    "smollm2-135m": Geometry(
        architecture="llama",
        num_layers=30,
        num_dense_lead_layers=30,
        hidden=576,
        num_heads=9,
        dense_ffn=1536,
        vocab=49152,
        context_length=8192,
        rms_eps=1e-5,
        attention=Gqa(3, 64),
        rope=Rope(theta=100000.0, dim=64, interleaved=True),
        tied_embeddings=True,
    ),
}
KTRANSFORMERS_FAMILIES = ("deepseek-v2-lite", "deepseek-v2", "deepseek-v3", "qwen2-57b-a14b")
"""Families whose rule files KTransformers can split over GPUs."""


@cache
def spec(name: str) -> ModelSpec:
    return spec_from_geometry(name, GEOMETRIES[name], quant="q4_k_m")
