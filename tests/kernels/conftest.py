"""The built kernels, on each instruction-set path that this CPU has, and on emulated AMX tiles."""

import ctypes
import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from autoplace import native

EMULATED = "amx-emulated"


@pytest.fixture(scope="session")
def kernels() -> native.Kernels:
    loaded = native.load()
    if loaded is None:
        pytest.skip("no C++ compiler")
    return loaded


@pytest.fixture(scope="session")
def emulating_library() -> Path:
    """The same sources with the tile instructions in plain C++: what AMX would run, without AMX."""
    flags = os.environ.get("AUTOPLACE_CXXFLAGS", "-O1")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("AUTOPLACE_CXXFLAGS", f"{flags} -DAUTOPLACE_EMULATE_AMX")
        library = native.build()
    if library is None:
        pytest.skip("no C++ compiler")
    return library


@pytest.fixture(scope="session")
def emulated(emulating_library: Path) -> native.Kernels:
    loaded = native.Kernels(ctypes.CDLL(str(emulating_library)))
    if "amx" not in loaded.paths():
        pytest.skip("this CPU lacks what the amx path needs beside tiles")
    loaded.set_path("amx")
    return loaded


@pytest.fixture(params=(*native.PATHS, EMULATED))
def on_path(request: pytest.FixtureRequest) -> Iterator[native.Kernels]:
    if request.param == EMULATED:
        tiles: native.Kernels = request.getfixturevalue("emulated")
        yield tiles
        return
    kernels: native.Kernels = request.getfixturevalue("kernels")
    if request.param not in kernels.paths():
        pytest.skip(f"this CPU has no {request.param}")
    before = kernels.path
    kernels.set_path(request.param)
    yield kernels
    kernels.set_path(before)
