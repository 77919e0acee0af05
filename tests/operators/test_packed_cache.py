"""The cache of packed weights: a hit is the same bytes, and nothing about it can fail a load."""

import os
from pathlib import Path

import pytest
import torch

from autoplace.operators.experts_marlin import KExpertsMarlin
from autoplace.operators.packed_cache import CACHE_VARIABLE, PackedCache
from autoplace.operators.registry import make_experts
from autoplace.weights.ggml import GGMLType
from tests.operators.weights import context, experts_sources, write_weights


def _bytes(n: int, value: int) -> torch.Tensor:
    return torch.full((n,), value, dtype=torch.uint8)


def test_what_was_stored_is_read_back(tmp_path: Path) -> None:
    cache = PackedCache(tmp_path / "packed")
    cache.store("key", _bytes(100, 7))
    target = _bytes(100, 0)
    assert cache.read("key", target)
    assert torch.equal(target, _bytes(100, 7))
    assert not cache.read("other", target)


def test_a_file_of_another_size_is_no_hit(tmp_path: Path) -> None:
    cache = PackedCache(tmp_path / "packed")
    cache.store("key", _bytes(100, 7))
    assert not cache.read("key", _bytes(101, 0))


def test_the_least_recently_used_goes_when_the_limit_is_passed(tmp_path: Path) -> None:
    cache = PackedCache(tmp_path / "packed", limit_bytes=250)
    for age, key in ((30, "old"), (20, "older but used")):
        cache.store(key, _bytes(100, 1))
        path = max(cache.folder.glob("*.bin"), key=lambda p: p.stat().st_mtime)
        os.utime(path, (path.stat().st_atime, path.stat().st_mtime - age))
    assert cache.read("older but used", _bytes(100, 0))
    cache.store("new", _bytes(100, 2))
    assert not cache.read("old", _bytes(100, 0))
    assert cache.read("older but used", _bytes(100, 0))


def test_a_folder_that_cannot_be_written_costs_nothing_but_time(tmp_path: Path) -> None:
    in_the_way = tmp_path / "file"
    in_the_way.write_text("")
    cache = PackedCache(in_the_way / "packed")
    cache.store("key", _bytes(100, 7))
    assert not cache.read("key", _bytes(100, 0))


def test_packed_experts_from_the_cache_are_those_that_were_packed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(CACHE_VARIABLE, str(tmp_path / "cache"))
    sources = experts_sources(write_weights(tmp_path, GGMLType.Q4_K))
    first = make_experts("KExpertsMarlin", context(torch.bfloat16, gpu=True), sources)
    files = sorted((tmp_path / "cache" / "packed").glob("*.bin"))
    assert len(files) == 3
    second = make_experts("KExpertsMarlin", context(torch.bfloat16, gpu=True), sources)
    assert isinstance(first, KExpertsMarlin)
    assert isinstance(second, KExpertsMarlin)
    for one, other in zip(first.weights, second.weights, strict=True):
        assert torch.equal(one.blocks, other.blocks)


def test_another_number_of_bits_is_another_entry(tmp_path: Path) -> None:
    sources = experts_sources(write_weights(tmp_path, GGMLType.Q4_K))
    for num_bits in (4, 8):
        made = context(torch.bfloat16, gpu=True, num_bits=num_bits)
        make_experts("KExpertsMarlin", made, sources)
    assert len(list(PackedCache.default().folder.glob("*.bin"))) == 6
