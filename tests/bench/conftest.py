from collections.abc import Iterator

import pytest

from tests.bench.trial_requests import TinyModel


@pytest.fixture(scope="session")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> TinyModel:
    return TinyModel.written_to(tmp_path_factory.mktemp("tiny"))


@pytest.fixture(scope="session", autouse=True)
def cache(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Neither the user's cache nor the machine's lock is touched."""
    folder = tmp_path_factory.mktemp("cache")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("AUTOPLACE_CACHE", str(folder))
        patch.setenv("AUTOPLACE_LOCK", str(folder / "lock"))
        yield
