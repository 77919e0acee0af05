"""Everything that needs a GPU to be believed, in one run of under 8 minutes on one GPU.

    python kernels/bench/gpu_check.py [--minutes 8] [--model deepseek-v2-lite] [--layers N]
    python kernels/bench/gpu_check.py --interpret        # no GPU: tiny, by Triton's interpreter

Needs torch, triton, numpy, pyyaml and gguf; a C++ compiler makes packing and CPU experts fast.
1. Every Triton kernel against plain torch or numpy, with its speed. 2. A synthetic model (written
to a temporary folder; V2-Lite takes 10 GB of disk) decoding with and without CUDA graphs, all on
the GPU and with the experts on the CPU. 3. Predicted bytes against the driver's. A table comes
last; the exit code is 1 where a check fails. What there was no time for is named in the table.

`--interpret` cannot show speed, bytes of a driver or CUDA graphs. There the plain twins run, a
stand-in on host memory records the pieces (tests/engine/host_capture.py), and one tiny model goes
through the interpreted kernels. It takes about 80 s of one core.
"""

import argparse
import contextlib
import os
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from statistics import median

ROOT = Path(__file__).parents[2]
sys.path.insert(0, str(ROOT))
if "--interpret" in sys.argv:
    os.environ["TRITON_INTERPRET"] = "1"  # read when the kernels are imported

import numpy as np  # noqa: E402
import torch  # noqa: E402
from torch import Tensor  # noqa: E402
from torch.nn import functional  # noqa: E402

from autoplace.architectures.presets import read_preset  # noqa: E402
from autoplace.architectures.registry import (  # noqa: E402
    file_metadata,
    file_tensors,
    spec_from_gguf,
)
from autoplace.architectures.spec import ModelSpec, Role  # noqa: E402
from autoplace.engine.loader import load_model  # noqa: E402
from autoplace.engine.model import HybridModel  # noqa: E402
from autoplace.engine.recorder import Capture, CudaCapture  # noqa: E402
from autoplace.errors import AutoplaceError, DoesNotFitError  # noqa: E402
from autoplace.hardware.ledger import Ledger  # noqa: E402
from autoplace.hardware.machine import Device, Machine  # noqa: E402
from autoplace.kernels.triton import products  # noqa: E402
from autoplace.kernels.triton.dequantize import BLOCKS, dequantize  # noqa: E402
from autoplace.kernels.triton.matrices import Matrices  # noqa: E402
from autoplace.models.backend import kernels, slow_twin  # noqa: E402
from autoplace.models.place import Place  # noqa: E402
from autoplace.operators import (  # noqa: E402
    experts_marlin,
    experts_torch,
    gpu_kernels,
    linear_marlin,
)
from autoplace.operators.marlin import MarlinFormat, pack_rows_twin, unpack_rows  # noqa: E402
from autoplace.placement.assignment import Assignment, ModuleAssignment  # noqa: E402
from autoplace.placement.memory import plan_memory  # noqa: E402
from autoplace.placement.settings import RunSettings  # noqa: E402
from autoplace.units import GIB  # noqa: E402
from autoplace.weights import dequantize as numpy_twin  # noqa: E402
from autoplace.weights.ggml import GGMLType  # noqa: E402
from autoplace.weights.gguf_file import GGUFFile  # noqa: E402
from autoplace.weights.quantize import random_blocks  # noqa: E402
from autoplace.weights.synthesize import write_gguf  # noqa: E402
from autoplace.workload import Workload  # noqa: E402

LINEARS = (Role.ATTENTION_LINEAR, Role.DENSE_LINEAR, Role.SHARED_LINEAR, Role.LM_HEAD)
PLACEMENTS = {
    "experts on the CPU": ("KExpertsCPU", "cpu"),
    "experts on the GPU, packed": ("KExpertsMarlin", "cuda:0"),
    "experts on the GPU, bf16": ("KExpertsTorch", "cuda:0"),
}
ALLOWANCE_SHARE, ALLOWANCE_BYTES = 0.03, 300 << 20


