"""How far a placement's logits are from the reference operators', on fixed tokens."""

import hashlib
import json
import os
import tempfile
from collections.abc import Callable
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from autoplace import __version__
from autoplace.bench.metrics import Quality
from autoplace.native import cache_dir
from autoplace.weights.gguf_file import GGUFFile

ROWS_AT_ONCE = 16
"""Positions compared at a time: the comparison runs in float64."""


def quality_tokens(vocab_size: int, num_tokens: int, seed: int) -> list[int]:
    """The same tokens for every placement of a model."""
    drawn = np.random.default_rng([seed, num_tokens]).integers(0, vocab_size, num_tokens)
    return [int(token) for token in drawn]


def compare(logits: Tensor, reference: Tensor) -> Quality:
    """Mean KL(reference ‖ logits) in nats and share of equal best tokens. Both are [T, V]."""
    assert logits.shape == reference.shape, (logits.shape, reference.shape)
    total_kl, num_equal = 0.0, 0
    for start in range(0, len(reference), ROWS_AT_ONCE):
        ours = logits[start : start + ROWS_AT_ONCE].to("cpu", torch.float64).log_softmax(-1)
        theirs = reference[start : start + ROWS_AT_ONCE].to(torch.float64).log_softmax(-1)
        total_kl += float((theirs.exp() * (theirs - ours)).sum())
        num_equal += int((ours.argmax(-1) == theirs.argmax(-1)).sum())
    num_positions = len(reference)
    return Quality(max(0.0, total_kl / num_positions), num_equal / num_positions, num_positions)


def reference_path(gguf: GGUFFile, *, fingerprint: str, num_tokens: int, seed: int) -> Path:
    """Where the reference logits of a model file are cached.

    Keyed by what the files are on this disk: name, size and time of change.
    """
    files = [
        (str(path.resolve()), path.stat().st_size, path.stat().st_mtime_ns) for path in gguf.paths
    ]
    key = json.dumps([__version__, fingerprint, num_tokens, seed, files])
    name = hashlib.sha256(key.encode()).hexdigest()[:24]
    return cache_dir() / "reference" / f"{name}.npy"


def cached_logits(path: Path, compute: Callable[[], Tensor]) -> Tensor:
    """The logits [T, V] at `path`, computed and put there if they are not there yet.

    A cache that cannot be written costs time, not the trial.
    """
    if path.exists():
        return torch.from_numpy(np.load(path, allow_pickle=False))
    logits = compute().to("cpu", torch.float32)
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.NamedTemporaryFile(dir=path.parent, delete=False) as file:
            np.save(file, logits.numpy(), allow_pickle=False)
        os.replace(file.name, path)
    except OSError:
        return logits
    return logits
