"""Which llama.cpp is here, and what it is told apart by."""

from pathlib import Path

import pytest

from autoplace.bench.llama_cpp.tools import BENCH, FIT, SERVER, WHEEL, Tools, find_tools
from autoplace.errors import AutoplaceError
from tests.bench.llama_cpp.installed import machine

OLD_HELP = """usage: llama-bench [options]
  -m, --model <filename>
  -ngl, --n-gpu-layers <n>
  -fa, --flash-attn <0|1>                   (default: 0)
"""


def program(folder: Path, name: str, says: str, *, version: str = "") -> Path:
    """A program that answers --version, --list-devices and --help as a build of llama.cpp does."""
    path = folder / name
    answers = f'"--version") echo "{version}" ;; "--list-devices") echo "Available devices:" ;;'
    path.write_text(f"#!/bin/sh\ncase \"$1\" in {answers} *) cat <<'E'\n{says}\nE\n;; esac\n")
    path.chmod(0o755)
    return path


def test_a_given_program_brings_those_beside_it(tmp_path: Path) -> None:
    bench = program(tmp_path, "llama-bench", OLD_HELP)
    program(tmp_path, "llama-fit-params", "", version="version: 4409 (abcdef)")
    tools = find_tools([bench])
    assert set(tools.programs) == {BENCH, FIT}
    assert tools.describe() == "llama-bench version 4409 (abcdef), beside it llama-fit-params"


def test_the_path_comes_before_the_wheel(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    program(tmp_path, "llama-server", "")
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
    assert find_tools().measurer == SERVER
    assert find_tools(tool=WHEEL).measurer == WHEEL


def test_without_programs_the_wheel_is_used_and_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    tools = find_tools()
    assert tools.measurer == WHEEL
    assert tools.wheel is not None
    assert tools.wheel in tools.describe()


def test_a_tool_that_is_asked_for_but_not_there_is_an_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(AutoplaceError, match="needs llama-bench, but found none in the PATH"):
        find_tools(tool=BENCH)


@pytest.mark.parametrize(
    ("name", "message"),
    [("missing", "there is no"), ("main", "takes llama-bench, llama-server")],
)
def test_files_that_are_no_program_of_llama_cpp_are_refused(
    tmp_path: Path, name: str, message: str
) -> None:
    program(tmp_path, "main", "")
    with pytest.raises(AutoplaceError, match=message):
        find_tools([tmp_path / name])


def test_a_program_that_cannot_run_says_so(tmp_path: Path) -> None:
    broken = tmp_path / "llama-bench"
    broken.write_bytes(b"\x7fELF nothing")
    broken.chmod(0o755)
    with pytest.raises(AutoplaceError, match="llama-bench does not run"):
        find_tools([broken])


def old(tmp_path: Path) -> Tools:
    return find_tools([program(tmp_path, "llama-bench", OLD_HELP, version="version: 12 (abc)")])


def test_a_program_too_old_for_an_option_is_named_with_what_it_lacks(tmp_path: Path) -> None:
    with pytest.raises(AutoplaceError) as refused:
        old(tmp_path).programs[BENCH].require(["llama-bench", "-ngl", "-1", "-ot", "x=CPU"])
    assert "llama-bench version 12 (abc) is too old: it knows no -ot" in str(refused.value)


def test_flash_attention_that_was_a_switch_takes_no_word(tmp_path: Path) -> None:
    bench = old(tmp_path).programs[BENCH]
    bench.require(["llama-bench", "-fa", "1"])
    with pytest.raises(AutoplaceError, match="too old for -fa off"):
        bench.require(["llama-bench", "-fa", "off"])


@pytest.mark.parametrize(
    ("hardware", "message"),
    [
        ("rpc-64-128mib", "has no RPC backend, which the devices need"),
        ("emulated-2x2gib", "GPUs that only the builtin engine plays"),
    ],
)
def test_a_build_without_the_devices_backend_is_refused(
    tmp_path: Path, hardware: str, message: str
) -> None:
    with pytest.raises(AutoplaceError, match=message):
        old(tmp_path).require_devices(machine(hardware))


def test_real_gpus_need_a_backend(tmp_path: Path) -> None:
    from autoplace.hardware.machine import Device, Machine

    devices = tuple(Device(name, "x", 1, 0, 1.0, 1.0) for name in ("cpu", "cuda:0", "cuda:1"))
    with pytest.raises(AutoplaceError, match=r"has 2 GPUs, but this build .* devices are none"):
        old(tmp_path).require_devices(Machine("two", devices))
