"""Builds the CPU kernels of kernels/cpu once and gives them a typed face of raw pointers.

y[T, N] = x[T, K] · W[N, K]ᵀ.  T tokens, K in features, N out features, E experts, A experts a
token, H model width, I intermediate width. Pointers are integers (`tensor.data_ptr()`,
`array.ctypes.data`) to memory that is contiguous, rows first, and stays alive during the call; the
GIL is released meanwhile. The library knows nothing of torch.
"""

import ctypes
import fcntl
import functools
import hashlib
import os
import platform
import shutil
import subprocess
import tempfile
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from enum import IntEnum
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from autoplace.errors import AutoplaceError

KERNELS_DIR = Path(__file__).parent / "kernels"
FLAGS = ("-std=c++17", "-O3", "-fPIC", "-pthread", "-ffp-contract=off", "-fvisibility=hidden")
_AVX2 = ("-mavx2", "-mfma", "-mf16c")
_AVX512 = ("-mavx512f", "-mavx512bw", "-mavx512vl", "-mavx512dq", "-mavx512vnni")
_AVX512_BF16 = (*_AVX2, *_AVX512, "-mavx512bf16")
PATH_FLAGS = {
    "path_avx2.cpp": _AVX2,
    "path_avx512.cpp": (*_AVX2, *_AVX512),
    "path_bf16.cpp": _AVX512_BF16,
    "path_amx.cpp": (*_AVX512_BF16, "-mamx-tile", "-mamx-bf16"),
}
"""Only these files may use more than the baseline of the machine; they run where the CPU has it."""

PATHS = ("scalar", "avx2", "avx512", "amx")
MARLIN_GROUP = 64
_MARLIN_FORMATS = {4: 1004, 8: 1008}
_INTERLEAVED = 2000
_TILE_ROWS = 16
F32, BF16 = 0, 30
"""Element types of activations, as GGML numbers them: a `GGMLType` may be given wherever a type is
asked for (this module stands left of `weights` and cannot name it)."""


class BuildError(AutoplaceError):
    """The compiler refused the kernels."""


def compiler() -> str | None:
    """The C++ compiler: `CXX`, else c++, g++ or clang++; None where there is none."""
    wanted = os.environ.get("CXX")
    names = (wanted,) if wanted else ("c++", "g++", "clang++")
    return next((found for name in names if (found := shutil.which(name))), None)


def cache_dir() -> Path:
    """Where builds are kept: `AUTOPLACE_CACHE`, else the user's cache directory."""
    if wanted := os.environ.get("AUTOPLACE_CACHE"):
        return Path(wanted)
    base = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(base) / "autoplace"


def library_key(compiler_version: str) -> str:
    """Hash of all sources, flags, the machine's architecture and the compiler's version."""
    digest = hashlib.sha256()
    for path in _sources((".cpp", ".hpp", ".h", ".inc")):
        digest.update(path.name.encode() + b"\0" + path.read_bytes() + b"\0")
    told = (FLAGS, _extra_flags(), sorted(PATH_FLAGS.items()), platform.machine(), compiler_version)
    digest.update(repr(told).encode())
    return digest.hexdigest()[:20]


def build() -> Path | None:
    """The shared library's path, built if need be; None where there is no compiler.

    Raises `BuildError` with the compiler's first error line.
    """
    command = compiler()
    if prebuilt := _prebuilt():
        return prebuilt
    if command is None:
        return None
    target = cache_dir() / f"kernels-{library_key(_version(command))}.so"
    if target.exists():
        return target
    target.parent.mkdir(parents=True, exist_ok=True)
    with _locked(target.with_suffix(".lock")):
        if not target.exists():
            _compile(command, target)
    return target


def build_prebuilt() -> Path:
    """Builds the library into the package, for a wheel; used wherever the sources still match."""
    command = compiler()
    if command is None:
        raise BuildError("expected a C++ compiler (CXX, c++, g++ or clang++) but found none")
    target = KERNELS_DIR / "prebuilt" / f"kernels-{library_key('prebuilt')}.so"
    target.parent.mkdir(exist_ok=True)
    _compile(command, target)
    return target


