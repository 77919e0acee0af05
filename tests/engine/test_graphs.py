"""Decoding by recorded pieces gives what decoding does, at every position, wherever experts are."""

import logging
from pathlib import Path

import pytest
import torch

from autoplace.architectures.spec import Role
from autoplace.engine import graphs
from autoplace.engine.model import HybridModel
from autoplace.errors import AutoplaceError
from autoplace.hardware.ledger import Ledger
from autoplace.models.backend import slow_twin
from autoplace.models.place import Place
from autoplace.placement.workspace import graph_bytes
from tests.engine.host_capture import HostCapture
from tests.engine.tiny import CONTEXT, EMULATED, load_tiny, placed, some_tokens, write_tiny

NUM_PROMPT, NUM_DECODED = 5, 9
KV_BOUNDS = {"f32": 1e-4, "f16": 1e-3, "q8_0": 2e-2}
"""Of the largest logit: a value halfway between two steps of the cache's type may go either way."""


def decoded(model: HybridModel, tokens: list[int]) -> torch.Tensor:
    model.reset()
    model.prefill(tokens[:NUM_PROMPT])
    return torch.stack([model.decode(token) for token in tokens[NUM_PROMPT:]])


@pytest.fixture(autouse=True)
def _small_buckets(monkeypatch: pytest.MonkeyPatch) -> None:
    """Positions 5 to 13 lie in two buckets."""
    monkeypatch.setattr(graphs, "SMALLEST_BUCKET", 8)


@pytest.mark.parametrize(
    ("preset", "linear_device", "kv_type"),
    [
        ("tiny", None, "f32"),
        ("tiny", "cpu", "q8_0"),
        ("tiny-v3", None, "f16"),
        ("tiny-qwen3moe", None, "f32"),
        ("tiny-llama", "cpu", "f32"),
    ],
)
def test_recorded_decoding_gives_the_same_logits(
    tiny_folder: Path, preset: str, linear_device: str | None, kv_type: str
) -> None:
    gguf, spec = write_tiny(tiny_folder, preset, "f16")
    linear = "KLinearCPUInfer" if linear_device else "KLinearTorch"
    assignment = placed(
        spec,
        linear=linear,
        linear_device=linear_device,
        experts="KExpertsCPU",
        layer_devices=("cuda:0", "cuda:1"),
    )
    tokens = some_tokens(spec, NUM_PROMPT + NUM_DECODED)
    with slow_twin():
        model = load_tiny(gguf, spec, assignment, kv_type=kv_type)
        expected = decoded(model, tokens)
        model.use_graphs(HostCapture)
        bound = KV_BOUNDS[kv_type] * float(expected.abs().max())
        torch.testing.assert_close(decoded(model, tokens), expected, rtol=0, atol=bound)
        other = some_tokens(spec, 40)[-len(tokens) :]
        again = decoded(model, other)
        model.close()
    fresh = load_tiny(gguf, spec, assignment, kv_type=kv_type)
    torch.testing.assert_close(again, decoded(fresh, other), rtol=0.02, atol=0.02)


def test_all_buckets_are_recorded_at_the_first_token_in_pieces_around_the_hosts_experts(
    tiny_folder: Path,
) -> None:
    """Each expert layer cuts twice; another GPU ends one piece and begins one."""
    gguf, spec = write_tiny(tiny_folder, "tiny-v3", "f16")
    made: list[HostCapture] = []

    def capture(place: Place) -> HostCapture:
        made.append(HostCapture(place))
        return made[-1]

    assignment = placed(spec, experts="KExpertsCPU", layer_devices=("cuda:0", "cuda:1"))
    num_moe = len(spec.of_role(Role.EXPERTS))
    assert num_moe > 0
    with slow_twin():
        model = load_tiny(gguf, spec, assignment)
        model.use_graphs(capture)
        tokens = some_tokens(spec, NUM_PROMPT + NUM_DECODED)
        decoded(model, tokens[: NUM_PROMPT + 1])
        assert len(made) == len([8, 16, 32, 64, CONTEXT]) * (1 + 1 + 2 * num_moe)
        recorded = list(made)
        decoded(model, tokens)
        assert made == recorded
    assert sum(piece.num_operations > 2 for piece in made) >= len(made) // 2


