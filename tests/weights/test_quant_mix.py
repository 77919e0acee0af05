"""Files made by `synth` have the tensor types of real ones."""

import pytest

from autoplace.errors import AutoplaceError
from autoplace.weights.ggml import GGMLType as T
from autoplace.weights.ggml import TensorInfo
from autoplace.weights.quant_mix import QUANTS, tensor_type


def v2(name: str, shape: tuple[int, ...], quant: str = "q4_k_m") -> T:
    """A tensor of DeepSeek-V2: 60 layers, 160 experts."""
    return tensor_type(name, shape, quant=quant, num_layers=60, num_experts=160)


def v2_lite(name: str, shape: tuple[int, ...], quant: str = "q4_k_m") -> T:
    return tensor_type(name, shape, quant=quant, num_layers=27, num_experts=64)


def mixtral(name: str, shape: tuple[int, ...], quant: str = "q4_k_m") -> T:
    return tensor_type(name, shape, quant=quant, num_layers=32, num_experts=8)


def test_down_is_q6_k_in_29_of_the_59_expert_layers_of_deepseek_v2() -> None:
    types = {i: v2(f"blk.{i}.ffn_down_exps.weight", (160, 5120, 1536)) for i in range(1, 60)}
    more = [layer for layer, ggml_type in types.items() if ggml_type is T.Q6_K]
    assert more == [*range(1, 7), *range(9, 52, 3), *range(52, 60)]
    assert len(more) == 29
    assert set(types.values()) == {T.Q6_K, T.Q4_K}


def test_the_experts_of_deepseek_v2_take_the_bytes_of_the_worked_example() -> None:
    def layer_bytes(layer: int) -> int:
        shapes = {"gate": (160, 1536, 5120), "up": (160, 1536, 5120), "down": (160, 5120, 1536)}
        names = {part: f"blk.{layer}.ffn_{part}_exps.weight" for part in shapes}
        return sum(
            TensorInfo(names[part], shape, v2(names[part], shape)).n_bytes
            for part, shape in shapes.items()
        )

    assert layer_bytes(7) == 2_123_366_400
    assert layer_bytes(1) == 2_447_769_600
    assert sum(layer_bytes(layer) for layer in range(1, 60)) == 134_686_310_400


@pytest.mark.parametrize(
    ("name", "shape", "expected"),
    [
        ("token_embd.weight", (102400, 5120), T.Q4_K),
        ("output.weight", (102400, 5120), T.Q6_K),
        ("output_norm.weight", (5120,), T.F32),
        ("blk.1.attn_norm.weight", (5120,), T.F32),
        ("blk.1.attn_kv_a_norm.weight", (512,), T.F32),
        ("blk.1.ffn_gate_inp.weight", (160, 5120), T.F32),
        ("blk.1.exp_probs_b.bias", (160,), T.F32),
        ("blk.1.ffn_gate_inp_shexp.weight", (5120,), T.F32),
        ("blk.1.ffn_gate_inp_shexp.weight", (1, 5120), T.F32),
        ("blk.1.attn_q.bias", (5120,), T.F32),
        ("blk.1.attn_q_a.weight", (1536, 5120), T.Q4_K),
        ("blk.1.attn_kv_a_mqa.weight", (576, 5120), T.Q4_K),
        ("blk.1.attn_output.weight", (5120, 16384), T.Q4_K),
        ("blk.1.attn_kv_b.weight", (32768, 512), T.Q6_K),
        ("blk.7.attn_kv_b.weight", (32768, 512), T.Q4_K),
        # Of the absorbed pair, k's rows are the 128 of a head: no multiple of 256.
        ("blk.7.attn_k_b.weight", (128, 512, 128), T.Q5_0),
        ("blk.7.attn_v_b.weight", (128, 128, 512), T.Q4_K),
        ("blk.7.ffn_gate_exps.weight", (160, 1536, 5120), T.Q4_K),
        ("blk.0.ffn_down.weight", (5120, 12288), T.Q6_K),
        ("blk.7.ffn_down_shexp.weight", (5120, 3072), T.Q4_K),
    ],
)
def test_a_tensor_of_deepseek_v2_q4_k_m_has_the_type_llama_cpp_gives_it(
    name: str, shape: tuple[int, ...], expected: T
) -> None:
    assert v2(name, shape) is expected


def test_rows_that_are_no_multiple_of_256_fall_back_as_in_v2_lite() -> None:
    assert v2_lite("blk.1.ffn_down_exps.weight", (64, 2048, 1408)) is T.Q8_0
    assert v2_lite("blk.4.ffn_down_exps.weight", (64, 2048, 1408)) is T.Q5_0
    assert v2_lite("blk.0.ffn_down.weight", (2048, 10944)) is T.Q8_0
    assert v2_lite("blk.4.ffn_down_exps.weight", (64, 2048, 1408), quant="q5_k_m") is T.Q5_1
    assert v2_lite("output.weight", (102400, 2047 + 33), quant="q4_k_m") is T.Q8_0
    assert v2_lite("blk.4.ffn_up.weight", (64, 72), quant="q8_0") is T.F16


def test_a_model_of_8_experts_has_more_bits_for_keys_and_values() -> None:
    assert mixtral("blk.5.attn_v.weight", (1024, 4096)) is T.Q8_0
    assert mixtral("blk.5.attn_k.weight", (1024, 4096)) is T.Q8_0
    assert mixtral("blk.5.attn_output.weight", (4096, 4096)) is T.Q5_K
    assert mixtral("blk.5.attn_q.weight", (4096, 4096)) is T.Q4_K


def test_a_70b_has_no_attention_v_below_q5_k() -> None:
    types = {
        tensor_type(f"blk.{i}.attn_v.weight", (1024, 8192), quant="q4_k_m", num_layers=80)
        for i in range(80)
    }
    assert types == {T.Q5_K, T.Q6_K}


def test_tied_embeddings_take_the_type_of_the_output() -> None:
    shape = (49152, 768)
    kinds = [
        tensor_type("token_embd.weight", shape, quant=q, num_layers=30, tied_embeddings=True)
        for q in ("q4_k_m", "q4_0", "q8_0", "f16")
    ]
    assert kinds == [T.Q6_K, T.Q6_K, T.Q8_0, T.F16]


@pytest.mark.parametrize(
    ("quant", "expected"), [("q8_0", T.Q8_0), ("f16", T.F16), ("bf16", T.BF16)]
)
def test_a_plain_file_has_one_type_and_float32_for_norms_and_router(
    quant: str, expected: T
) -> None:
    assert v2("blk.1.ffn_down_exps.weight", (160, 5120, 1536), quant) is expected
    assert v2("output.weight", (102400, 5120), quant) is expected
    assert v2("blk.1.ffn_gate_inp.weight", (160, 5120), quant) is T.F32
    assert v2("blk.1.attn_norm.weight", (5120,), quant) is T.F32


def test_an_unknown_quantisation_names_the_near_one() -> None:
    with pytest.raises(AutoplaceError, match="got 'q4_km'; did you mean 'q4_k_m'"):
        v2("output.weight", (102400, 5120), "q4_km")
    assert "q4_k_m" in QUANTS