def _prebuilt() -> Path | None:
    target = KERNELS_DIR / "prebuilt" / f"kernels-{library_key('prebuilt')}.so"
    return target if target.exists() else None


def _sources(suffixes: Sequence[str]) -> list[Path]:
    folders = (KERNELS_DIR / "cpu", KERNELS_DIR / "include")
    found = (path for folder in folders for path in folder.rglob("*"))
    return sorted(path for path in found if path.suffix in suffixes)


def _extra_flags() -> tuple[str, ...]:
    """`AUTOPLACE_CXXFLAGS`: for sanitizers and debugging; part of the library's key."""
    return tuple(os.environ.get("AUTOPLACE_CXXFLAGS", "").split())


@functools.cache
def _version(command: str) -> str:
    told = subprocess.run([command, "--version"], capture_output=True, text=True, check=False)
    return told.stdout


def _compile(command: str, target: Path) -> None:
    with tempfile.TemporaryDirectory(dir=target.parent, prefix="build-") as folder:
        sources = _sources((".cpp",))
        sources.sort(key=lambda path: path.name not in PATH_FLAGS)  # the slow ones first
        objects = [Path(folder) / f"{source.stem}.o" for source in sources]
        with ThreadPoolExecutor(max_workers=min(4, os.cpu_count() or 1)) as pool:
            list(pool.map(functools.partial(_compile_one, command), sources, objects))
        library = Path(folder) / target.name
        flags = ("-shared", "-pthread", *_extra_flags())
        _run([command, *flags, *map(str, objects), "-o", str(library)])
        library.replace(target)


def _compile_one(command: str, source: Path, target: Path) -> None:
    x86 = platform.machine() in ("x86_64", "AMD64")
    own = PATH_FLAGS.get(source.name, ()) if x86 else ()
    flags = (*FLAGS, *_extra_flags(), *(own if _knows(command, own) else ()))
    include = str(KERNELS_DIR / "include")
    _run([command, *flags, "-I", include, "-c", str(source), "-o", str(target)])


@functools.cache
def _knows(command: str, flags: tuple[str, ...]) -> bool:
    """Whether the compiler has these target flags: a path that it has not is left out."""
    probe = [command, *flags, "-E", "-x", "c++", os.devnull]
    return not flags or subprocess.run(probe, capture_output=True, check=False).returncode == 0


