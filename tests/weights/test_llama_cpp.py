"""llama.cpp loads and runs every kind of file that is written here."""

import json
import math
from pathlib import Path

import pytest
import xllamacpp

from autoplace.architectures import file_metadata, file_tensors, read_preset
from autoplace.architectures.family import FileLayout
from autoplace.architectures.geometry import Mla
from autoplace.architectures.presets import preset_names
from autoplace.weights.ggml import GGMLType, TensorInfo
from autoplace.weights.quant_mix import QUANTS, tensor_type
from autoplace.weights.synthesize import write_gguf

HIDDEN, FFN, VOCAB, NUM_LAYERS = 256, 512, 32, 8

TOKENS = ["<unk>", "<s>", "</s>", "<0x0A>", *(f"▁{i}" for i in range(VOCAB - 4))]

METADATA: dict[str, object] = {
    "general.architecture": "llama",
    "llama.block_count": NUM_LAYERS,
    "llama.context_length": 256,
    "llama.embedding_length": HIDDEN,
    "llama.feed_forward_length": FFN,
    "llama.attention.head_count": 4,
    "llama.attention.head_count_kv": 2,
    "llama.attention.layer_norm_rms_epsilon": 1e-5,
    "llama.rope.dimension_count": 64,
    "llama.vocab_size": VOCAB,
    "tokenizer.ggml.model": "llama",
    "tokenizer.ggml.tokens": TOKENS,
    "tokenizer.ggml.scores": [0.0] * VOCAB,
    "tokenizer.ggml.token_type": [2, 3, 3, 6, *[1] * (VOCAB - 4)],
}

SHAPES: dict[str, tuple[int, ...]] = {
    "token_embd.weight": (VOCAB, HIDDEN),
    "output_norm.weight": (HIDDEN,),
    "output.weight": (VOCAB, HIDDEN),
} | {
    f"blk.{layer}.{part}.weight": shape
    for layer in range(NUM_LAYERS)
    for part, shape in {
        "attn_norm": (HIDDEN,),
        "attn_q": (HIDDEN, HIDDEN),
        "attn_k": (HIDDEN // 2, HIDDEN),
        "attn_v": (HIDDEN // 2, HIDDEN),
        "attn_output": (HIDDEN, HIDDEN),
        "ffn_norm": (HIDDEN,),
        "ffn_gate": (FFN, HIDDEN),
        "ffn_up": (FFN, HIDDEN),
        "ffn_down": (HIDDEN, FFN),
    }.items()
}


def load(path: Path) -> xllamacpp.Server:
    """llama.cpp with a model; it checks the tensors' bytes as it loads them."""
    params = xllamacpp.CommonParams()
    params.model.path = str(path)
    params.check_tensors = True
    params.n_ctx, params.n_parallel = 64, 1
    params.warmup, params.fit_params, params.verbosity = False, False, -1
    params.cpuparams.n_threads = 1
    return xllamacpp.Server(params)


def log_probs_of(
    server: xllamacpp.Server, prompt: list[int], *, vocab: int = VOCAB
) -> dict[int, float]:
    """llama.cpp's log-probabilities of every next token; none where the likeliest is no text."""
    request = {"prompt": prompt, "max_tokens": 1, "temperature": 0.0, "logprobs": vocab}
    answer = server.handle_completions(request)
    answer = json.loads(answer) if isinstance(answer, str | bytes) else answer
    tokens = (answer["choices"][0]["logprobs"] or {}).get("content", [])
    return {each["id"]: each["logprob"] for token in tokens for each in token["top_logprobs"]}


def top_log_probs(path: Path, prompt: list[int]) -> dict[int, float]:
    return log_probs_of(load(path), prompt)


def infos(types: dict[str, GGMLType]) -> list[TensorInfo]:
    return [TensorInfo(name, shape, types[name]) for name, shape in SHAPES.items()]


def mixed(quant: str) -> list[TensorInfo]:
    return infos(
        {n: tensor_type(n, s, quant=quant, num_layers=NUM_LAYERS) for n, s in SHAPES.items()}
    )


@pytest.mark.parametrize("quant", QUANTS)
@pytest.mark.parametrize("num_shards", [1, 3])
def test_it_runs_every_mix_whole_and_in_shards(tmp_path: Path, quant: str, num_shards: int) -> None:
    metadata = METADATA | {"general.file_type": QUANTS[quant].file_type}
    path, *_ = write_gguf(
        tmp_path / "m.gguf", metadata=metadata, tensors=mixed(quant), seed=0, num_shards=num_shards
    )
    server = load(path)
    first, second = log_probs_of(server, [1, 5, 9]), log_probs_of(server, [1, 9, 5])
    assert len(first) == VOCAB
    assert all(math.isfinite(value) for value in first.values())
    assert first != second


@pytest.mark.parametrize("ggml_type", GGMLType)
def test_it_runs_every_type(tmp_path: Path, ggml_type: GGMLType) -> None:
    path = tmp_path / "m.gguf"
    types = {n: ggml_type if len(s) > 1 else GGMLType.F32 for n, s in SHAPES.items()}
    write_gguf(path, metadata=METADATA, tensors=infos(types), seed=0)
    log_probs = top_log_probs(path, [1, 5, 9])
    assert len(log_probs) == VOCAB
    assert all(math.isfinite(value) for value in log_probs.values())


def test_the_same_seed_is_nearly_the_same_model_in_f32_and_f16(tmp_path: Path) -> None:
    log_probs = []
    for quant in ("f32", "f16"):
        path = tmp_path / f"{quant}.gguf"
        write_gguf(path, metadata=METADATA, tensors=mixed(quant), seed=0)
        log_probs.append(top_log_probs(path, [1, 5, 9, 12, 30]))
    exact, rounded = log_probs
    assert max(abs(exact[token] - rounded[token]) for token in exact) < 0.02


FAMILIES = [
    pytest.param(name, split_kv_b, id=f"{name}{'-split' if split_kv_b else ''}")
    for name in preset_names()
    if name.startswith("tiny")
    for split_kv_b in (False, True)
    if not split_kv_b or isinstance(read_preset(name).geometry.attention, Mla)
]


@pytest.mark.parametrize("quant", ["f16", "q4_k_m"])
@pytest.mark.parametrize(("name", "split_kv_b"), FAMILIES)
def test_it_runs_every_family(tmp_path: Path, name: str, quant: str, split_kv_b: bool) -> None:
    geometry = read_preset(name).geometry
    layout = FileLayout(split_kv_b=split_kv_b)
    path = tmp_path / "m.gguf"
    write_gguf(
        path,
        metadata=file_metadata(name, geometry, quant, layout=layout),
        tensors=file_tensors(geometry, quant=quant, layout=layout),
        seed=0,
    )
    server = load(path)
    prompts = [[1, 300 + token, 400 + token] for token in range(8)]
    answers = [log_probs_of(server, prompt, vocab=geometry.vocab) for prompt in prompts]
    told = [answer for answer in answers if answer]
    assert len(told) >= 3
    assert all(math.isfinite(value) for answer in told for value in answer.values())
    likeliest = {max(answer, key=answer.__getitem__) for answer in told}
    assert len(likeliest) >= len(told) // 2, "the next token hardly depends on the text"
