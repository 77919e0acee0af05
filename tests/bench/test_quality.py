"""KL divergence and agreement by hand, and the reference's cache."""

import os
from math import log
from pathlib import Path

import pytest
import torch

from autoplace.bench.quality import cached_logits, compare, quality_tokens, reference_path
from autoplace.weights.gguf_file import GGUFFile
from tests.bench.trial_requests import TinyModel


def test_equal_logits_have_no_divergence_and_full_agreement() -> None:
    logits = torch.randn(40, 7, generator=torch.Generator().manual_seed(0))
    quality = compare(logits + 3.0, logits)
    assert quality.mean_kl == pytest.approx(0, abs=1e-12)
    assert quality.top1_agreement == 1
    assert quality.num_positions == 40


def test_the_divergence_is_that_of_the_placement_from_the_reference() -> None:
    """Reference (3/4, 1/4), placement (1/2, 1/2): 3/4 ln 3/2 + 1/4 ln 1/2; then equal ones."""
    reference = torch.tensor([[log(3), 0.0], [log(3), 0.0]])
    logits = torch.tensor([[0.0, 0.0], [log(3), 0.0]])
    expected = (0.75 * log(1.5) + 0.25 * log(0.5)) / 2
    assert compare(logits, reference).mean_kl == pytest.approx(expected, rel=1e-6)


def test_agreement_counts_equal_best_tokens() -> None:
    reference = torch.tensor([[1.0, 0.0], [1.0, 0.0], [0.0, 1.0], [0.0, 1.0]])
    logits = torch.tensor([[2.0, 0.0], [0.0, 2.0], [0.0, 2.0], [0.0, 2.0]])
    assert compare(logits, reference).top1_agreement == 0.75


def test_the_tokens_are_fixed_by_the_seed_and_within_the_vocabulary() -> None:
    tokens = quality_tokens(50, 64, seed=3)
    assert tokens == quality_tokens(50, 64, seed=3) != quality_tokens(50, 64, seed=4)
    assert set(tokens) <= set(range(50))


def test_the_reference_is_computed_once(tmp_path: Path) -> None:
    path = tmp_path / "new" / "reference.npy"
    logits = torch.tensor([[1.0, 2.0]])
    assert torch.equal(cached_logits(path, lambda: logits), logits)

    def never() -> torch.Tensor:
        raise AssertionError

    assert torch.equal(cached_logits(path, never), logits)


def test_a_cache_that_cannot_be_written_costs_no_trial(tmp_path: Path) -> None:
    (tmp_path / "taken").touch()
    logits = torch.tensor([[1.0, 2.0]])
    path = tmp_path / "taken" / "reference.npy"
    assert torch.equal(cached_logits(path, lambda: logits), logits)


def test_another_file_another_reference(tiny: TinyModel) -> None:
    gguf = GGUFFile.open(tiny.path)
    path = reference_path(gguf, fingerprint="f", num_tokens=8, seed=0)
    assert path == reference_path(gguf, fingerprint="f", num_tokens=8, seed=0)
    assert path != reference_path(gguf, fingerprint="f", num_tokens=9, seed=0)
    before = tiny.path.stat()
    os.utime(tiny.path, ns=(before.st_atime_ns, before.st_mtime_ns + 1_000_000))
    assert path != reference_path(gguf, fingerprint="f", num_tokens=8, seed=0)
    os.utime(tiny.path, ns=(before.st_atime_ns, before.st_mtime_ns))
