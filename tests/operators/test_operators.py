"""Every operator against float32 with the weights that it really holds."""

from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from pathlib import Path

import pytest
import torch
from torch import Tensor
from torch.nn import functional

from autoplace.catalog.operators import OPERATORS
from autoplace.errors import AutoplaceError
from autoplace.hardware.ledger import Ledger
from autoplace.models.backend import slow_twin
from autoplace.models.place import checked_places, put
from autoplace.operators.base import ExpertsOperator, LinearOperator
from autoplace.operators.experts_marlin import KExpertsMarlin
from autoplace.operators.linear_marlin import KLinearMarlin
from autoplace.operators.registry import (
    EXPERTS_OPERATORS,
    LINEAR_OPERATORS,
    make_experts,
    make_linear,
)
from autoplace.operators.routed import sum_of_experts, swiglu
from autoplace.weights.ggml import GGMLType as T
from autoplace.weights.gguf_file import GGUFFile
from tests.operators.weights import (
    GPU,
    HIDDEN,
    NUM_EXPERTS,
    context,
    exact,
    experts_sources,
    linear_sources,
    random,
    write_weights,
)

BOUNDS = {torch.float32: 0.02, torch.bfloat16: 0.03}
"""Of the largest output. The kernels round activations to 8 bits where weights are quantised."""
TWIN_BOUND = {torch.float32: 1e-5, torch.bfloat16: 0.02}
"""The twin multiplies in float32; only its result is rounded to the dtype."""
TYPES = (T.F16, T.Q8_0, T.Q4_K, T.Q6_K, T.Q5_0)
LINEARS = ("KLinearTorch", "KLinearMarlin", "KLinearMarlin-8", "KLinearCPUInfer")
EXPERTS = ("KExpertsTorch", "KExpertsMarlin", "KExpertsMarlin-8", "KExpertsCPU")


def _linear(name: str, gguf: GGUFFile, dtype: torch.dtype) -> LinearOperator:
    name, _, bits = name.partition("-")
    gpu = name != "KLinearCPUInfer"
    made = context(dtype, gpu=gpu, num_bits=int(bits or 4))
    return make_linear(name, made, linear_sources(gguf))


def _experts(name: str, gguf: GGUFFile, dtype: torch.dtype) -> ExpertsOperator:
    name, _, bits = name.partition("-")
    made = context(dtype, gpu=name != "KExpertsCPU", num_bits=int(bits or 4))
    return make_experts(name, made, experts_sources(gguf))


def _held_linear(operator: LinearOperator, gguf: GGUFFile) -> Tensor:
    weight = exact(linear_sources(gguf)[0])
    if isinstance(operator, KLinearMarlin):
        return operator.weight.rows(0, len(weight))
    return weight


def _held_experts(operator: ExpertsOperator, gguf: GGUFFile) -> tuple[Tensor, Tensor, Tensor]:
    weights = [exact(source) for source in experts_sources(gguf)]
    if isinstance(operator, KExpertsMarlin):
        weights = [
            torch.stack([held.rows(0, weight.shape[1], e) for e in range(NUM_EXPERTS)])
            for held, weight in zip(operator.weights, weights, strict=True)
        ]
    gate, up, down = weights
    return gate, up, down


@contextmanager
def _backend(name: str) -> Iterator[None]:
    with slow_twin() if name == "twin" else nullcontext():
        yield


