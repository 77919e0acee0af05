"""Float32 logits of every family against Hugging Face's own code with the same weights."""

from pathlib import Path

import pytest
import torch

from tests.engine.tiny import FAMILIES, load_tiny, placed, some_tokens, write_tiny
from tests.oracles.transformers_model import transformers_model

NUM_PROMPT, NUM_DECODED = 40, 6


@pytest.mark.parametrize("family", FAMILIES)
def test_logits_of_prefill_and_decode_are_those_of_transformers(
    family: str, tiny_folder: Path
) -> None:
    gguf, spec = write_tiny(tiny_folder, family, "f16")
    tokens = some_tokens(spec, NUM_PROMPT + NUM_DECODED)
    expected = transformers_model(gguf, spec)(torch.tensor([tokens])).logits[0]
    bound = 1e-4 * expected.abs().max()
    for prefill_chunk in (7, 64):
        model = load_tiny(gguf, spec, placed(spec), prefill_chunk=prefill_chunk)
        every = model.logits(tokens)
        model.reset()
        prefill = model.prefill(tokens[:NUM_PROMPT])
        decoded = torch.stack([model.decode(token) for token in tokens[NUM_PROMPT:]])
        assert (every - expected).abs().max() <= bound
        assert (prefill - expected[NUM_PROMPT - 1]).abs().max() <= bound
        assert (decoded - expected[NUM_PROMPT:]).abs().max() <= bound