@dataclass(frozen=True)
class Row:
    what: str
    value: str
    verdict: str
    """ok, FAILED, or why there is none."""


@dataclass
class Check:
    """The rows so far, and the time that is left."""

    interpret: bool
    deadline: float
    start: float = field(default_factory=time.monotonic)
    rows: list[Row] = field(default_factory=list)

    @property
    def device(self) -> torch.device:
        return torch.device("cpu" if self.interpret else "cuda:0")

    def add(self, what: str, value: str, good: bool) -> None:
        self.rows.append(Row(what, value, "ok" if good else "FAILED"))
        told = f"{time.monotonic() - self.start:5.0f} s {self.rows[-1].verdict:7} {what}: {value}"
        print(told, file=sys.stderr, flush=True)

    def attempt(self, what: str, seconds: float, work: Callable[[], None]) -> None:
        """Do a part if its seconds are left; an exception is a failed row, not the end."""
        if time.monotonic() + seconds > self.deadline:
            self.rows.append(Row(what, "", f"left out: under {seconds:.0f} s were left"))
            return
        try:
            work()
        except DoesNotFitError as error:
            self.rows.append(Row(what, str(error), "left out: does not fit"))
        except (AutoplaceError, RuntimeError, ValueError, AssertionError) as error:
            first = str(error).splitlines()[0] if str(error) else type(error).__name__
            self.add(what, first[:150], False)

    def seconds_of(self, work: Callable[[], object]) -> float:
        """Median of 20 after 3 to warm up; once by the interpreter."""
        if self.interpret:
            return _wall(work)
        for _ in range(3):
            work()
        return median(_on_gpu(work) for _ in range(20))


def _wall(work: Callable[[], object]) -> float:
    start = time.perf_counter()
    work()
    return time.perf_counter() - start


def _on_gpu(work: Callable[[], object]) -> float:
    """Between two events; the cache is flushed before, so that weights come from memory."""
    torch.empty(256 << 20, dtype=torch.uint8, device="cuda:0").zero_()
    start, end = _event(), _event()
    start.record()
    work()
    end.record()
    end.synchronize()
    seconds: float = start.elapsed_time(end) / 1e3
    return seconds


def _event() -> torch.cuda.Event:
    return torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call]


# 1. Kernels


def packed(check: Check, count: int, out: int, width: int, bits: int) -> tuple[Matrices, Tensor]:
    """Random matrices, and the float32 values that they stand for."""
    form = MarlinFormat(out, width, bits)
    blocks = torch.zeros(count, form.n_bytes, dtype=torch.uint8, device=check.device)
    for block in blocks:
        pack_rows_twin(torch.randn(out, width, device=check.device) / width**0.5, 0, block, form)
    values = torch.stack([unpack_rows(0, out, block, form) for block in blocks])
    return Matrices.packed(blocks, out, width, bits), values


def plain(check: Check, count: int, out: int, width: int) -> tuple[Matrices, Tensor]:
    values = (torch.randn(count, out, width, device=check.device) / width**0.5).bfloat16()
    return Matrices.plain(values), values.float()


def relative_error(got: Tensor, expected: Tensor) -> float:
    error: float = ((got.float() - expected).norm() / expected.norm()).item()
    return error


def rate(seconds: float, n_bytes: int, flops: int) -> str:
    gbs, tflops = n_bytes / seconds / 1e9, flops / seconds / 1e12
    return f"{seconds * 1e6:.0f} µs, {gbs:.0f} GB/s, {tflops:.1f} TFLOP/s"


def check_linears(check: Check) -> None:
    shapes = [(48, 130)] if check.interpret else [(10944, 2048), (2048, 2816), (102400, 2048)]
    for out, width in shapes:
        for bits in (4, 8):
            weight, values = packed(check, 1, out, width, bits)
            for tokens in (1, 5) if check.interpret else (1, 4, 16, 64, 512, 2048):
                check_linear(check, weight, values[0], tokens)


