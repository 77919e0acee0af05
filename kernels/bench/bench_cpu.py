"""How fast the CPU kernels are, beside what this machine can read and multiply.

    python kernels/bench/bench_cpu.py [--threads 2] [--path avx2] [--types Q4_K,Q6_K] [--cpu-time]

Batch 1 at DeepSeek-V2-Lite's shapes in GB/s of weight bytes, each call on other weights than the
last so that nothing is found in a cache; batch 512 in GFLOP/s (2·T·N·K). Medians, and in brackets
the spread from the first to the third quartile.
"""

import argparse
import time
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from autoplace import native
from autoplace.weights.ggml import BLOCKS, GGMLType

H, WIDTH, E, A = 2048, 1408, 64, 6  # DeepSeek-V2-Lite's: experts E, A of them a token
LINEAR = (10944, 2048)  # its dense layer's up projection, [N, K]
Blocks = NDArray[np.uint8]


@dataclass(frozen=True)
class Rate:
    """Work done a second, per repeat."""

    per_s: list[float]

    def __str__(self) -> str:
        low, median, high = np.percentile(self.per_s, (25, 50, 75)) / 1e9
        return f"{median:7.2f} [{low:6.2f} {high:6.2f}]"


@dataclass(frozen=True)
class Timer:
    repeats: int
    clock: Callable[[], float]

    def rate(self, work: float, call: Callable[[], object], repeats: int = 0) -> Rate:
        call()
        per_s = []
        for _ in range(repeats or self.repeats):
            begin = self.clock()
            call()
            per_s.append(work / (self.clock() - begin))
        return Rate(per_s)


def plausible_blocks(ggml_type: GGMLType, count: int, rng: np.random.Generator) -> Blocks:
    """Bytes whose scales are small and finite, whatever the layout: no byte above 0x2F."""
    n_bytes = count // BLOCKS[ggml_type][0] * BLOCKS[ggml_type][1]
    return rng.integers(0, 0x30, n_bytes, dtype=np.uint8)


