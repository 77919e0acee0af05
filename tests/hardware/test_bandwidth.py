import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from autoplace.hardware.bandwidth import host_bandwidth, measure_copy


@pytest.fixture(autouse=True)
def nothing_known(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setenv("AUTOPLACE_CACHE", str(tmp_path / "cache"))
    host_bandwidth.cache_clear()
    yield
    host_bandwidth.cache_clear()


def test_a_copy_takes_longer_than_light_and_shorter_than_a_disk() -> None:
    assert 0.5e9 < measure_copy(1) < 500e9


def test_what_was_measured_once_is_kept(tmp_path: Path) -> None:
    first = host_bandwidth("Some-CPU", 1)
    kept = json.loads((tmp_path / "cache" / "host-bandwidth.json").read_text())
    assert kept == {"Some-CPU, 1 cores": first}
    host_bandwidth.cache_clear()
    assert host_bandwidth("Some-CPU", 1) == first


@pytest.mark.parametrize("content", ["", "[]", '{"Some-CPU, 1 cores": "fast"}', "{"])
def test_a_damaged_file_is_measured_anew(tmp_path: Path, content: str) -> None:
    path = tmp_path / "cache" / "host-bandwidth.json"
    path.parent.mkdir()
    path.write_text(content)
    assert host_bandwidth("Some-CPU", 1) > 0


def test_a_cache_that_cannot_be_written_does_not_matter(tmp_path: Path) -> None:
    (tmp_path / "cache").write_text("in the way")
    assert host_bandwidth("Some-CPU", 1) > 0
