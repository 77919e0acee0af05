"""The builtin engine against llama.cpp on one GGUF file: same machine, same threads, in turn.

    python kernels/bench/against_llama_cpp.py v2-lite.gguf --peer /path/to/llama-bench \
        --peer /path/to/ik_llama.cpp/llama-bench --threads 2 --repeats 5

Everything runs on the CPU. Each repeat is a process of its own for every engine, one after the
other; the machine's limits (bytes read a second, a large bf16 product in torch) are measured in
ours. Medians, and in brackets the lowest and the highest.
"""

import argparse
import json
import os
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import median

RULES = r"""
- match: {name: '.*kv_b_proj$'}
  replace: {class: default, kwargs: {generate_device: cpu, prefill_device: cpu}}
- match: {name: '^lm_head$|^model\.layers\..*(_proj|_proj_with_mqa)$'}
  replace:
    class: ktransformers.operators.linear.KTransformersLinear
    kwargs: {generate_device: cpu, generate_op: KLinearCPUInfer,
             prefill_device: cpu, prefill_op: KLinearCPUInfer}
- match: {name: '^model\.layers\..*\.mlp\.experts$'}
  replace:
    class: ktransformers.operators.experts.KTransformersExperts
    kwargs: {generate_device: cpu, generate_op: KExpertsCPU,
             prefill_device: cpu, prefill_op: KExpertsCPU}
  recursive: false
- match: {name: '.*'}
  replace: {class: default, kwargs: {generate_device: cpu, prefill_device: cpu}}
"""


@dataclass(frozen=True)
class Run:
    """One process of one engine."""

    prefill_tok_per_s: float
    decode_tok_per_s: float
    load_s: float | None = None
    first_token_s: float | None = None
    resident_bytes: int | None = None
    tensor_bytes: int | None = None
    read_gb_per_s: float | None = None
    bf16_tflop_per_s: float | None = None
    path: str | None = None