def _run(arguments: list[str]) -> None:
    done = subprocess.run(arguments, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        lines = [line for line in done.stderr.splitlines() if "error" in line] or [done.stderr]
        raise BuildError(f"{arguments[0]} could not build the CPU kernels: {lines[0].strip()}")


@contextmanager
def _locked(path: Path) -> Iterator[None]:
    """Holds a lock file, so that of two processes one builds and the other waits."""
    with path.open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


@dataclass(frozen=True)
class Weights:
    """A weight matrix [N, K], or a stack of experts' matrices, in memory."""

    ptr: int
    ggml_type: int | None
    """None: the packed Marlin format, with `num_bits`."""
    num_bits: int = 4
    interleaved: bool = False
    """Rows by sixteens, as `Kernels.interleave` writes them."""

    @property
    def format(self) -> int:
        if self.ggml_type is None:
            return marlin_format(self.num_bits)
        return int(self.ggml_type) + (_INTERLEAVED if self.interleaved else 0)

    @property
    def name(self) -> str:
        if self.ggml_type is None:
            return f"marlin-{self.num_bits}"
        return f"{'interleaved ' if self.interleaved else ''}{_name(self.ggml_type)}"


def marlin_format(num_bits: int) -> int:
    """The library's code of the packed format. Raises `AutoplaceError` but for 4 and 8 bits."""
    if num_bits not in _MARLIN_FORMATS:
        raise AutoplaceError(f"expected 4 or 8 bits but got {num_bits=}")
    return _MARLIN_FORMATS[num_bits]


def marlin_bytes(out_features: int, in_features: int, num_bits: int = 4) -> int:
    """Bytes of a packed [N, K] matrix: N to 64 and K to 128 padded, codes and bf16 scales."""
    marlin_format(num_bits)
    n, k = -(-out_features // 64) * 64, -(-in_features // 128) * 128
    return n * k * num_bits // 8 + k // MARLIN_GROUP * n * 2


class Kernels:
    """The loaded library. Every method checks types and shapes and raises `AutoplaceError`."""

    def __init__(self, library: ctypes.CDLL) -> None:
        self.library = self._lib = library
        for name, (result, arguments) in _SIGNATURES.items():
            function = getattr(library, name)
            function.restype, function.argtypes = result, arguments

    @property
    def path(self) -> str:
        """The instruction-set path in use: one of `PATHS`."""
        name: bytes = self._lib.ap_path()
        return name.decode()

    def set_path(self, name: str) -> None:
        """Forces a path. Raises `AutoplaceError` where the CPU lacks it."""
        if self._lib.ap_set_path(name.encode()) != 0:
            have = ", ".join(self.paths())
            raise AutoplaceError(f"no CPU path {name!r} on this machine; there are {have}")

    def paths(self) -> tuple[str, ...]:
        """The paths that this CPU has."""
        return tuple(name for name in PATHS if self._lib.ap_path_supported(name.encode()))

    def set_num_threads(self, num_threads: int, *, pin: bool = False) -> None:
        """Threads in all, the caller's included; `pin` binds the others to one CPU each."""
        if self._lib.ap_set_num_threads(num_threads, int(pin)) != 0:
            raise AutoplaceError(f"expected 1 to 4096 threads but got {num_threads=}")

    @property
    def num_threads(self) -> int:
        return int(self._lib.ap_num_threads())

    def matrix_bytes(self, ggml_type: int, out_features: int, in_features: int) -> int:
        """Bytes of [N, K] blocks. Raises `AutoplaceError` where K is no whole number of blocks."""
        size = int(self._lib.ap_matrix_bytes(ggml_type, out_features, in_features))
        if size < 0:
            raise AutoplaceError(
                f"expected rows of whole blocks but got {_name(ggml_type)} with {in_features=}"
            )
        return size

    def linear(
        self,
        x_ptr: int,
        x_dtype: int,
        num_tokens: int,
        in_features: int,
        weights_ptr: int,
        ggml_type: int,
        out_features: int,
        out_ptr: int,
        out_dtype: int = F32,
    ) -> None:
        """out[T, N] = x[T, K] · W[N, K]ᵀ with W as GGUF blocks or plain F32, F16, BF16."""
        weights = Weights(weights_ptr, ggml_type)
        shape = (num_tokens, in_features, out_features)
        self.linear_of(x_ptr, x_dtype, weights, shape, out_ptr, out_dtype)

    def marlin_linear(
        self,
        x_ptr: int,
        x_dtype: int,
        num_tokens: int,
        in_features: int,
        packed_ptr: int,
        num_bits: int,
        out_features: int,
        out_ptr: int,
        out_dtype: int = F32,
    ) -> None:
        """The same with W packed by `marlin_pack`."""
        weights = Weights(packed_ptr, None, num_bits)
        shape = (num_tokens, in_features, out_features)
        self.linear_of(x_ptr, x_dtype, weights, shape, out_ptr, out_dtype)

    def linear_of(
        self,
        x_ptr: int,
        x_dtype: int,
        weights: Weights,
        shape: tuple[int, int, int],
        out_ptr: int,
        out_dtype: int = F32,
    ) -> None:
        """out[T, N] = x[T, K] · W[N, K]ᵀ with W in any form; `shape` is (T, K, N)."""
        t, k, n = shape
        code = self._lib.ap_linear(
            x_ptr, x_dtype, t, k, weights.ptr, weights.format, n, out_ptr, out_dtype
        )
        if code:
            what = f"linear of x [{t}, {k}] {_name(x_dtype)} with {weights.name} [{n}, {k}] to"
            _check(code, f"{what} {_name(out_dtype)}")

    def experts(
        self,
        x_ptr: int,
        x_dtype: int,
        num_tokens: int,
        hidden: int,
        ids_ptr: int,
        router_weights_ptr: int,
        experts_per_token: int,
        num_experts: int,
        intermediate: int,
        gate: Weights,
        up: Weights,
        down: Weights,
        out_ptr: int,
        out_dtype: int = F32,
    ) -> None:
        """out[T, H] = Σ weights[T, A] · down(silu(gate(x)) · up(x)) over the experts ids[T, A].

        ids are int64, router weights float32; gate and up are [E, I, H], down is [E, H, I], each in
        one block of memory, in GGUF blocks, floats or packed. An expert may occur twice in a row.
        """
        rejected = ctypes.c_int64(0)
        code = self._lib.ap_experts(
            *(x_ptr, x_dtype, num_tokens, hidden, ids_ptr, router_weights_ptr),
            *(experts_per_token, num_experts, intermediate),
            *(gate.ptr, gate.format, up.ptr, up.format, down.ptr, down.format),
            *(out_ptr, out_dtype, ctypes.byref(rejected)),
        )
        if code == _BAD_EXPERT:
            raise AutoplaceError(
                f"expected expert ids in [0, {num_experts}) but got {rejected.value}"
            )
        if code:
            what = f"{num_experts} experts [{intermediate}, {hidden}] as {gate.name}, {up.name}"
            _check(code, f"{what}, {down.name} for x [{num_tokens}, {hidden}] {_name(x_dtype)}")

    def interleave_pays(self, ggml_type: int, out_features: int, in_features: int) -> bool:
        """Whether the path in use multiplies [N, K] faster from interleaved rows."""
        return bool(self._lib.ap_interleave_pays(ggml_type, out_features, in_features))

    def interleave(
        self, src_ptr: int, weights: Weights, out_features: int, in_features: int
    ) -> None:
        """Rearranges [N, K] blocks at `src_ptr` into `weights.ptr`, which has as many bytes.

        Sixteen rows lie side by side then. N must be a multiple of 16.
        """
        code = self._lib.ap_interleave(
            src_ptr, weights.ggml_type, out_features, in_features, weights.ptr
        )
        _check(code, f"interleaving {weights.name} [{out_features}, {in_features}] (rows by 16)")

    def deinterleave(
        self, weights: Weights, out_features: int, in_features: int, dst_ptr: int
    ) -> None:
        """What `interleave` was given."""
        code = self._lib.ap_deinterleave(
            weights.ptr, weights.ggml_type, out_features, in_features, dst_ptr
        )
        _check(code, f"restoring {weights.name} [{out_features}, {in_features}] (rows by 16)")

    def marlin_pack(
        self,
        rows_ptr: int,
        first_row: int,
        num_rows: int,
        out_features: int,
        in_features: int,
        num_bits: int,
        packed_ptr: int,
    ) -> None:
        """Quantises float32 rows [first_row, first_row + num_rows) of [N, K] into their place.

        `packed_ptr` is the whole matrix's, `marlin_bytes` long. Chunks begin at a multiple of 16
        and, but for the last, hold one. Padding is written with the last chunk.
        """
        code = self._lib.ap_marlin_pack(
            *(rows_ptr, first_row, num_rows, out_features, in_features),
            *(marlin_format(num_bits), packed_ptr),
        )
        what = f"rows [{first_row}, {first_row + num_rows}) of [{out_features}, {in_features}]"
        _check(code, f"packing {what} (chunks are multiples of {_TILE_ROWS} rows)")

    def dequantize(
        self,
        src_ptr: int,
        ggml_type: int,
        n: int,
        dst_ptr: int,
        dst_dtype: int = F32,
    ) -> None:
        """`n` weights, a whole number of blocks, to float32 (bit-exact with gguf-py) or bf16."""
        code = self._lib.ap_dequantize(src_ptr, ggml_type, n, dst_ptr, dst_dtype)
        _check(code, f"dequantising {n} weights of {_name(ggml_type)} to {_name(dst_dtype)}")

    def read(self, data: NDArray[np.uint8]) -> int:
        """Reads an array with all threads; its time is the machine's read bandwidth."""
        return int(self._lib.ap_read(data.ctypes.data, data.nbytes))


_BAD_EXPERT = 3
_PROBLEMS = {1: "unknown type", 2: "impossible shape", 4: "not enough host memory"}
_INT, _LONG, _POINTER = ctypes.c_int, ctypes.c_int64, ctypes.c_void_p
_SIGNATURES: dict[str, tuple[object, list[object]]] = {
    "ap_path": (ctypes.c_char_p, []),
    "ap_set_path": (_INT, [ctypes.c_char_p]),
    "ap_path_supported": (_INT, [ctypes.c_char_p]),
    "ap_set_num_threads": (_INT, [_INT, _INT]),
    "ap_num_threads": (_INT, []),
    "ap_matrix_bytes": (_LONG, [_INT, _LONG, _LONG]),
    "ap_dequantize": (_INT, [_POINTER, _INT, _LONG, _POINTER, _INT]),
    "ap_linear": (_INT, [_POINTER, _INT, _LONG, _LONG, _POINTER, _INT, _LONG, _POINTER, _INT]),
    "ap_marlin_pack": (_INT, [_POINTER, _LONG, _LONG, _LONG, _LONG, _INT, _POINTER]),
    "ap_experts": (
        _INT,
        [
            *(_POINTER, _INT, _LONG, _LONG, _POINTER, _POINTER, _LONG, _LONG, _LONG),
            *(_POINTER, _INT) * 3,
            *(_POINTER, _INT, _POINTER),
        ],
    ),
    "ap_interleave_pays": (_INT, [_INT, _LONG, _LONG]),
    "ap_interleave": (_INT, [_POINTER, _INT, _LONG, _LONG, _POINTER]),
    "ap_deinterleave": (_INT, [_POINTER, _INT, _LONG, _LONG, _POINTER]),
    "ap_read": (ctypes.c_uint64, [_POINTER, _LONG]),
}


def _name(ggml_type: int) -> str:
    if isinstance(ggml_type, IntEnum):
        return ggml_type.name
    return {F32: "F32", BF16: "BF16"}.get(ggml_type, f"type {ggml_type}")


def _check(code: int, what: str) -> None:
    if code != 0:
        raise AutoplaceError(f"{_PROBLEMS[code]}: {what}")


@functools.cache
def load() -> Kernels | None:
    """The kernels, built on first use; None where no compiler is at hand (say so where it matters).

    `AUTOPLACE_CPU_PATH` forces one of `PATHS`; an `AutoplaceError` says where the CPU lacks it.
    """
    library = build()
    if library is None:
        return None
    kernels = Kernels(ctypes.CDLL(str(library)))
    if wanted := os.environ.get("AUTOPLACE_CPU_PATH"):
        kernels.set_path(wanted)
    return kernels


def linear_of_arrays(
    kernels: Kernels,
    x: NDArray[np.float32],
    weights: NDArray[np.uint8],
    ggml_type: int,
    out_features: int,
) -> NDArray[np.float32]:
    """x [T, K] · W [N, K]ᵀ → [T, N] for numpy arrays; W is the bytes of its blocks."""
    t, k = x.shape
    expected = kernels.matrix_bytes(ggml_type, out_features, k)
    if x.dtype != np.float32 or not x.flags.c_contiguous or weights.nbytes != expected:
        raise AutoplaceError(
            f"expected contiguous float32 x and {expected} B of {_name(ggml_type)} but got "
            f"{x.dtype} x with strides {x.strides} and {weights.nbytes} B"
        )
    out = np.empty((t, out_features), np.float32)
    data = np.ascontiguousarray(weights)
    kernels.linear(
        *(x.ctypes.data, F32, t, k, data.ctypes.data, ggml_type),
        *(out_features, out.ctypes.data),
    )
    return out
