"""What is measured of machines that only tests know is kept out of the user's cache."""

from collections.abc import Iterator

import pytest


@pytest.fixture(scope="session", autouse=True)
def cache_of_tests(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("AUTOPLACE_CACHE", str(tmp_path_factory.mktemp("cache")))
        yield
