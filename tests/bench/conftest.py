from collections.abc import Iterator

import pytest

from tests.bench.trial_requests import TinyModel, own_cache


@pytest.fixture(scope="session")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> TinyModel:
    return TinyModel.written_to(tmp_path_factory.mktemp("tiny"))


@pytest.fixture(scope="package", autouse=True)
def cache(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    with own_cache(tmp_path_factory.mktemp("cache")):
        yield
