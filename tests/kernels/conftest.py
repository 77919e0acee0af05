"""The built kernels, on each instruction-set path that this CPU has."""

from collections.abc import Iterator

import pytest

from autoplace import native


@pytest.fixture(scope="session")
def kernels() -> native.Kernels:
    loaded = native.load()
    if loaded is None:
        pytest.skip("no C++ compiler")
    return loaded


@pytest.fixture(params=native.PATHS)
def on_path(kernels: native.Kernels, request: pytest.FixtureRequest) -> Iterator[native.Kernels]:
    if request.param not in kernels.paths():
        pytest.skip(f"this CPU has no {request.param}")
    before = kernels.path
    kernels.set_path(request.param)
    yield kernels
    kernels.set_path(before)
