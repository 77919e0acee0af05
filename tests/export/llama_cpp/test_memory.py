"""llama.cpp's memory: by hand, by published logs, and by its own `llama-fit-params` where it is."""

from collections.abc import Mapping
from dataclasses import replace

import pytest

from autoplace.architectures import read_preset, spec_from_geometry
from autoplace.architectures.family import FileLayout
from autoplace.architectures.spec import ModelSpec
from autoplace.export.llama_cpp import LlamaCppArgs, parse_args
from autoplace.export.llama_cpp.layout import cuda_buffers
from autoplace.export.llama_cpp.memory import CONTEXT_BYTES, cache_bytes, plan_llama_cpp
from autoplace.placement.totals import DeviceMemory
from tests.rules.specs import spec

MIB = 2**20


def plan(
    model: ModelSpec, line: str, gpus: list[str], context: int = 4096
) -> Mapping[str, DeviceMemory]:
    args = parse_args(line)
    return plan_llama_cpp(model, args, cuda_buffers(gpus), context_tokens=context).by_device


def test_blocks_are_held_as_they_are_on_every_device() -> None:
    """22 of V2's Q6_K expert layers are 53.8 GB as blocks (golden-memory)."""
    model = spec("deepseek-v2")
    found = plan(model, "-ngl 99 -ts 1,1", ["cuda:0", "cuda:1"])
    assert sum(memory.weights for memory in found.values()) == sum(
        info.n_bytes for info in model.tensors.values()
    )
    assert found["cpu"].weights == model.tensors["token_embd.weight"].n_bytes


def test_a_tied_output_is_held_again_on_a_gpu_and_not_on_the_host() -> None:
    model = spec("smollm2-135m")
    whole = sum(info.n_bytes for info in model.tensors.values())
    twice = whole + model.tensors["token_embd.weight"].n_bytes
    assert plan(model, "-ngl 0", [])["cpu"].weights == whole
    found = plan(model, "-ngl 99", ["cuda:0"])
    assert found["cpu"].weights + found["cuda:0"].weights == twice


def test_a_window_bounds_the_cache_of_every_other_layer() -> None:
    preset = read_preset("gpt-oss-20b")
    model = spec_from_geometry("gpt-oss-20b", preset.geometry, quant=preset.default_quant)
    sizes = [cache_bytes(model, layer, 8192, LlamaCppArgs()) for layer in range(2)]
    assert sizes == [2 * 8 * 64 * 2 * 768, 2 * 8 * 64 * 2 * 8192]


@pytest.mark.parametrize(("split", "width"), [(True, 576), (False, 128 * 320)])
def test_the_cache_of_mla_is_compressed_where_the_file_splits_kv_b(split: bool, width: int) -> None:
    model = split_model("deepseek-v2", split=split)
    assert cache_bytes(model, 3, 8192, LlamaCppArgs()) == 2 * width * 8192


def split_model(name: str, *, split: bool = True) -> ModelSpec:
    geometry = read_preset(name).geometry
    return spec_from_geometry(name, geometry, quant="q4_k_m", layout=FileLayout(split_kv_b=split))


def test_published_cache_of_deepseek_v3_comes_out() -> None:
    """65,536 tokens at q8_0: 2333.25 MiB in a published log."""
    model, args = split_model("deepseek-v3"), LlamaCppArgs(cache_type_k="q8_0")
    total = sum(cache_bytes(model, layer, 65536, args) for layer in range(61))
    assert total == int(2333.25 * MIB)


def test_keys_and_values_have_types_of_their_own() -> None:
    args = replace(LlamaCppArgs(), cache_type_k="q8_0", cache_type_v="q4_0")
    assert cache_bytes(spec("qwen3-30b-a3b"), 0, 256, args) == 256 * (512 * 34 + 512 * 18) // 32


