"""What the catalogue says of operators, classes and engines, against hand counts and the code."""

import pytest

from autoplace.architectures import read_preset, spec_from_geometry
from autoplace.architectures.presets import preset_names
from autoplace.architectures.spec import Role
from autoplace.catalog.classes import INJECTABLE_CLASSES, MODULE_CLASSES, is_instance
from autoplace.catalog.engines import ENGINES, engine
from autoplace.catalog.operators import OPERATORS, marlin_bytes, operators_of
from autoplace.errors import AutoplaceError
from autoplace.operators.registry import EXPERTS_OPERATORS, LINEAR_OPERATORS
from autoplace.placement.ktransformers_memory import expert_buffer_bytes
from autoplace.weights.ggml import GGMLType, TensorInfo

V2 = "ktransformers.models.modeling_deepseek."
V3 = "ktransformers.models.modeling_deepseek_v3."


def test_the_catalogue_is_the_set_of_operators_that_exist() -> None:
    by_kind = {
        kind: {op.name for op in operators_of(kind, engine="builtin")}
        for kind in ("linear", "experts")
    }
    assert by_kind == {"linear": set(LINEAR_OPERATORS), "experts": set(EXPERTS_OPERATORS)}


@pytest.mark.parametrize(
    ("operator", "num_bits", "n_bytes"),
    [
        ("KLinearTorch", 4, 128 * 256 * 2),
        ("KLinearCPUInfer", 4, 128 * 144),  # one block of 144 B a row
        ("KLinearMarlin", 4, 128 * 256 // 2 + 4 * 128 * 2),  # 4 groups a row, 2 B a scale
        ("KLinearMarlin", 8, 128 * 256 + 4 * 128 * 2),
    ],
)
def test_a_linear_of_128_rows_of_256_takes(operator: str, num_bits: int, n_bytes: int) -> None:
    info = TensorInfo("a.weight", (128, 256), GGMLType.Q4_K)
    assert OPERATORS[operator].weight_bytes((info,), num_bits=num_bits) == n_bytes


def test_marlin_pads_inputs_to_128_and_outputs_to_64() -> None:
    assert marlin_bytes((65, 129)) == marlin_bytes((128, 256))
    assert marlin_bytes((3, 65, 129)) == 3 * marlin_bytes((65, 129))
    assert marlin_bytes((129,)) == marlin_bytes((64, 256))


def test_a_bias_is_in_the_dtype_whatever_the_operator() -> None:
    bias = TensorInfo("a.bias", (128,), GGMLType.F32)
    for operator in operators_of("linear", engine="builtin"):
        assert operator.weight_bytes((bias,), dtype_bytes=2) == 256


def test_marlin_runs_on_gpus_only_and_blocks_on_the_cpu_only() -> None:
    gpu = {op.name for op in OPERATORS.values() if op.device_kinds == {"gpu"}}
    cpu = {op.name for op in OPERATORS.values() if op.device_kinds == {"cpu"}}
    assert gpu == {"KLinearMarlin", "VLinearMarlin", "KExpertsMarlin"}
    assert cpu == {"KLinearCPUInfer", "KExpertsCPU"}


@pytest.mark.parametrize(
    ("own", "matched", "answer"),
    [
        ("torch.nn.Linear", "torch.nn.modules.linear.Linear", True),
        ("torch.nn.modules.linear.Linear", "torch.nn.Linear", True),
        ("torch.nn.Linear", "torch.nn.Module", True),
        ("torch.nn.Linear", "torch.nn.modules.module.Module", True),
        ("torch.nn.Module", "torch.nn.Linear", False),
        ("torch.nn.Embedding", "torch.nn.Linear", False),
        (V2 + "DeepseekV2YarnRotaryEmbedding", V2 + "DeepseekV2RotaryEmbedding", True),
        (V2 + "DeepseekV2RotaryEmbedding", V2 + "DeepseekV2YarnRotaryEmbedding", False),
        (V3 + "DeepseekV3YarnRotaryEmbedding", V3 + "DeepseekV3RotaryEmbedding", True),
        (V2 + "MoEGate", V3 + "MoEGate", False),
        (V3 + "DeepseekV3ForCausalLM", "transformers.modeling_utils.PreTrainedModel", True),
    ],
)
def test_isinstance_follows_bases_and_aliases(own: str, matched: str, answer: bool) -> None:
    assert is_instance(own, matched) is answer


@pytest.mark.parametrize("name", preset_names())
def test_every_class_of_a_spec_is_catalogued(name: str) -> None:
    preset = read_preset(name)
    spec = spec_from_geometry(name, preset.geometry, quant=preset.default_quant)
    assert {module.class_name for module in spec.modules} <= MODULE_CLASSES


def test_nothing_may_be_both_matched_and_injected() -> None:
    assert not MODULE_CLASSES & INJECTABLE_CLASSES


def test_an_unknown_engine_lists_what_exists() -> None:
    with pytest.raises(AutoplaceError, match=r"'vllm'; there are builtin, ktransformers-0\.2\.1"):
        engine("vllm")


def test_only_0_3_and_before_hold_experts_on_gpus() -> None:
    assert ENGINES["ktransformers-0.3"].gpu_experts == ("KExpertsMarlin", "KExpertsTorch")
    assert ENGINES["ktransformers-0.3.2"].gpu_experts == ()
    for name, known in ENGINES.items():
        for operator in OPERATORS.values():
            if operator.kind == "experts" and operator.device_kinds != {"cpu"}:
                assert (operator.name in known.gpu_experts) == (name in operator.engines)


def test_expert_buffers_of_deepseek_v3_take_540_mb_at_a_chunk_of_8192_in_0_3_2() -> None:
    geometry = read_preset("deepseek-v3").geometry
    n_bytes = expert_buffer_bytes(geometry, ENGINES["ktransformers-0.3.2"].memory)
    assert n_bytes == pytest.approx(540e6, rel=0.005)


@pytest.mark.parametrize(("engine", "rows"), [("0.2.1", 1), ("0.3", 1 + 2 + 3 + 4 + 64 + 256)])
def test_expert_buffers_before_0_3_1_do_not_grow_with_the_chunk(engine: str, rows: int) -> None:
    geometry = read_preset("deepseek-v3").geometry
    n_bytes = expert_buffer_bytes(geometry, ENGINES[f"ktransformers-{engine}"].memory)
    assert n_bytes == rows * 7168 * 2


def test_ktransformers_cannot_make_gpu_experts_of_v2_lites_own_q4_k_m() -> None:
    spec = spec_from_geometry("v2-lite", read_preset("deepseek-v2-lite").geometry, quant="q4_k_m")
    types = {info.ggml_type for m in spec.of_role(Role.EXPERTS) for info in spec.tensor_infos(m)}
    assert not types <= ENGINES["ktransformers-0.3"].gpu_expert_types
    assert types <= ENGINES["builtin"].gpu_expert_types