def check_linear(check: Check, weight: Matrices, values: Tensor, tokens: int) -> None:
    out, width = values.shape
    x = torch.randn(tokens, width, device=check.device).bfloat16()
    error = relative_error(products.linear(x, weight), x.float() @ values.T)
    seconds = check.seconds_of(lambda: products.linear(x, weight))
    told = rate(seconds, bytes_of_one(weight), 2 * tokens * out * width)
    what = f"linear {weight.bits} bits [{out}, {width}], {tokens} tokens"
    check.add(what, f"error {error:.1e}, {told}", error < 8e-3)


def check_experts(check: Check) -> None:
    count, d, f = (4, 64, 40) if check.interpret else (64, 2048, 1408)
    for name, bits in (("4 bits", 4), ("bf16", 0)):
        made = [
            packed(check, count, *shape, bits) if bits else plain(check, count, *shape)
            for shape in ((f, d), (f, d), (d, f))
        ]
        matrices, values = [m for m, _ in made], [v for _, v in made]
        for tokens in (1, 6) if check.interpret else (1, 16, 128, 512):
            check_some_experts(check, name, matrices, values, tokens)
        if not check.interpret:
            check_experts_in_a_graph(check, name, matrices, values)


def routed(check: Check, tokens: int, count: int, width: int) -> tuple[Tensor, Tensor, Tensor]:
    """Random activations, distinct experts of each token, weights."""
    x = torch.randn(tokens, width, device=check.device).bfloat16()
    each = min(6, count // 2)
    ids = torch.rand(tokens, count, device=check.device).topk(each).indices
    return x, ids, torch.rand(tokens, each, device=check.device)


def check_some_experts(
    check: Check, name: str, matrices: list[Matrices], values: list[Tensor], tokens: int
) -> None:
    gate, up, down = matrices
    x, ids, weights = routed(check, tokens, gate.count, gate.in_features)
    error = relative_error(
        products.experts(x, ids, weights, gate, up, down),
        expected_experts(x, ids, weights, values),
    )
    seconds = check.seconds_of(lambda: products.experts(x, ids, weights, gate, up, down))
    n_bytes = len(set(ids.flatten().tolist())) * sum(bytes_of_one(m) for m in matrices)
    told = rate(seconds, n_bytes, 6 * ids.numel() * gate.in_features * gate.out_features)
    what = f"{gate.count} experts {name}, {tokens} tokens"
    check.add(what, f"error {error:.1e}, {told}", error < 1.6e-2)


def check_experts_in_a_graph(
    check: Check, name: str, matrices: list[Matrices], values: list[Tensor]
) -> None:
    """One graph holds 16 tokens' experts, whichever they are."""
    gate, up, down = matrices
    inputs = routed(check, 16, gate.count, gate.in_features)
    products.experts(*inputs, gate, up, down)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        out = products.experts(*inputs, gate, up, down)
    others = routed(check, 16, gate.count, gate.in_features)
    for target, other in zip(inputs, others, strict=True):
        target.copy_(other)
    graph.replay()
    error = relative_error(out, expected_experts(*others, values))
    check.add(f"experts {name} in a graph, other ids", f"error {error:.1e}", error < 1.6e-2)


def bytes_of_one(matrices: Matrices) -> int:
    scales = matrices.scales[0].nbytes if matrices.bits else 0
    return matrices.data[0].nbytes + scales


def expected_experts(x: Tensor, ids: Tensor, weights: Tensor, values: list[Tensor]) -> Tensor:
    out = torch.zeros(x.shape, device=x.device)
    gate, up, down = values
    for expert in sorted(set(ids.flatten().tolist())):
        tokens, slots = (ids == expert).nonzero(as_tuple=True)
        rows = x[tokens].float()
        hidden = functional.silu(rows @ gate[expert].T) * (rows @ up[expert].T)
        out.index_add_(0, tokens, hidden @ down[expert].T * weights[tokens, slots, None])
    return out


def check_dequantisation(check: Check) -> None:
    for number in BLOCKS:
        check_type(check, GGMLType(number))


def check_type(check: Check, ggml_type: GGMLType) -> None:
    block_size, _ = BLOCKS[ggml_type]
    n = 3 if check.interpret else (1 << 21) // block_size
    data = random_blocks(ggml_type, n, std=1.0, rng=np.random.default_rng(0))
    blocks = torch.from_numpy(data).to(check.device)
    out = torch.empty(n * block_size, device=check.device)
    seconds = check.seconds_of(lambda: dequantize(blocks, ggml_type, out))
    expected = numpy_twin.dequantize(data, ggml_type)
    same = np.array_equal(out.cpu().numpy().view(np.uint32), expected.view(np.uint32))
    told = f"{n * block_size / seconds / 1e9:.1f} G weights/s"
    what = f"dequantise {ggml_type.name} to float32"
    check.add(what, f"{'the same' if same else 'OTHER'} bits, {told}", same)


# 2. and 3. A model


def machine(check: Check) -> Machine:
    host = Device("cpu", "host", 1 << 40, 0, 1e11, 1e12)
    if check.interpret:
        gpu = Device("cuda:0", "emulated", 4 * GIB, 0, 1e11, 1e12, (8, 0))
        return Machine("gpu-check", (host, gpu), emulated=True)
    found = torch.cuda.get_device_properties(0)
    capability = (found.major, found.minor)
    gpu = Device("cuda:0", found.name, found.total_memory, GIB, 1e12, 1e14, capability)
    return Machine("gpu-check", (host, gpu))


def placed(spec: ModelSpec, experts: str, device: str) -> Assignment:
    """Layers on the GPU, linears packed, the embedding on the CPU, experts as told."""
    modules = {}
    for module in spec.modules:
        where, operator = "cuda:0", None
        if module.role is Role.EMBEDDING:
            where = "cpu"
        elif module.role is Role.EXPERTS:
            where, operator = device, experts
        elif module.role in LINEARS:
            operator = "KLinearMarlin"
        modules[module.path] = ModuleAssignment(module.path, where, operator=operator)
    return Assignment("builtin", modules)


@dataclass(frozen=True)
class Loaded:
    gguf: GGUFFile
    spec: ModelSpec
    workload: Workload
    settings: RunSettings


def write_model(check: Check, name: str, layers: int | None, folder: Path) -> Loaded:
    preset = read_preset(name)
    geometry = preset.geometry if layers is None else replace(preset.geometry, num_layers=layers)
    quant = "f16" if check.interpret else preset.default_quant
    path = folder / f"{name}.gguf"
    seconds = _wall(
        lambda: write_gguf(
            path,
            metadata=file_metadata(name, geometry, quant),
            tensors=file_tensors(geometry, quant=quant),
            seed=0,
        )
    )
    what = f"write {name}, {geometry.num_layers} layers"
    check.add(what, f"{path.stat().st_size / 1e9:.2f} GB, {seconds:.0f} s", True)
    gguf = GGUFFile.open(path)
    tokens = (20, 12, 64) if check.interpret else (128, 48, 1024)
    threads = min(16, os.cpu_count() or 1)
    return Loaded(
        gguf,
        spec_from_gguf(gguf),
        Workload("gpu-check", *tokens),
        RunSettings(threads, 8 if check.interpret else 128, "bf16"),
    )


def check_model(check: Check, loaded: Loaded, title: str, experts: str, device: str) -> None:
    assignment = placed(loaded.spec, experts, device)
    where = machine(check)
    plan = plan_memory(loaded.spec, assignment, workload=loaded.workload, settings=loaded.settings)
    plan.check(where)
    ledger = Ledger.of(where)
    before = gpu_bytes(check)
    start = time.perf_counter()
    model = load_model(
        loaded.gguf,
        loaded.spec,
        assignment,
        machine=where,
        ledger=ledger,
        settings=loaded.settings,
        workload=loaded.workload,
    )
    check.add(f"{title}: load", f"{time.perf_counter() - start:.1f} s", True)
    try:
        how, expected = decode(model, loaded, "without graphs")
        check.add(f"{title}: {how}", spread(expected), bool(expected.isfinite().all()))
        if not check.interpret or experts == "KExpertsCPU":  # the stand-in cannot hold experts
            check_graphs(check, model, loaded, title, expected)
        check_bytes(check, title, plan.by_device["cuda:0"].peak, ledger.peak("cuda:0"), before)
    finally:
        model.close()
        del model
        if not check.interpret:
            torch.cuda.empty_cache()


def check_graphs(
    check: Check, model: HybridModel, loaded: Loaded, title: str, expected: Tensor
) -> None:
    """A token whose routing flips at a near tie is far off; the median one is not."""
    model.use_graphs(capture_of(check))
    decode(model, loaded, "recording")
    how, got = decode(model, loaded, "with graphs")
    errors = [relative_error(a, b) for a, b in zip(got, expected, strict=True)]
    top = (got.argmax(-1) == expected.argmax(-1)).float().mean().item()
    told = f"median error {median(errors):.1e}, most {max(errors):.1e}, same top {100 * top:.0f} %"
    check.add(f"{title}: {how}", told, median(errors) < 0.02)


def capture_of(check: Check) -> Callable[[Place], Capture]:
    if not check.interpret:
        return CudaCapture
    from tests.engine.host_capture import HostCapture

    return HostCapture


def decode(model: HybridModel, loaded: Loaded, how: str) -> tuple[str, Tensor]:
    """What was done and how fast, and the logits [T, V] of the decoded tokens."""
    model.reset()
    workload = loaded.workload
    generator = torch.Generator().manual_seed(1)
    vocab = loaded.spec.geometry.vocab
    prompt = torch.randint(3, vocab, (workload.prompt_tokens,), generator=generator).tolist()
    prefill_s = _wall(lambda: model.prefill(prompt))
    logits, seconds = [], []
    for token in torch.randint(3, vocab, (workload.output_tokens,), generator=generator).tolist():
        start = time.perf_counter()
        logits.append(model.decode(token))
        seconds.append(time.perf_counter() - start)
    steady = seconds[len(seconds) // 4 :]
    speed = f"prefill {len(prompt)} in {prefill_s:.2f} s, decode {1 / median(steady):.1f} tok/s"
    return f"{how}, {speed}", torch.stack(logits)


def spread(logits: Tensor) -> str:
    return f"logits within {logits.min().item():.2f} … {logits.max().item():.2f}"


def gpu_bytes(check: Check) -> int:
    """Bytes of the GPU in use by everyone, as the driver has it."""
    if check.interpret:
        return 0
    torch.cuda.synchronize()
    torch.cuda.empty_cache()
    free, total = torch.cuda.mem_get_info(0)
    torch.cuda.reset_peak_memory_stats(0)
    return total - free


def check_bytes(check: Check, title: str, predicted: int, declared: int, before: int) -> None:
    told = f"predicted {predicted / 1e6:.1f} MB, declared {declared / 1e6:.1f} MB"
    check.add(f"{title}: bytes of the ledger", told, predicted == declared)
    if check.interpret:
        return
    free, total = torch.cuda.mem_get_info(0)
    driver, torch_peak = total - free - before, torch.cuda.max_memory_allocated(0)
    allowed = predicted + max(int(ALLOWANCE_SHARE * predicted), ALLOWANCE_BYTES)
    told = f"driver {driver / 1e6:.1f} MB more, torch's peak {torch_peak / 1e6:.1f} MB"
    told = f"{told}, allowed {allowed / 1e6:.1f} MB"
    check.add(f"{title}: bytes of the driver", told, driver <= allowed)


@contextlib.contextmanager
def by_triton_on_the_host() -> Iterator[None]:
    """Operators of an emulated GPU call the interpreted kernels, as those of a real one do."""
    given = (
        (linear_marlin, "linear_from_marlin"),
        (experts_marlin, "experts_from_marlin"),
        (experts_torch, "experts_from_dense"),
    )
    before = [getattr(module, name) for module, name in given]
    for module, name in given:
        setattr(module, name, getattr(gpu_kernels, name))
    try:
        yield
    finally:
        for (module, name), function in zip(given, before, strict=True):
            setattr(module, name, function)


def check_against_the_twins(check: Check, folder: Path) -> None:
    """Tiny models in float32: every logit by Triton against the plain twins on an emulated GPU."""
    names = ("tiny-qwen3moe",) if check.interpret else ("tiny-lite", "tiny-v3", "tiny-qwen3moe")
    tokens = list(range(3, 9 if check.interpret else 40))
    small = replace(check, interpret=True)
    for name in names:
        loaded = write_model(small, name, None, folder)
        loaded = replace(loaded, settings=replace(loaded.settings, kv_type="f32"))
        for title, (experts, device) in PLACEMENTS.items():
            if check.interpret and device == "cpu":
                continue  # the same linears are in the others
            assignment = placed(loaded.spec, experts, device)
            with by_triton_on_the_host() if check.interpret else contextlib.nullcontext():
                got = logits_of(loaded, assignment, machine(check), tokens)
            with slow_twin():
                expected = logits_of(loaded, assignment, machine(small), tokens)
            error = relative_error(got, expected)
            check.add(f"{name} in float32, {title}", f"error {error:.1e}", error < 1e-3)


def logits_of(loaded: Loaded, assignment: Assignment, where: Machine, tokens: list[int]) -> Tensor:
    model = load_model(
        loaded.gguf,
        loaded.spec,
        assignment,
        machine=where,
        ledger=Ledger.of(where),
        settings=loaded.settings,
        workload=loaded.workload,
        dtype="float32",
    )
    try:
        return torch.cat([model.logits(tokens[:-1]), model.decode(tokens[-1])[None]])
    finally:
        model.close()


def run(check: Check, name: str, layers: int | None, folder: Path) -> None:
    check.attempt("dequantisation", 20, lambda: check_dequantisation(check))
    check.attempt("linears", 60, lambda: check_linears(check))
    check.attempt("experts", 60, lambda: check_experts(check))
    check.attempt("tiny models", 40, lambda: check_against_the_twins(check, folder))
    models: list[Loaded] = []
    check.attempt(name, 150, lambda: models.append(write_model(check, name, layers, folder)))
    for loaded in models:
        for title, (experts, device) in PLACEMENTS.items():
            seconds = 60 if kernels() is not None or experts == "KExpertsTorch" else 240
            work = partial(check_model, check, loaded, title, experts, device)
            with slow_twin() if check.interpret else contextlib.nullcontext():
                check.attempt(title, seconds, work)


def print_table(check: Check) -> None:
    width = max(len(row.what) for row in check.rows)
    where = "Triton's interpreter" if check.interpret else torch.cuda.get_device_name(0)
    print(f"\n{where}, torch {torch.__version__}")
    for row in check.rows:
        print(f"{row.what:{width}}  {row.verdict:7}  {row.value}")


def main() -> int:
    raw = argparse.RawTextHelpFormatter
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=raw)
    parser.add_argument("--interpret", action="store_true")
    parser.add_argument("--minutes", type=float, default=8.0)
    parser.add_argument("--model")
    parser.add_argument("--layers", type=int)
    given = parser.parse_args()
    if not given.interpret and not torch.cuda.is_available():
        print("expected a CUDA GPU but torch sees none; --interpret runs without", file=sys.stderr)
        return 2
    kernels()  # built, or found, in the user's cache
    check = Check(given.interpret, time.monotonic() + 60 * given.minutes - 10)
    name = given.model or ("tiny-v3" if given.interpret else "deepseek-v2-lite")
    temporary = tempfile.TemporaryDirectory(prefix="autoplace-gpu-check-")
    with temporary as folder, torch.inference_mode():
        os.environ["AUTOPLACE_CACHE"] = folder
        run(check, name, given.layers, Path(folder))
    print_table(check)
    return int(any(row.verdict == "FAILED" for row in check.rows))


if __name__ == "__main__":
    sys.exit(main())