@pytest.mark.parametrize("backend", ["kernels", "twin"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("ggml_type", TYPES)
@pytest.mark.parametrize("name", LINEARS)
def test_a_linear_is_the_product_with_the_weights_it_holds(
    name: str, ggml_type: T, dtype: torch.dtype, backend: str, tmp_path: Path
) -> None:
    gguf = write_weights(tmp_path, ggml_type)
    with _backend(backend):
        operator = _linear(name, gguf, dtype)
        bias = exact(linear_sources(gguf)[1])
        weight = _held_linear(operator, gguf)
        for num_tokens in (1, 9):
            x = random(num_tokens, HIDDEN, dtype=dtype)
            expected = functional.linear(x.float(), weight, bias)
            bound = (BOUNDS if backend == "kernels" else TWIN_BOUND)[dtype]
            got = operator(x)
            assert got.dtype == dtype
            assert (got.float() - expected).abs().max() <= bound * expected.abs().max()


@pytest.mark.parametrize("backend", ["kernels", "twin"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("ggml_type", TYPES)
@pytest.mark.parametrize("name", EXPERTS)
def test_experts_are_the_weighted_sum_over_the_weights_they_hold(
    name: str, ggml_type: T, dtype: torch.dtype, backend: str, tmp_path: Path
) -> None:
    gguf = write_weights(tmp_path, ggml_type)
    with _backend(backend):
        operator = _experts(name, gguf, dtype)
        gate, up, down = _held_experts(operator, gguf)
        for num_tokens in (1, 9):
            x = random(num_tokens, HIDDEN, dtype=dtype)
            experts = random(num_tokens, NUM_EXPERTS, seed=2).topk(3).indices
            weights = random(num_tokens, 3, seed=4).softmax(-1)
            expected = sum_of_experts(
                x.float(), experts, weights, lambda e, rows: swiglu(rows, gate[e], up[e], down[e])
            )
            bound = (BOUNDS if backend == "kernels" else TWIN_BOUND)[dtype]
            got = operator(x, experts, weights)
            assert got.dtype == dtype
            assert (got.float() - expected).abs().max() <= bound * expected.abs().max()


@pytest.mark.parametrize("name", [*LINEARS, *EXPERTS])
def test_declared_weights_are_the_catalogues_bytes(name: str, tmp_path: Path) -> None:
    gguf = write_weights(tmp_path, T.Q4_K)
    ledger = Ledger({})
    plain, _, bits = name.partition("-")
    gpu = plain not in ("KLinearCPUInfer", "KExpertsCPU")
    made = context(torch.bfloat16, gpu=gpu, num_bits=int(bits or 4), ledger=ledger)
    if name in LINEARS:
        sources = linear_sources(gguf)
        make_linear(plain, made, sources)
    else:
        sources = experts_sources(gguf)
        make_experts(plain, made, sources)
    infos = [source.info for source in sources]
    expected = OPERATORS[plain].weight_bytes(infos, dtype_bytes=2, num_bits=int(bits or 4))
    assert ledger.taken("cuda:0" if gpu else "cpu", "weights") == expected
    assert ledger.taken("cpu", "load") == 0


def test_the_operators_are_exactly_those_of_the_catalogue() -> None:
    known = {name: op for name, op in OPERATORS.items() if "builtin" in op.engines}
    linear = {name for name, operator in known.items() if operator.kind == "linear"}
    assert set(LINEAR_OPERATORS) == linear
    assert set(EXPERTS_OPERATORS) == set(known) - linear


@pytest.mark.parametrize("name", LINEARS)
def test_an_operator_refuses_a_tensor_of_another_device(name: str, tmp_path: Path) -> None:
    gguf = write_weights(tmp_path, T.Q8_0)
    with checked_places():
        operator = _linear(name, gguf, torch.float32)
        elsewhere = GPU if operator.place.name == "cpu" else operator.place
        x = put(random(1, HIDDEN), elsewhere)
        if operator.place is elsewhere:
            x = put(random(1, HIDDEN), context(torch.float32, gpu=False).place)
        with pytest.raises(AssertionError):
            operator(x)


@pytest.mark.parametrize("name", ["KLinearMarlin", "KExpertsMarlin"])
def test_marlin_on_the_cpu_is_refused(name: str, tmp_path: Path) -> None:
    gguf = write_weights(tmp_path, T.Q8_0)
    made = context(torch.float32, gpu=False)
    make = make_linear if name in LINEAR_OPERATORS else make_experts
    sources = linear_sources(gguf) if name in LINEAR_OPERATORS else experts_sources(gguf)
    with pytest.raises(AutoplaceError, match="run on GPUs only, but the rules put it on cpu"):
        make(name, made, sources)


def test_cpu_experts_on_a_gpu_are_refused(tmp_path: Path) -> None:
    gguf = write_weights(tmp_path, T.Q8_0)
    with pytest.raises(AutoplaceError, match="KExpertsCPU runs on cpu only"):
        make_experts("KExpertsCPU", context(torch.float32, gpu=True), experts_sources(gguf))


def test_a_misspelt_operator_names_its_near_miss(tmp_path: Path) -> None:
    gguf = write_weights(tmp_path, T.Q8_0)
    with pytest.raises(AutoplaceError, match="did you mean 'KLinearMarlin'"):
        make_linear("KLinearMarlim", context(torch.float32, gpu=True), linear_sources(gguf))
