"""What is measured of machines that only tests know is kept out of the user's cache."""

from pathlib import Path

import pytest


@pytest.fixture(scope="session")
def cache_of_tests(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("cache")


@pytest.fixture(autouse=True)
def _measured_machines(cache_of_tests: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AUTOPLACE_CACHE", str(cache_of_tests))