@pytest.mark.parametrize(
    ("position", "bucket"), [(0, 8), (7, 8), (8, 16), (63, 64), (64, 96), (95, 96)]
)
def test_a_bucket_holds_the_position_and_never_more_than_the_cache(
    tiny_folder: Path, position: int, bucket: int
) -> None:
    gguf, spec = write_tiny(tiny_folder, "tiny-llama", "f16")
    model = load_tiny(gguf, spec, placed(spec, layer_devices=("cuda:0",)))
    model.use_graphs(HostCapture)
    assert model._graphs is not None
    assert model._graphs._bucket(position) == bucket


def test_a_layer_on_the_cpu_is_refused(tiny_folder: Path) -> None:
    gguf, spec = write_tiny(tiny_folder, "tiny-llama", "f16")
    model = load_tiny(gguf, spec, placed(spec, layer_devices=("cpu", "cuda:0")))
    with pytest.raises(AutoplaceError, match="but layer=0 is on cpu and CUDA graphs need"):
        model.use_graphs(HostCapture)


def test_experts_on_another_gpu_than_their_layer_are_refused(tiny_folder: Path) -> None:
    gguf, spec = write_tiny(tiny_folder, "tiny-v3", "f16")
    assignment = placed(spec, layer_devices=("cuda:0",), experts_device="cuda:1")
    model = load_tiny(gguf, spec, assignment)
    with pytest.raises(AutoplaceError, match=r"experts is on cuda:1 and its layer on cuda:0"):
        model.use_graphs(HostCapture)


def test_an_emulated_gpu_decodes_without_graphs_and_says_so(
    tiny_folder: Path, caplog: pytest.LogCaptureFixture
) -> None:
    gguf, spec = write_tiny(tiny_folder, "tiny-llama", "f16")
    with caplog.at_level(logging.INFO, logger="autoplace.engine"):
        model = load_tiny(gguf, spec, placed(spec, layer_devices=("cuda:0",)))
    assert not model.uses_graphs
    assert "decoding without CUDA graphs: cuda:0 is emulated" in caplog.messages


@pytest.mark.parametrize(
    ("cuda_graphs", "devices", "message"),
    [
        ("on", ("cuda:0",), r"engine.cuda_graphs=on cannot be: cuda:0 is emulated$"),
        ("on", ("cpu", "cuda:0"), r"cannot be: layer=0 is on cpu and CUDA graphs need every layer"),
        ("maybe", ("cuda:0",), r"expected engine.cuda_graphs auto, on, off but got 'maybe'$"),
    ],
)
def test_graphs_that_cannot_be_are_refused_before_a_weight_is_loaded(
    cuda_graphs: str, devices: tuple[str, ...], message: str, tiny_folder: Path
) -> None:
    gguf, spec = write_tiny(tiny_folder, "tiny-llama", "f16")
    ledger = Ledger.of(EMULATED)
    with pytest.raises(AutoplaceError, match=message):
        load_tiny(
            gguf,
            spec,
            placed(spec, layer_devices=devices),
            cuda_graphs=cuda_graphs,
            ledger=ledger,
        )
    assert all(ledger.peak(name) == 0 for name in EMULATED.by_name)


@pytest.mark.parametrize("preset", ["tiny-v3", "tiny-qwen3moe"])
def test_what_graphs_keep_is_within_the_room_that_is_declared(
    preset: str, tiny_folder: Path
) -> None:
    """The inputs of every GPU, by their tensors; whether the pool is too, only a GPU shows."""
    gguf, spec = write_tiny(tiny_folder, preset, "f16")
    with slow_twin():
        model = load_tiny(gguf, spec, placed(spec, layer_devices=("cuda:0", "cuda:1")))
        model.use_graphs(HostCapture)
        assert model._graphs is not None
        room = graph_bytes(spec.geometry, context_tokens=CONTEXT)
        for inputs in model._graphs._inputs.values():
            held = sum(x.nbytes for x in vars(inputs).values())
            assert 0 < held < room / 2