def ours(arguments: argparse.Namespace) -> Run:
    """Loads the file by rules, measures, and asks the machine for its limits."""
    begin = time.perf_counter()
    from autoplace.architectures.registry import spec_from_gguf
    from autoplace.engine.loader import load_model
    from autoplace.hardware.detect import detect_machine
    from autoplace.hardware.ledger import Ledger
    from autoplace.models.backend import kernels
    from autoplace.placement.settings import RunSettings
    from autoplace.rules.match import assign
    from autoplace.rules.read import parse_rules
    from autoplace.weights.gguf_file import GGUFFile
    from autoplace.workload import Workload

    gguf, machine = GGUFFile.open(arguments.model), detect_machine()
    spec = spec_from_gguf(gguf)
    assignment = assign(parse_rules(RULES, source="bench").rules, spec, engine="builtin")
    num_prompt, num_tokens = arguments.prompt, arguments.tokens
    model = load_model(
        gguf,
        spec,
        assignment,
        machine=machine,
        ledger=Ledger.of(machine),
        settings=RunSettings(num_threads=arguments.threads, prefill_chunk=num_prompt),
        workload=Workload("bench", num_prompt, num_tokens, num_prompt + num_tokens),
    )
    load_s = time.perf_counter() - begin
    prompt = [i * 7919 % spec.geometry.vocab for i in range(num_prompt)]
    model.prefill(prompt[:1])
    first_token_s = time.perf_counter() - begin
    model.prefill(prompt[: num_prompt // 8])  # as a warm-up, which llama-bench has too
    prefill_s = timed(model.reset, lambda: model.prefill(prompt))
    model.reset()
    model.prefill(prompt[:1])
    decode_s = timed(None, lambda: [model.decode(token) for token in prompt[:num_tokens]])
    resident, native = resident_bytes(), kernels()
    model.close()
    return Run(
        num_prompt / prefill_s,
        num_tokens / decode_s,
        load_s,
        first_token_s,
        resident,
        gguf.n_bytes,
        *limits(),
        path=native.path if native else "torch",
    )


def timed(before: object, call: object) -> float:
    if callable(before):
        before()
    assert callable(call)
    begin = time.perf_counter()
    call()
    return time.perf_counter() - begin


def resident_bytes() -> int:
    """`Rss` of this process's smaps_rollup."""
    lines = Path("/proc/self/smaps_rollup").read_text().splitlines()
    return next(int(line.split()[1]) * 1024 for line in lines if line.startswith("Rss:"))


def limits() -> tuple[float | None, float]:
    """Bytes read a second by all threads in GB/s, and a bf16 product in TFLOP/s.

    The product is 2048³, or 512³ where torch takes more than a tenth of a second for that: below
    AVX-512 it multiplies bf16 by scalar products of rows, and 2048³ would take minutes.
    """
    import torch

    from autoplace.models.backend import kernels
    from autoplace.models.huge_pages import host_bytes

    native, data = kernels(), host_bytes(512 << 20).numpy()
    data[:] = 1
    small, large = (torch.ones(n, n, dtype=torch.bfloat16) for n in (512, 2048))
    slow = min(timed(None, lambda: small @ small) for _ in range(2)) > 0.1
    a = small if slow else large
    product_s = min(timed(None, lambda: a @ a) for _ in range(5))
    tflop_per_s = 2 * len(a) ** 3 / product_s / 1e12
    if native is None:
        return None, tflop_per_s
    read_s = median(timed(None, lambda: native.read(data)) for _ in range(7))
    return data.nbytes / read_s / 1e9, tflop_per_s


def in_a_process(arguments: argparse.Namespace) -> Run:
    """Our engine with the variables that a trial's worker has."""
    from autoplace.bench.environment import worker_environment
    from autoplace.hardware.detect import detect_machine

    command = [sys.executable, __file__, str(arguments.model), "--child"]
    for name in ("threads", "prompt", "tokens"):
        command += [f"--{name}", str(getattr(arguments, name))]
    environment = {**os.environ, **worker_environment(detect_machine())}
    done = subprocess.run(command, capture_output=True, text=True, check=False, env=environment)
    if done.returncode != 0:
        raise SystemExit(f"the builtin engine failed: {done.stderr.strip().splitlines()[-1]}")
    return Run(**json.loads(done.stdout.splitlines()[-1]))


def peer(program: Path, arguments: argparse.Namespace) -> Run:
    """llama-bench of llama.cpp or of ik_llama.cpp."""
    command = [str(program), "-m", str(arguments.model), "-t", str(arguments.threads)]
    command += ["-p", str(arguments.prompt), "-n", str(arguments.tokens), "-r", "1", "-o", "json"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise SystemExit(f"{program} failed: {done.stderr.strip().splitlines()[-1:]}")
    rates = {bool(row["n_prompt"]): row["avg_ts"] for row in json.loads(done.stdout)}
    return Run(rates[True], rates[False])


def spread(values: Sequence[float]) -> str:
    return f"{median(values):7.2f} [{min(values):.2f} {max(values):.2f}]"


def print_table(runs: Mapping[str, Sequence[Run]], arguments: argparse.Namespace) -> None:
    print(f"\n{arguments.threads} threads, {arguments.repeats} runs of each in turn, tok/s")
    print(f"{'engine':28s} prefill {arguments.prompt:<18d} decode {arguments.tokens}")
    for name, of_it in runs.items():
        prefill = spread([run.prefill_tok_per_s for run in of_it])
        print(f"{name:28s} {prefill:26s} {spread([run.decode_tok_per_s for run in of_it])}")
    mine = runs["builtin"]
    for name, of_it in list(runs.items())[1:]:
        ratios = [
            median(getattr(run, what) for run in mine) / median(getattr(run, what) for run in of_it)
            for what in ("prefill_tok_per_s", "decode_tok_per_s")
        ]
        print(f"over {name}: prefill {ratios[0]:.2f}x, decode {ratios[1]:.2f}x")
    for label, what, unit in (
        ("read", "read_gb_per_s", "GB/s"),
        ("bf16 product", "bf16_tflop_per_s", "TFLOP/s"),
        ("load", "load_s", "s"),
        ("first token", "first_token_s", "s"),
    ):
        values = [value for run in mine if (value := getattr(run, what)) is not None]
        print(f"{label}: {spread(values)} {unit}" if values else f"{label}: not measured")
    shares = [
        run.resident_bytes / run.tensor_bytes
        for run in mine
        if run.resident_bytes and run.tensor_bytes
    ]
    print(f"resident over the file's tensors: {spread(shares)}; path {mine[0].path}")


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("model", type=Path)
    parser.add_argument("--peer", type=Path, action="append", default=[], help="a llama-bench")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--prompt", type=int, default=512)
    parser.add_argument("--tokens", type=int, default=32)
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--child", action="store_true", help=argparse.SUPPRESS)
    return parser.parse_args()


def main() -> None:
    arguments = parse_arguments()
    if arguments.child:
        print(json.dumps(asdict(ours(arguments))))
        return
    runs: dict[str, list[Run]] = {"builtin": []}
    for repeat in range(arguments.repeats):
        print(f"run {repeat + 1} of {arguments.repeats}", file=sys.stderr, flush=True)
        runs["builtin"].append(in_a_process(arguments))
        for program in arguments.peer:
            runs.setdefault(str(program.parent), []).append(peer(program, arguments))
    print_table(runs, arguments)


if __name__ == "__main__":
    main()