def test_the_cache_is_padded_and_a_line_may_ask_for_the_models_whole_context() -> None:
    model = spec("smollm2-135m")
    row = 2 * 2 * 192 * 30
    assert plan(model, "-ngl 0 -c 100", [])["cpu"].kv_cache == 256 * row
    assert plan(model, "-ngl 0 -c 0", [])["cpu"].kv_cache == 8192 * row
    assert plan(model, "-ngl 0", [], context=300)["cpu"].kv_cache == 512 * row


def test_without_kv_offload_the_cache_is_on_the_host() -> None:
    found = plan(spec("smollm2-135m"), "-ngl 99 -nkvo", ["cuda:0"])
    assert (found["cpu"].kv_cache > 0, found["cuda:0"].kv_cache) == (True, 0)


# In MiB, from the log of llama.cpp b9993 (`compute buffer size`), read off on 2026-11-30.
LOGGED = [
    ("smollm2-135m", "-c 4096", 98.25),
    ("smollm2-135m", "-c 4096 -fa off", 99.38),
    ("deepseek-v2-lite", "-c 4096", 240.26),
    ("qwen3-30b-a3b", "-c 4096", 304.75),
    ("mixtral-8x7b", "-c 4096", 204.01),
    ("deepseek-v3", "-c 4096", 312.51),
]


@pytest.mark.parametrize(("name", "line", "mib"), LOGGED)
def test_the_compute_buffer_is_the_one_that_llama_cpp_logs(
    name: str, line: str, mib: float
) -> None:
    model = spec(name)
    logits = 4 * model.geometry.vocab
    found = plan(model, f"-ngl 0 {line}", [])["cpu"].workspace - logits
    assert found / MIB == pytest.approx(mib, abs=0.01)


def test_compute_buffers_grow_with_the_micro_batch_and_scores_without_flash_attention() -> None:
    def workspace(line: str) -> int:
        return plan(spec("qwen3-30b-a3b"), f"-ngl 0 -c 8192 {line}", [])["cpu"].workspace

    assert workspace("-ub 64") < workspace("-ub 512") < workspace("-ub 2048")
    scores = 4 * 512 * 8192 * 32
    assert workspace("-fa on") < scores < workspace("-fa off")


def test_cuda_s_context_is_counted_on_each_gpu_that_it_sees() -> None:
    """llama.cpp's own figures leave it out."""
    model = spec("smollm2-135m")
    found = plan(model, "-ngl 99 -ts 1,0", ["cuda:0", "cuda:1"])
    assert found["cuda:0"].workspace > CONTEXT_BYTES
    assert found["cuda:1"] == DeviceMemory(0, 0, CONTEXT_BYTES)
    alone = plan(model, "-ngl 99 -dev CUDA0", ["cuda:0", "cuda:1"])
    assert "cuda:1" not in alone or alone["cuda:1"].workspace == 0


def test_a_gpu_that_computes_with_experts_on_the_host_copies_one_of_their_tensors() -> None:
    model = spec("deepseek-v2")
    down = max(info.n_bytes for name, info in model.tensors.items() if "ffn_down_exps" in name)
    copying = plan(model, "-ngl 99 -cmoe", ["cuda:0"])["cuda:0"].workspace
    without = plan(model, "-ngl 99 -cmoe --no-op-offload", ["cuda:0"])["cuda:0"].workspace
    small = plan(model, "-ngl 99 -cmoe -ub 16", ["cuda:0"])["cuda:0"].workspace
    assert copying > down
    assert without < down
    assert small < down


def test_several_gpus_as_a_pipeline_take_four_of_each_input() -> None:
    """Overrides end the pipeline: llama.cpp then keeps one."""
    model, gpus = spec("mixtral-8x7b"), ["cuda:0", "cuda:1"]
    line = "-ngl 99 -ts 1,1 -c 32768"
    pipeline = plan(model, line, gpus)["cuda:1"].workspace
    alone = plan(model, f"{line} -ot ^output_norm=CUDA1", gpus)["cuda:1"].workspace
    mask = 2 * 512 * 32768
    assert pipeline - alone > 2 * mask
