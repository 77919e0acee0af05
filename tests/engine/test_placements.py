"""The same model under different placements gives the same logits, up to its operators' error."""

from dataclasses import replace
from pathlib import Path

import pytest
import torch

from autoplace.architectures.family import FileLayout
from autoplace.architectures.registry import file_metadata, file_tensors, spec_from_gguf
from autoplace.engine.reference import reference_logits
from autoplace.models.place import checked_places
from autoplace.weights.gguf_file import GGUFFile
from autoplace.weights.synthesize import write_gguf
from tests.engine.tiny import FAMILIES, load_tiny, placed, some_tokens, write_tiny
from tests.oracles.transformers_model import transformers_model

GPUS = ("cuda:0", "cuda:1")
BOUNDS = {
    ("KLinearTorch", "KExpertsTorch"): 1e-4,
    ("KLinearTorch", "KExpertsCPU"): 1e-4,
    ("KLinearCPUInfer", "KExpertsCPU"): 1e-4,
    ("KLinearMarlin", "KExpertsMarlin"): 0.7,
}
"""Of the largest logit, on an F16 file: only Marlin re-quantises, here random weights at 4 bits."""


@pytest.mark.parametrize(("linear", "experts"), BOUNDS)
@pytest.mark.parametrize("family", ["tiny", "tiny-v3", "tiny-qwen2moe", "tiny-llama"])
def test_two_emulated_gpus_give_the_references_logits(
    family: str, linear: str, experts: str, tiny_folder: Path
) -> None:
    gguf, spec = write_tiny(tiny_folder, family, "f16")
    tokens = some_tokens(spec, 30)
    expected = reference_logits(gguf, spec, tokens, "float32")
    assignment = placed(
        spec,
        linear=linear,
        experts=experts,
        linear_device="cpu" if linear == "KLinearCPUInfer" else None,
        experts_device="cpu" if experts == "KExpertsCPU" else "cuda:1",
        layer_devices=GPUS,
    )
    with checked_places():
        model = load_tiny(gguf, spec, assignment, prefill_chunk=11)
        prefill = model.logits(tokens[:-2])
        decoded = torch.stack([model.decode(token) for token in tokens[-2:]])
    got = torch.cat((prefill, decoded))
    bound = BOUNDS[linear, experts] * expected.abs().max()
    assert (got - expected).abs().max() <= bound


@pytest.mark.parametrize("num_bits", [4, 8])
def test_marlin_at_8_bits_is_nearer_than_at_4(num_bits: int, tiny_folder: Path) -> None:
    """Mean KL against the reference, in nats: the cost of re-quantising random weights."""
    gguf, spec = write_tiny(tiny_folder, "tiny-llama", "f16")
    tokens = some_tokens(spec, 30)
    expected = reference_logits(gguf, spec, tokens, "float32").log_softmax(-1)
    assignment = placed(
        spec, linear="KLinearMarlin", layer_devices=GPUS, kwargs={"num_bits": num_bits}
    )
    got = load_tiny(gguf, spec, assignment).logits(tokens).log_softmax(-1)
    kl = torch.nn.functional.kl_div(got, expected, reduction="batchmean", log_target=True)
    assert 0 <= kl < {4: 0.5, 8: 0.003}[num_bits]


@pytest.mark.parametrize("family", FAMILIES)
def test_the_same_placement_gives_the_same_logits_twice(family: str, tiny_folder: Path) -> None:
    gguf, spec = write_tiny(tiny_folder, family, "q8_0")
    tokens = some_tokens(spec, 20)
    assignment = placed(spec, linear="KLinearTorch", experts="KExpertsCPU")
    model = load_tiny(gguf, spec, assignment, dtype="bfloat16", kv_type="f16")
    first = model.logits(tokens)
    model.reset()
    assert torch.equal(model.logits(tokens), first)
    again = load_tiny(gguf, spec, assignment, dtype="bfloat16", kv_type="f16")
    assert torch.equal(again.logits(tokens), first)


@pytest.mark.parametrize(("kv_type", "bound"), [("f16", 1e-3), ("bf16", 2e-2), ("q8_0", 2e-2)])
@pytest.mark.parametrize("family", ["tiny", "tiny-llama"])
def test_a_smaller_cache_type_costs_little(
    family: str, kv_type: str, bound: float, tiny_folder: Path
) -> None:
    gguf, spec = write_tiny(tiny_folder, family, "f16")
    tokens = some_tokens(spec, 30)
    expected = load_tiny(gguf, spec, placed(spec)).logits(tokens)
    model = load_tiny(gguf, spec, placed(spec), kv_type=kv_type)
    got = torch.stack([model.prefill(tokens[:25]), *(model.decode(t) for t in tokens[25:])])
    assert (got - expected[24:]).abs().max() <= bound * expected.abs().max()


def test_experts_can_be_grouped_by_softmax_as_in_deepseek_v2(tiny_folder: Path) -> None:
    gguf, spec = write_tiny(tiny_folder, "tiny", "f16")
    moe = spec.geometry.moe
    assert moe is not None
    grouped = replace(moe, num_groups=4, num_groups_used=2, routed_scaling=3.0)
    spec = replace(spec, geometry=replace(spec.geometry, moe=grouped))
    tokens = some_tokens(spec, 20)
    expected = transformers_model(gguf, spec)(torch.tensor([tokens])).logits[0]
    got = load_tiny(gguf, spec, placed(spec)).logits(tokens)
    assert (got - expected).abs().max() <= 1e-4 * expected.abs().max()


@pytest.mark.parametrize(
    ("family", "layout"),
    [
        ("tiny", FileLayout(split_kv_b=True)),
        ("tiny-mixtral", FileLayout(stacked_experts=False)),
    ],
)
@pytest.mark.parametrize("experts", ["KExpertsCPU", "KExpertsTorch", "KExpertsMarlin"])
def test_files_that_cut_tensors_up_give_finite_logits_near_the_reference(
    family: str, layout: FileLayout, experts: str, tiny_folder: Path, tmp_path: Path
) -> None:
    _, whole = write_tiny(tiny_folder, family, "f16")
    path = tmp_path / "cut.gguf"
    geometry = whole.geometry
    tensors = file_tensors(geometry, quant="f16", layout=layout)
    metadata = file_metadata(family, geometry, "f16", layout=layout)
    write_gguf(path, metadata=metadata, tensors=tensors, seed=0)
    gguf = GGUFFile.open(path)
    spec = spec_from_gguf(gguf)
    tokens = some_tokens(spec, 20)
    expected = reference_logits(gguf, spec, tokens, "float32")
    gpu = "cpu" if experts == "KExpertsCPU" else "cuda:0"
    assignment = placed(spec, experts=experts, experts_device=gpu, layer_devices=GPUS)
    got = load_tiny(gguf, spec, assignment).logits(tokens)
    bound = 0.7 if experts == "KExpertsMarlin" else 1e-4
    assert got.isfinite().all()
    assert (got - expected).abs().max() <= bound * expected.abs().max()
