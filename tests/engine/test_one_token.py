"""A token decoded by half-layer kernels is the one that the modules decode."""

from pathlib import Path

import pytest
import torch

from autoplace.engine.model import HybridModel
from autoplace.engine.one_token import stretches
from autoplace.models.backend import decode_kernels, kernels, slow_twin
from autoplace.models.layer import DecoderLayer
from autoplace.native_decode import Role
from tests.engine.tiny import FAMILIES, load_tiny, placed, some_tokens, write_tiny

pytestmark = pytest.mark.skipif(kernels() is None, reason="no C++ compiler")

NUM_PROMPT = 70
"""With the decoded ones more than one run of 64 positions."""
KV_BOUNDS = {"f32": 1e-5, "f16": 1e-3, "bf16": 1e-2, "q8_0": 2e-2}
"""Of the largest logit: a value halfway between two steps of the cache's type may go either way."""
OPERATORS = {
    "plain": (None, "KExpertsTorch", "cpu"),
    "torch": ("KLinearTorch", "KExpertsTorch", "cpu"),
    "blocks": ("KLinearCPUInfer", "KExpertsCPU", "cpu"),
    "packed": ("KLinearMarlin", "KExpertsMarlin", "cuda:0"),
}


def decoded(model: HybridModel, tokens: list[int], *, by_modules: bool) -> torch.Tensor:
    """Logits of the tokens after the prompt, whose prefill is the same for both."""
    model.reset()
    model.prefill(tokens[:NUM_PROMPT])
    if not by_modules:
        return torch.stack([model.decode(token) for token in tokens[NUM_PROMPT:]])
    with slow_twin():
        return torch.stack([model.decode(token) for token in tokens[NUM_PROMPT:]])


@pytest.mark.parametrize(("kv_type", "bound"), KV_BOUNDS.items())
@pytest.mark.parametrize("family", FAMILIES)
def test_a_token_by_kernels_is_the_token_by_modules(
    family: str, kv_type: str, bound: float, tiny_folder: Path
) -> None:
    gguf, spec = write_tiny(tiny_folder, family, "f16")
    tokens = some_tokens(spec, NUM_PROMPT + 4)
    model = load_tiny(gguf, spec, placed(spec), kv_type=kv_type)
    expected = decoded(model, tokens, by_modules=True)
    got = decoded(model, tokens, by_modules=False)
    assert (got - expected).abs().max() <= bound * expected.abs().max()


@pytest.mark.parametrize("operators", OPERATORS)
@pytest.mark.parametrize("family", ["tiny-v3", "tiny-qwen2moe"])
def test_every_operator_in_host_memory_is_part_of_the_kernels_layer(
    family: str, operators: str, tiny_folder: Path
) -> None:
    """On Q8_0 blocks and packed weights the kernels round x to 8 bits, their twins do not."""
    gguf, spec = write_tiny(tiny_folder, family, "q8_0")
    linear, experts, device = OPERATORS[operators]
    assignment = placed(
        spec, linear=linear, experts=experts, experts_device=device, layer_devices=(device,)
    )
    tokens = some_tokens(spec, NUM_PROMPT + 2)
    model = load_tiny(gguf, spec, assignment)
    layers = [module for module in model.root.modules() if isinstance(module, DecoderLayer)]
    assert all(layer.attention_of_one and layer.feed_forward_of_one for layer in layers)
    expected = decoded(model, tokens, by_modules=True)
    got = decoded(model, tokens, by_modules=False)
    bound = 1e-4 if operators in ("plain", "torch") else 0.1
    assert (got - expected).abs().max() <= bound * expected.abs().max()


def test_the_time_of_a_decoded_token_is_counted_by_role(tiny_folder: Path) -> None:
    gguf, spec = write_tiny(tiny_folder, "tiny", "q8_0")
    model = load_tiny(gguf, spec, placed(spec))
    native = decode_kernels()
    assert native is not None
    native.time_roles(on=True)
    model.decode(5)
    seconds = native.role_seconds()
    native.time_roles(on=False)
    assert all(seconds[role] > 0 for role in Role)


def test_rotations_of_single_positions_are_those_of_the_whole_prompt(tiny_folder: Path) -> None:
    gguf, spec = write_tiny(tiny_folder, "tiny-lite", "f16")
    model = load_tiny(gguf, spec, placed(spec))
    place = model._places[0]
    every = model._forward.turns(0, 70, place)
    for position in (0, 63, 64, 69, 1):
        one = model._forward.turns(position, position + 1, place)
        assert torch.equal(one, every[position : position + 1])


@pytest.mark.parametrize("devices", [("cpu",), ("cuda:0", "cuda:1")])
def test_neighbouring_layers_of_a_device_are_one_call(
    tiny_folder: Path, devices: tuple[str, ...]
) -> None:
    gguf, spec = write_tiny(tiny_folder, "tiny-v3", "q8_0")
    model = load_tiny(gguf, spec, placed(spec, layer_devices=devices))
    assert [place.name for _, place in stretches(model.layers, model.places)] == list(devices)


def test_a_layer_that_the_kernels_do_not_know_stands_between_two_calls(tiny_folder: Path) -> None:
    gguf, spec = write_tiny(tiny_folder, "tiny-v3", "q8_0")
    model = load_tiny(gguf, spec, placed(spec))
    tokens = some_tokens(spec, NUM_PROMPT + 2)
    expected = decoded(model, tokens, by_modules=False)
    middle = model.layers[1]
    assert isinstance(middle, DecoderLayer)
    middle.feed_forward_of_one = None
    apart = stretches(model.layers, model.places)
    assert [call is middle for call, _ in apart] == [False, True, False]
    model._together = apart
    got = decoded(model, tokens, by_modules=False)
    assert (got - expected).abs().max() <= 0.1 * expected.abs().max()
