"""Building, caching and loading the kernels."""

import os
import shutil
import subprocess
import sys
import threading
import time
from pathlib import Path

import numpy as np
import pytest

from autoplace import native
from autoplace.errors import AutoplaceError

TINY_LIBRARY = 'extern "C" __attribute__((visibility("default"))) int answer() { return 42; }\n'


@pytest.fixture
def tiny_sources(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Kernels of one small file, and an empty cache: builds take a second."""
    folder = tmp_path / "kernels"
    (folder / "cpu").mkdir(parents=True)
    (folder / "include").mkdir()
    (folder / "cpu" / "answer.cpp").write_text(TINY_LIBRARY)
    monkeypatch.setattr(native, "KERNELS_DIR", folder)
    monkeypatch.setenv("AUTOPLACE_CACHE", str(tmp_path / "cache"))
    if native.compiler() is None:
        pytest.skip("no C++ compiler")
    return folder


def test_a_library_is_built_once_into_the_cache(tiny_sources: Path, tmp_path: Path) -> None:
    first = native.build()
    assert first is not None
    assert first.parent == tmp_path / "cache"
    built = first.stat().st_mtime_ns
    assert native.build() == first
    assert first.stat().st_mtime_ns == built
    assert not list(first.parent.glob("build-*"))


def test_a_changed_source_is_another_library(tiny_sources: Path) -> None:
    first = native.build()
    (tiny_sources / "cpu" / "answer.cpp").write_text(TINY_LIBRARY.replace("42", "43"))
    assert native.build() != first


def test_another_compiler_version_is_another_library() -> None:
    assert native.library_key("g++ 12") != native.library_key("g++ 13")


def test_two_builders_at_once_compile_once(
    tiny_sources: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    compiled: list[Path] = []
    compile_really = native._compile

    def count_and_compile(command: str, target: Path) -> None:
        compiled.append(target)
        compile_really(command, target)

    monkeypatch.setattr(native, "_compile", count_and_compile)
    threads = [threading.Thread(target=native.build) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(compiled) == 1


def test_without_a_compiler_there_is_no_library(
    tiny_sources: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", "")
    monkeypatch.delenv("CXX", raising=False)
    assert native.compiler() is None
    assert native.build() is None


def test_a_prebuilt_library_serves_without_a_compiler_while_its_sources_match(
    tiny_sources: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    prebuilt = native.build_prebuilt()
    monkeypatch.setenv("PATH", "")
    monkeypatch.delenv("CXX", raising=False)
    assert native.build() == prebuilt
    (tiny_sources / "cpu" / "answer.cpp").write_text(TINY_LIBRARY.replace("42", "43"))
    assert native.build() is None


def test_a_compiler_that_fails_says_what_it_said(tiny_sources: Path) -> None:
    (tiny_sources / "cpu" / "answer.cpp").write_text("int answer() { return forty_two; }\n")
    with pytest.raises(native.BuildError, match=r"error: .*forty_two"):
        native.build()


def test_cxx_names_the_compiler(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    mine = tmp_path / "my-c++"
    mine.write_text("#!/bin/sh\n")
    mine.chmod(0o755)
    monkeypatch.setenv("CXX", str(mine))
    assert native.compiler() == str(mine)


def run_python(code: str, **environment: str) -> subprocess.CompletedProcess[str]:
    env = {**os.environ, **environment}
    return subprocess.run(
        [sys.executable, "-c", code], env=env, capture_output=True, text=True, check=False
    )


@pytest.fixture(scope="session")
def loaded() -> native.Kernels:
    kernels = native.load()
    if kernels is None:
        pytest.skip("no C++ compiler")
    return kernels


def test_the_environment_forces_a_path(loaded: native.Kernels) -> None:
    code = "from autoplace import native; k = native.load(); print(k.path)"
    done = run_python(code, AUTOPLACE_CPU_PATH="scalar")
    assert done.stdout.strip() == "scalar"


def test_a_path_that_the_cpu_lacks_is_refused_with_those_it_has(loaded: native.Kernels) -> None:
    with pytest.raises(AutoplaceError, match="no CPU path 'avx1024' on this machine; there are sc"):
        loaded.set_path("avx1024")


@pytest.mark.parametrize("num_threads", [0, -1, 5000])
def test_impossible_thread_counts_are_refused(loaded: native.Kernels, num_threads: int) -> None:
    with pytest.raises(
        AutoplaceError, match=f"1 to 4096 threads but got num_threads={num_threads}"
    ):
        loaded.set_num_threads(num_threads)


PRODUCT = """
import os, sys
import numpy as np
from autoplace import native
k = native.load()
k.set_num_threads(3)
x, w = np.ones((1, 256), np.float32), np.ones((512, 256), np.float32)
def product():
    return native.linear_of_arrays(k, x, w.view(np.uint8).reshape(-1), 0, 512).sum()
assert product() == 512 * 256
"""


def test_a_forked_child_makes_its_own_threads(loaded: native.Kernels) -> None:
    code = PRODUCT + (
        "child = os.fork()\n"
        "if child == 0:\n"
        "    os._exit(0 if product() == 512 * 256 else 1)\n"
        "status = os.waitpid(child, 0)[1]\n"
        "sys.exit(int(status != 0 or product() != 512 * 256))\n"
    )
    assert run_python(code).returncode == 0


def test_callers_in_several_threads_do_not_disturb_each_other(loaded: native.Kernels) -> None:
    code = PRODUCT + (
        "from concurrent.futures import ThreadPoolExecutor\n"
        "with ThreadPoolExecutor(4) as pool:\n"
        "    sums = list(pool.map(lambda _: product(), range(200)))\n"
        "assert sums == [512 * 256] * 200\n"
    )
    done = run_python(code)
    assert done.returncode == 0, done.stderr


def test_idle_workers_sleep(loaded: native.Kernels) -> None:
    """After a kernel, half a second of waiting costs the process next to no CPU time."""
    x, w = np.ones((1, 256), np.float32), np.ones((512, 256), np.float32)
    loaded.set_num_threads(2)
    native.linear_of_arrays(loaded, x, w.view(np.uint8).reshape(-1), 0, 512)
    before = time.process_time()
    time.sleep(0.5)
    assert time.process_time() - before < 0.1


def test_wide_registers_occur_only_in_functions_no_other_file_can_share(
    loaded: native.Kernels,
) -> None:
    """An inline function compiled twice is kept once: were it the AVX one, old CPUs would fault."""
    objdump, library = shutil.which("objdump"), native.build()
    if objdump is None or library is None or "avx2" not in loaded.paths():
        pytest.skip("needs objdump and an x86 library")
    told = subprocess.run([objdump, "-d", str(library)], capture_output=True, text=True, check=True)
    function, wide = "", set()
    for line in told.stdout.splitlines():
        if line.endswith(">:"):
            function = line.split("<")[1][:-2]
        elif "%ymm" in line or "%zmm" in line:
            wide.add(function)
    assert wide
    assert not [name for name in wide if "_GLOBAL__N_" not in name]
