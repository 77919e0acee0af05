"""The feed-forward half of a layer, norms and the choice of experts, for one token, in float64."""

import numpy as np
import pytest
from numpy.typing import NDArray

from autoplace import native
from autoplace.errors import AutoplaceError
from autoplace.native_decode import DecodeKernels, FeedForward, Norm, Prepared, Role, Router
from autoplace.weights.ggml import GGMLType
from tests.kernels.one_token import BF16, F32, Arrays, Exact, MlpLayer, from_bf16, softmax

WIDTH, INNER, EXPERTS, TOP_K = 75, 37, 12, 3


def router(num_experts: int = EXPERTS, **changes: float) -> Router:
    """Softmax, no groups, nothing normalised, unless changed."""
    made = Router(top_k=TOP_K, num_groups=1, num_groups_used=1, scaling=1.0)
    made.weight.n = num_experts
    for name, value in changes.items():
        setattr(made, name, value)
    return made


def choose(
    kernels: native.Kernels, described: Router, scores: Exact
) -> tuple[list[int], list[float]]:
    ids = np.full(described.top_k, -1, np.int64)
    weights = np.full(described.top_k, np.nan, np.float32)
    single = scores.astype(np.float32)
    DecodeKernels(kernels).choose_experts(
        Prepared.of(described), single.ctypes.data, ids.ctypes.data, weights.ctypes.data
    )
    return ids.tolist(), weights.tolist()


def run(
    kernels: native.Kernels, layer: FeedForward, x: Exact, dtype: GGMLType = F32
) -> NDArray[np.float32]:
    single = x.astype(np.float32)
    DecodeKernels(kernels).feed_forward(
        Prepared.of(layer), single.ctypes.data, dtype, single.ctypes.data
    )
    return single


def token(width: int = WIDTH) -> Exact:
    return np.random.default_rng(5).standard_normal(width).astype(np.float32).astype(np.float64)


@pytest.mark.parametrize("dtype", [F32, BF16])
def test_a_dense_half_adds_swiglu_of_the_normed_token(
    on_path: native.Kernels, dtype: GGMLType
) -> None:
    arrays = Arrays(dtype=dtype)
    described, norm = arrays.norm(WIDTH)
    mlp = MlpLayer(arrays, WIDTH, INNER)
    x = token()
    out = run(on_path, FeedForward(norm=described, dense=mlp.struct), x)
    exact = x + mlp(norm(x))
    assert np.abs(out - exact).max() <= 1e-5 * np.abs(exact).max()


@pytest.mark.parametrize("dtype", [F32, BF16])
@pytest.mark.parametrize("shared", ["none", "shared", "gated"])
def test_a_routed_half_adds_the_chosen_experts_and_the_shared_one(
    on_path: native.Kernels, shared: str, dtype: GGMLType
) -> None:
    arrays = Arrays(dtype=dtype)
    described, norm = arrays.norm(WIDTH)
    experts = MlpLayer(arrays, WIDTH, INNER, EXPERTS)
    layer = FeedForward(norm=described, experts=experts.struct, router=router())
    layer.router.weight, scores_of = arrays.matrix(EXPERTS, WIDTH)
    x = token()
    normed = norm(x)
    probabilities = softmax(scores_of(normed))
    chosen = np.argsort(-probabilities)[:TOP_K]
    exact = x + sum(probabilities[e] * experts(normed, e) for e in chosen)
    if shared != "none":
        beside = MlpLayer(arrays, WIDTH, 2 * INNER)
        layer.shared = beside.struct
        share = 1.0
        if shared == "gated":
            layer.shared_gate, gate = arrays.matrix(1, WIDTH)
            share = 1 / (1 + np.exp(-gate(normed)[0]))
        exact = exact + share * beside(normed)
    out = run(on_path, layer, x)
    assert np.abs(out - exact).max() <= 1e-5 * np.abs(exact).max()


@pytest.mark.parametrize("num_tokens", [1, 3])
@pytest.mark.parametrize("width", [1, 7, 64, 2048])
def test_a_norm_divides_by_the_root_of_the_mean_square(
    on_path: native.Kernels, width: int, num_tokens: int
) -> None:
    arrays = Arrays()
    described, norm = arrays.norm(width, eps=1e-3)
    x = np.random.default_rng(1).standard_normal((num_tokens, width)).astype(np.float32)
    out = np.full_like(x, np.nan)
    prepared = Prepared.of(described)
    DecodeKernels(on_path).rms_norm(prepared, x.ctypes.data, F32, num_tokens, out.ctypes.data)
    exact = norm(x.astype(np.float64))
    np.testing.assert_allclose(out, exact, rtol=1e-6)


def test_a_norm_of_bf16_tokens_is_rounded_once(kernels: native.Kernels) -> None:
    arrays = Arrays(dtype=BF16)
    described, norm = arrays.norm(64)
    address, x = arrays.stored(2, 64)
    out = np.zeros((2, 64), np.uint16)
    DecodeKernels(kernels).rms_norm(Prepared.of(described), address, BF16, 2, out.ctypes.data)
    np.testing.assert_allclose(from_bf16(out), norm(x), rtol=2**-8)


