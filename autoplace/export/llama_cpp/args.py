"""llama.cpp's arguments as one frozen record, and as the words of each of its programs.

Sources: llama.cpp b9993, common/arg.cpp (`llama-server`, `llama-cli`, `llama-fit-params` and the
rest of the tools) and tools/llama-bench/llama-bench.cpp, which parses by itself: lists there are
separated by `/` and `;`, since `,` means one more test, and switches take 0 or 1.
"""

import shlex
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import PurePath
from typing import Final

from autoplace.errors import AutoplaceError
from autoplace.export.llama_cpp.options import BENCH_OF_EXTRA, BENCH_SAME

BENCH: Final = "llama-bench"
KV_TYPE_NAMES = ("f32", "f16", "bf16", "q8_0", "q4_0", "q4_1", "iq4_nl", "q5_0", "q5_1")
"""common/arg.cpp's `kv_cache_types`; llama-bench takes all of them but f32."""
FLASH_ATTENTION = ("on", "off", "auto")
SPLIT_MODES = ("none", "layer", "row", "tensor")
DEFAULT_BATCH, DEFAULT_UBATCH = 2048, 512


@dataclass(frozen=True)
class LlamaCppArgs:
    """What decides where llama.cpp puts a model and how it runs it; defaults are llama.cpp's.

    A word that says nothing new is not written. `None` leaves the choice to llama.cpp.
    """

    n_gpu_layers: int | None = None
    """Layers on devices, the output counted as one; None: all of them, or what `fit` makes of it.
    `num_layers + 1` or more is all."""
    tensor_split: tuple[float, ...] = ()
    """Share of each device, in order; empty: by free memory."""
    overrides: tuple[tuple[str, str], ...] = ()
    """Pattern and buffer (`CPU`, `CUDA0`, `RPC0[127.0.0.1:50052]`): the first pattern that is
    found in a tensor's name wins."""
    cache_type_k: str = "f16"
    cache_type_v: str = "f16"
    batch: int = DEFAULT_BATCH
    """Tokens of a logical batch."""
    ubatch: int = DEFAULT_UBATCH
    """Tokens of a physical batch: what compute buffers grow with."""
    threads: int | None = None
    threads_batch: int | None = None
    """For prompts; None: the same as `threads`."""
    flash_attn: str = "auto"
    context: int | None = None
    """Tokens of the cache; llama-bench has no such word, its cache is what its test needs."""
    main_gpu: int = 0
    split_mode: str = "layer"
    mmap: bool = True
    kv_offload: bool = True
    rpc: tuple[str, ...] = ()
    """`host:port` of RPC servers; each becomes a device."""
    devices: tuple[str, ...] = ()
    """Devices to use, by llama.cpp's names; empty: all; `("none",)`: none."""
    fit: bool | None = None
    """Let llama.cpp choose what is not given, by memory. None: the program's default, which is on
    everywhere but in llama-bench."""
    fit_target_mib: int | None = None
    """Memory that `fit` leaves on each device; None: 1024."""
    parallel: int | None = None
    """Sequences at once; None: the program's default, 4 slots in llama-server."""
    model: str | None = None
    """Path of the GGUF file."""
    extra: tuple[str, ...] = ()
    """Words that are passed on as they are, in llama-server's spelling."""

    @property
    def batch_threads(self) -> int | None:
        """Threads that prompts are read with."""
        return self.threads_batch if self.threads_batch is not None else self.threads

    def to_command(self, program: str) -> list[str]:
        """The words that start a program (a path, or a name) with these arguments.

        Raises `AutoplaceError` for what llama-bench cannot say: two numbers of threads, and words
        that it has not.
        """
        is_bench = PurePath(program).name.removesuffix(".exe") == BENCH
        return [program, *(self._bench_words() if is_bench else self._common_words())]

    def line(self, program: str = "llama-server") -> str:
        """The same to paste into a shell."""
        return shlex.join(self.to_command(program))

    def _common_words(self) -> Iterator[str]:
        """`--rpc` first: devices and buffers are looked up as soon as a word is read."""
        yield from _given("--rpc", ",".join(self.rpc))
        yield from self._shared_words(",")
        yield from _given("-c", self.context)
        yield from _given("-tb", self.threads_batch)
        yield from [] if self.mmap else ["--no-mmap"]
        yield from [] if self.kv_offload else ["-nkvo"]
        if self.overrides:
            yield from ("-ot", ",".join(self._override_words(",")))
        if self.fit is not None:
            yield from ("-fit", "on" if self.fit else "off")
        yield from _given("-fitt", self.fit_target_mib)
        yield from _given("-np", self.parallel)
        yield from self.extra

    def _bench_words(self) -> Iterator[str]:
        if self.threads_batch not in (None, self.threads):
            raise AutoplaceError(
                f"{BENCH} has one number of threads, but {self.threads} are for answers and "
                f"{self.threads_batch} for prompts"
            )
        yield from _given("-rpc", ",".join(self.rpc))
        yield from self._shared_words("/")
        yield from [] if self.mmap else ["-mmp", "0"]
        yield from [] if self.kv_offload else ["-nkvo", "1"]
        if self.overrides:
            yield from ("-ot", ";".join(self._override_words(";,")))
        if self.fit:
            yield from ("-fitt", str(self.fit_target_mib or 1024))
        yield from _bench_extra(self.extra)

    def _shared_words(self, separator: str) -> Iterator[str]:
        yield from _given("-m", self.model)
        yield from _given("-dev", separator.join(self.devices))
        yield from _given("-ngl", self.n_gpu_layers)
        yield from _given("-ts", separator.join(f"{share:g}" for share in self.tensor_split))
        yield from _given("-sm", self.split_mode, "layer")
        yield from _given("-mg", self.main_gpu, 0)
        yield from _given("-t", self.threads)
        yield from _given("-b", self.batch, DEFAULT_BATCH)
        yield from _given("-ub", self.ubatch, DEFAULT_UBATCH)
        yield from _given("-ctk", self.cache_type_k, "f16")
        yield from _given("-ctv", self.cache_type_v, "f16")
        yield from _given("-fa", self.flash_attn, "auto")

    def _override_words(self, separators: str) -> Iterator[str]:
        for pattern, buffer in self.overrides:
            bad = set(pattern) & {*separators, "="}
            if bad:
                raise AutoplaceError(
                    f"-ot {pattern}={buffer}: llama.cpp cuts patterns at "
                    f"{' and '.join(sorted(bad))}"
                )
            yield f"{pattern}={buffer}"


def _bench_extra(extra: Sequence[str]) -> Iterator[str]:
    """Other programs' words as llama-bench has them."""
    words = iter(extra)
    for word in words:
        if word in BENCH_OF_EXTRA:
            yield from BENCH_OF_EXTRA[word]
        elif word in BENCH_SAME:
            yield from (word, next(words, ""))
        else:
            raise AutoplaceError(
                f"{BENCH} has no {word} to measure with; leave it out, or measure with "
                "engine.tool=llama-server"
            )


def _given(word: str, value: object, default: object = None) -> list[str]:
    return [] if value in (None, "", default) else [word, str(value)]
