"""Stages `linears` and `experts`: the products against float32, with their rates."""

from functools import partial

import torch
from torch import Tensor
from torch.nn import functional

from autoplace.kernels.bench.gpu import inputs
from autoplace.kernels.bench.gpu.report import Report
from autoplace.kernels.bench.gpu.timing import captured, rate, relative_error, seconds_of
from autoplace.kernels.triton import products
from autoplace.kernels.triton.matrices import Matrices

LINEAR_BOUND, EXPERTS_BOUND = 8e-3, 1.6e-2
"""Relative: one rounding of the result to bfloat16 is 2^-9; experts round in between as well."""
SHAPES = ((2816, 2048), (2048, 2816), (10944, 2048), (102400, 2048), (1000, 1999))
"""Of V2-Lite's linears, and one that no tile divides: [out, in]."""


def check_linears(report: Report) -> None:
    for out, width in ((48, 130),) if report.interpret else SHAPES:
        for bits in (4, 8, 0):
            what = f"linear {bits or 16} bits [{out}, {width}]"
            report.case(what, partial(_linears, report, what, out, width, bits))


def _linears(report: Report, what: str, out: int, width: int, bits: int) -> None:
    weight, values = inputs.matrices_of(1, out, width, bits, report.device)
    plain = values[0].bfloat16()
    for tokens in (1, 5) if report.interpret else (1, 4, 8, 16, 64, 512, 4096):
        name = f"{what}, {tokens} tokens"
        report.case(name, partial(_linear, report, name, weight, values[0], plain, tokens))


def _linear(
    report: Report, what: str, weight: Matrices, values: Tensor, plain: Tensor, tokens: int
) -> None:
    out, width = values.shape
    x = torch.randn(tokens, width, device=report.device).bfloat16()
    error = relative_error(products.linear(x, weight), x.float() @ values.T)
    seconds = seconds_of(report, lambda: products.linear(x, weight))
    n_bytes = inputs.bytes_of_one(weight) + x.nbytes + 2 * tokens * out
    told = rate(report, seconds, n_bytes, 2 * tokens * out * width)
    torchs = seconds_of(report, lambda: functional.linear(x, plain))
    told = f"error {error:.1e}, {told}, {torchs / seconds:.2f}× torch's bf16"
    report.add(what, told, error < LINEAR_BOUND)


def check_experts(report: Report) -> None:
    count, d, f = (4, 64, 40) if report.interpret else (64, 2048, 1408)
    for name, bits in (("4 bits", 4), ("8 bits", 8), ("bf16", 0)):
        report.case(f"experts {name}", partial(_experts, report, name, bits, (count, d, f)))


def _experts(report: Report, name: str, bits: int, size: tuple[int, int, int]) -> None:
    count, d, f = size
    made = [
        inputs.matrices_of(count, *shape, bits, report.device) for shape in ((f, d), (f, d), (d, f))
    ]
    matrices, values = [m for m, _ in made], [v for _, v in made]
    for tokens in (1, 6) if report.interpret else (1, 4, 16, 128, 512, 2048):
        what = f"{count} experts {name}, {tokens} tokens"
        report.case(what, partial(_some, report, what, matrices, values, tokens))
    if not report.interpret:
        for tokens in (1, 16):
            what = f"experts {name} in a graph, {tokens} tokens, other ids"
            report.case(what, partial(_in_a_graph, report, what, matrices, values, tokens))


def _some(
    report: Report, what: str, matrices: list[Matrices], values: list[Tensor], tokens: int
) -> None:
    gate, up, down = matrices
    x, ids, weights = inputs.routed(tokens, gate.count, gate.in_features, report.device)
    error = relative_error(
        products.experts(x, ids, weights, gate, up, down),
        inputs.expected_experts(x, ids, weights, values),
    )
    seconds = seconds_of(report, lambda: products.experts(x, ids, weights, gate, up, down))
    used = len(set(ids.flatten().tolist()))
    n_bytes = used * sum(inputs.bytes_of_one(m) for m in matrices) + 2 * x.nbytes
    told = rate(report, seconds, n_bytes, 6 * ids.numel() * gate.in_features * gate.out_features)
    report.add(what, f"error {error:.1e}, {told}", error < EXPERTS_BOUND)


def _in_a_graph(
    report: Report, what: str, matrices: list[Matrices], values: list[Tensor], tokens: int
) -> None:
    """One graph holds so many tokens' experts, whichever they are."""
    gate, up, down = matrices
    size = tokens, gate.count, gate.in_features, report.device
    given, result = inputs.routed(*size), torch.empty(0)

    def work() -> None:
        nonlocal result
        result = products.experts(*given, gate, up, down)

    work()
    graph = captured(work)
    others = inputs.routed(*size)
    for target, other in zip(given, others, strict=True):
        target.copy_(other)
    graph.replay()
    error = relative_error(result, inputs.expected_experts(*others, values))
    report.add(what, f"error {error:.1e}", error < EXPERTS_BOUND)