SCORES = np.array([0.1, 2.0, -1.0, 0.5, 3.0, 0.0, 1.0, 0.2, -2.0, 0.3, 0.4, 2.5])


def test_the_best_experts_come_first_with_their_softmax(kernels: native.Kernels) -> None:
    ids, weights = choose(kernels, router(), SCORES)
    assert ids == [4, 11, 1]
    np.testing.assert_allclose(weights, softmax(SCORES)[[4, 11, 1]], rtol=1e-6)


def test_normalised_weights_add_up_to_the_scaling(kernels: native.Kernels) -> None:
    _, weights = choose(kernels, router(normalise=1, scaling=2.5), SCORES)
    assert sum(weights) == pytest.approx(2.5, rel=1e-6)


def test_a_bias_takes_part_in_choosing_only(kernels: native.Kernels) -> None:
    bias = np.zeros(EXPERTS, np.float32)
    bias[2] = 5.0
    described = router(sigmoid=1, bias=bias.ctypes.data)
    ids, weights = choose(kernels, described, SCORES)
    assert ids == [2, 4, 11]
    np.testing.assert_allclose(weights, 1 / (1 + np.exp(-SCORES[[2, 4, 11]])), rtol=1e-6)


def test_softmax_groups_rank_by_their_best_expert(kernels: native.Kernels) -> None:
    """Of the groups (0 … 2), (3 … 5), (6 … 8), (9 … 11) the second and the last have 3.0, 2.5."""
    ids, _ = choose(kernels, router(num_groups=4, num_groups_used=2), SCORES)
    assert ids == [4, 11, 3]


def test_sigmoid_groups_rank_by_their_best_two(kernels: native.Kernels) -> None:
    """σ(3) + σ(0.5) = 1.57, σ(2.5) + σ(0.4) = 1.52; σ(2) + σ(0.1) = 1.41 does not count."""
    ids, _ = choose(kernels, router(sigmoid=1, num_groups=4, num_groups_used=2), SCORES)
    assert ids == [4, 11, 3]
    one_of_two = np.array([9.0, -9.0, 1.0, 1.0])  # σ: 1.0 + 0.0 against 0.73 + 0.73
    described = router(4, sigmoid=1, num_groups=2, num_groups_used=1, top_k=2)
    assert choose(kernels, described, one_of_two)[0] == [2, 3]


def test_of_equal_experts_the_first_are_chosen(kernels: native.Kernels) -> None:
    assert choose(kernels, router(), np.zeros(EXPERTS))[0] == [0, 1, 2]


def test_scores_that_are_not_finite_give_experts_that_exist(kernels: native.Kernels) -> None:
    described = router(num_groups=4, num_groups_used=2)
    ids, weights = choose(kernels, described, np.full(EXPERTS, np.nan))
    assert all(0 <= expert < EXPERTS for expert in ids)
    assert np.isnan(weights).all()


@pytest.mark.parametrize(
    "changes",
    [
        {"top_k": 0},
        {"top_k": EXPERTS + 1},
        {"num_groups": 5},
        {"num_groups": 4, "num_groups_used": 0},
        {"num_groups": 6, "num_groups_used": 1},
    ],
)
def test_a_router_that_cannot_choose_is_refused(
    kernels: native.Kernels, changes: dict[str, int]
) -> None:
    with pytest.raises(AutoplaceError, match="parts that do not fit together: Router"):
        choose(kernels, router(**changes), SCORES)


def test_a_half_whose_parts_do_not_fit_is_refused(kernels: native.Kernels) -> None:
    arrays = Arrays()
    described, _ = arrays.norm(WIDTH)
    wrong = FeedForward(norm=described, dense=MlpLayer(arrays, WIDTH + 1, INNER).struct)
    for layer in (wrong, FeedForward(norm=described), FeedForward(norm=Norm())):
        with pytest.raises(AutoplaceError, match="parts that do not fit together: FeedForward"):
            run(kernels, layer, token())


def test_activations_of_another_type_are_refused(kernels: native.Kernels) -> None:
    arrays = Arrays()
    described, _ = arrays.norm(WIDTH)
    layer = FeedForward(norm=described, dense=MlpLayer(arrays, WIDTH, INNER).struct)
    with pytest.raises(AutoplaceError, match="unknown type: FeedForward"):
        run(kernels, layer, token(), GGMLType.F16)


def test_times_by_role_are_counted_only_while_switched_on(kernels: native.Kernels) -> None:
    arrays = Arrays()
    described, _ = arrays.norm(WIDTH)
    layer = FeedForward(norm=described, dense=MlpLayer(arrays, WIDTH, INNER).struct)
    decode = DecodeKernels(kernels)
    decode.time_roles(on=True)
    run(kernels, layer, token())
    seconds = decode.role_seconds()
    assert seconds[Role.DENSE] > 0
    assert seconds[Role.NORMS] > 0
    assert seconds[Role.ATTENTION] == seconds[Role.ROUTER] == seconds[Role.EXPERTS] == 0
    decode.time_roles(on=False)
    run(kernels, layer, token())
    assert not any(decode.role_seconds().values())