def linear_rates(
    kernels: native.Kernels,
    ggml_type: GGMLType,
    x_type: GGMLType,
    timer: Timer,
    rng: np.random.Generator,
) -> tuple[Rate, Rate]:
    n, k = LINEAR
    copies = max(2, -(-(256 << 20) // kernels.matrix_bytes(ggml_type, n, k)))
    data = plausible_blocks(ggml_type, n * k * copies, rng)
    n_bytes = data.nbytes // copies
    x = rng.standard_normal((512, k), np.float32)
    if x_type == GGMLType.BF16:
        x = (x.view(np.uint32) >> 16).astype(np.uint16)
    out = np.empty((512, n), np.float32)

    def run(num_tokens: int, copy: int) -> None:
        weights = data.ctypes.data + copy * n_bytes
        kernels.linear(
            *(x.ctypes.data, x_type, num_tokens, k, weights, ggml_type, n, out.ctypes.data)
        )

    one = timer.rate(data.nbytes, lambda: each(copies, run))
    many = timer.rate(2.0 * 512 * n * k, lambda: run(512, 0), 3)
    return one, many


def experts_rate(
    kernels: native.Kernels, down: GGMLType, num_tokens: int, timer: Timer, rng: np.random.Generator
) -> Rate:
    """V2-Lite's routed experts, gate and up Q4_K: GB/s at batch 1, else GFLOP/s."""
    gate_up = [plausible_blocks(GGMLType.Q4_K, E * H * WIDTH, rng) for _ in range(2)]
    down_data = plausible_blocks(down, E * H * WIDTH, rng)
    gate, up = (native.Weights(d.ctypes.data, GGMLType.Q4_K) for d in gate_up)
    down_stack = native.Weights(down_data.ctypes.data, down)
    x = rng.standard_normal((num_tokens, H), np.float32)
    out = np.empty((num_tokens, H), np.float32)
    weights = np.full((num_tokens, A), 1 / A, np.float32)
    routings = [
        np.stack([rng.permutation(E)[:A] for _ in range(num_tokens)]) for _ in range(E // A)
    ]

    def run() -> None:
        for ids in routings:
            kernels.experts(
                x.ctypes.data,
                GGMLType.F32,
                num_tokens,
                H,
                ids.ctypes.data,
                weights.ctypes.data,
                A,
                E,
                WIDTH,
                gate,
                up,
                down_stack,
                out.ctypes.data,
            )

    used = sum(d.nbytes for d in (*gate_up, down_data)) * A / E
    work = used if num_tokens == 1 else 2.0 * 3 * H * WIDTH * A * num_tokens
    return timer.rate(work * len(routings), run, 0 if num_tokens == 1 else 3)


def marlin_rates(
    kernels: native.Kernels, num_bits: int, timer: Timer, rng: np.random.Generator
) -> tuple[Rate, Rate]:
    n, k = LINEAR
    n_bytes = native.marlin_bytes(n, k, num_bits)
    copies = -(-(256 << 20) // n_bytes)
    data = rng.integers(0, 0x30, n_bytes * copies, dtype=np.uint8)
    x = rng.standard_normal((512, k), np.float32)
    out = np.empty((512, n), np.float32)

    def run(num_tokens: int, copy: int) -> None:
        weights = data.ctypes.data + copy * n_bytes
        kernels.marlin_linear(
            *(x.ctypes.data, GGMLType.F32, num_tokens, k, weights, num_bits, n, out.ctypes.data)
        )

    one = timer.rate(data.nbytes, lambda: each(copies, run))
    return one, timer.rate(2.0 * 512 * n * k, lambda: run(512, 0), 3)


def each(copies: int, run: Callable[[int, int], None]) -> None:
    for copy in range(copies):
        run(1, copy)


def read_rate(kernels: native.Kernels, timer: Timer) -> Rate:
    data = np.ones(512 << 20, np.uint8)
    return timer.rate(data.nbytes, lambda: kernels.read(data))


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--path", help="scalar, avx2, avx512 or amx; the best one otherwise")
    parser.add_argument("--types", default=",".join(t.name for t in GGMLType))
    parser.add_argument(
        "--cpu-time", action="store_true", help="one thread, by its CPU time: for a busy machine"
    )
    parser.add_argument("--bf16", action="store_true", help="bf16 activations in linears")
    parser.add_argument("--repeats", type=int, default=9)
    return parser.parse_args()


def main() -> None:
    arguments = parse_arguments()
    kernels = native.load()
    if kernels is None:
        raise SystemExit("no C++ compiler, no kernels to measure")
    if arguments.cpu_time:
        arguments.threads = 1
    kernels.set_num_threads(arguments.threads)
    if arguments.path:
        kernels.set_path(arguments.path)
    rng = np.random.default_rng(0)
    x_type = GGMLType.BF16 if arguments.bf16 else GGMLType.F32
    clock = time.thread_time if arguments.cpu_time else time.perf_counter
    timer = Timer(arguments.repeats, clock)
    print(
        f"path {kernels.path}, {arguments.threads} threads, {clock.__name__}; medians [quartiles]"
    )
    print(f"read            {read_rate(kernels, timer)} GB/s")
    print("linear 2048 → 10944   batch 1, GB/s             batch 512, GFLOP/s")
    for name in filter(None, arguments.types.split(",")):
        one, many = linear_rates(kernels, GGMLType[name], x_type, timer, rng)
        print(f"{name:15s} {one}   {many}", flush=True)
    for num_bits in (4, 8):
        one, many = marlin_rates(kernels, num_bits, timer, rng)
        print(f"marlin-{num_bits:<8d} {one}   {many}", flush=True)
    print("experts of V2-Lite, gate and up Q4_K: batch 1, GB/s; batch 512, GFLOP/s")
    for down in (GGMLType.Q5_0, GGMLType.Q8_0):
        one = experts_rate(kernels, down, 1, timer, rng)
        many = experts_rate(kernels, down, 512, timer, rng)
        print(f"down {down.name:10s} {one}   {many}", flush=True)
    print(f"read            {read_rate(kernels, timer)} GB/s")


if __name__ == "__main__":
    main()
