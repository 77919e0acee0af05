"""What llama.cpp makes of its arguments: every tensor where the placement has it."""

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from autoplace.catalog.llama_cpp import EXPERTS, LINEAR
from autoplace.errors import AutoplaceError
from autoplace.export.llama_cpp import (
    LlamaCppArgs,
    args_of_placement,
    arguments_of,
    buffers_of,
    check_overrides,
    layer_devices,
    nearest_placement,
    parse_args,
    placement_of,
    tensor_devices,
)
from autoplace.export.llama_cpp.layout import TIED_OUTPUT, cuda_buffers
from autoplace.hardware.machine import Device, Machine
from autoplace.placement.assignment import Assignment
from autoplace.placement.expand import Expander
from autoplace.placement.placement import Choice, LayerPlacement, Placement
from autoplace.placement.settings import RunSettings
from tests.rules.specs import spec

GPUS = ["cuda:0", "cuda:1", "cuda:2"]
HOST = Choice("cpu", EXPERTS)
MODELS = ["deepseek-v2", "deepseek-v3", "mixtral-8x7b", "qwen3-30b-a3b", "smollm2-135m"]


def placement(name: str, homes: list[str], experts: list[Choice], head: str = "") -> Placement:
    model = spec(name)
    layers = tuple(
        LayerPlacement(
            home,
            Choice(home, LINEAR),
            Choice(home, LINEAR) if _has_mlp(name, i) else None,
            experts[i % len(experts)] if i in model.moe_layers else None,
        )
        for i, home in enumerate(homes)
    )
    return Placement("llama.cpp", layers, Choice(head or homes[-1], LINEAR))


def _has_mlp(name: str, layer: int) -> bool:
    model = spec(name)
    moe = model.geometry.moe
    return layer not in model.moe_layers or (moe is not None and moe.shared_ffn > 0)


def placed(
    name: str, homes: list[str], experts: list[Choice]
) -> tuple[Assignment, tuple[str, ...]]:
    return Expander(spec(name)).expand(placement(name, homes, experts)), tuple(homes)


@st.composite
def placements(draw: st.DrawFn, name: str) -> tuple[Placement, list[str]]:
    """Leading layers on the host, one run a GPU, experts and the output anywhere."""
    num_layers = spec(name).geometry.num_layers
    gpus = GPUS[: draw(st.integers(0, 3))]
    devices = ["cpu", *gpus]
    ends = sorted(draw(st.integers(0, num_layers)) for _ in gpus)
    bounds = [*ends, num_layers]
    homes = [
        devices[next(i for i, end in enumerate(bounds) if layer < end)]
        for layer in range(num_layers)
    ]
    choices = [Choice(device, EXPERTS) for device in devices]
    experts = draw(st.lists(st.sampled_from(choices), min_size=1, max_size=5))
    tied = spec(name).geometry.tied_embeddings
    head = draw(st.sampled_from(["cpu", homes[-1]] if tied else devices))
    return placement(name, homes, experts, head), gpus


@pytest.mark.parametrize("name", MODELS)
@settings(max_examples=8, deadline=None, suppress_health_check=list(HealthCheck))
@given(data=st.data())
def test_a_placement_is_read_back_from_its_arguments(name: str, data: st.DataObject) -> None:
    meant, gpus = data.draw(placements(name))
    buffers = cuda_buffers(gpus)
    run = RunSettings(8, 512, batch=2048, flash_attn="auto")
    args = args_of_placement(meant, run, spec(name), buffers, context_tokens=4096)
    assert check_overrides(args, list(spec(name).tensors), buffers) == []
    again = parse_args(args.line("llama-server"))
    assert again == args
    assert placement_of(again, spec(name), buffers) == meant
    assert (again.ubatch, again.threads, again.context, again.fit) == (512, 8, 4096, False)


@pytest.mark.parametrize(
    ("homes", "words"),
    [
        ([*["cuda:0"] * 20, *["cpu"] * 40], "keeps the first layers on the CPU, but layer 20"),
        ([*["cuda:0"] * 20, *["cuda:1"] * 20, *["cuda:0"] * 20], "one run of layers"),
    ],
)
def test_what_the_split_cannot_say_is_refused_with_the_reason(homes: list[str], words: str) -> None:
    assignment, found = placed("deepseek-v2", homes, [HOST])
    with pytest.raises(AutoplaceError, match=words):
        arguments_of(assignment, found, spec("deepseek-v2"))


def test_a_device_that_is_not_there_is_refused() -> None:
    assignment, found = placed("deepseek-v2", ["cuda:1"] * 60, [HOST])
    with pytest.raises(AutoplaceError, match="layers are on cuda:1, but there is cpu, cuda:0"):
        arguments_of(assignment, found, spec("deepseek-v2"), cuda_buffers(["cuda:0"]))


def test_leading_layers_stay_on_the_host_and_an_unused_gpu_gets_no_share() -> None:
    homes = [*["cpu"] * 10, *["cuda:1"] * 50]
    assignment, found = placed("deepseek-v2", homes, [Choice("cuda:1", EXPERTS)])
    args = arguments_of(assignment, found, spec("deepseek-v2"), cuda_buffers(GPUS))
    assert (args.n_gpu_layers, args.tensor_split) == (51, (0.0, 51.0, 0.0))


def test_fewer_gpu_layers_leave_the_first_layers_on_the_host() -> None:
    assert layer_devices(LlamaCppArgs(3), 4, ["cuda:0"]) == ["cpu", "cpu", *["cuda:0"] * 3]
    assert layer_devices(LlamaCppArgs(0), 2, ["cuda:0"]) == ["cpu"] * 3
    assert layer_devices(LlamaCppArgs(), 2, ["cuda:0"]) == ["cuda:0"] * 3
    split = LlamaCppArgs(99, (1, 3))
    assert layer_devices(split, 3, GPUS[:2]) == ["cuda:0", *["cuda:1"] * 3]
    one = LlamaCppArgs(99, split_mode="none", main_gpu=1)
    assert layer_devices(one, 1, GPUS) == ["cuda:1", "cuda:1"]
    assert layer_devices(LlamaCppArgs(devices=("none",)), 1, GPUS) == ["cpu", "cpu"]


def test_a_tied_output_follows_the_last_layer_and_the_embedding_does_not() -> None:
    where = tensor_devices(LlamaCppArgs(), spec("smollm2-135m"), cuda_buffers(["cuda:0"]))
    assert (where["token_embd.weight"], where[TIED_OUTPUT]) == ("cpu", "cuda:0")


def test_rpc_servers_are_devices_with_the_address_in_their_buffers_name() -> None:
    devices = [Device("cpu", "host", 1, 0, 1.0, 1.0)]
    devices += [
        Device(f"rpc:{i}", "server", 1, 0, 1.0, 1.0, endpoint=f"127.0.0.1:{i}") for i in (5, 6)
    ]
    buffers = buffers_of(Machine("m", tuple(devices)))
    assert buffers == {"cpu": "CPU", "rpc:5": "RPC0[127.0.0.1:5]", "rpc:6": "RPC0[127.0.0.1:6]"}
    meant = placement("mixtral-8x7b", [*["rpc:5"] * 20, *["rpc:6"] * 12], [HOST])
    args = args_of_placement(
        meant, RunSettings(2, 64), spec("mixtral-8x7b"), buffers, context_tokens=100
    )
    assert args.rpc == ("127.0.0.1:5", "127.0.0.1:6")
    assert placement_of(parse_args(args.line()), spec("mixtral-8x7b"), buffers) == meant


def test_a_line_that_parts_one_attention_means_no_placement() -> None:
    args = parse_args("-ngl 99 -ot 'blk.3.attn_output=CPU'")
    with pytest.raises(AutoplaceError, match="a placement keeps them together"):
        placement_of(args, spec("mixtral-8x7b"), cuda_buffers(["cuda:0"]))


def test_what_fit_splits_by_tensors_comes_nearest_to_where_most_bytes_are() -> None:
    """As `llama-fit-params` prints it: the first layer that overflows leaves one part behind."""
    line = r"-ngl 33 -ts 11,22 -ot 'blk\.10\.ffn_down.*=CUDA1,blk\.18\.ffn_(up|down).*=CPU'"
    args, buffers = parse_args(line), cuda_buffers(GPUS[:2])
    model = spec("mixtral-8x7b")
    with pytest.raises(AutoplaceError):
        placement_of(args, model, buffers)
    layers = nearest_placement(args, model, buffers).layers
    assert [layers[i].experts for i in (10, 18, 19)] == [
        Choice("cuda:0", EXPERTS),
        Choice("cpu", EXPERTS),
        Choice("cuda:1", EXPERTS),
    ]


def test_a_placement_is_its_own_nearest() -> None:
    meant = placement("deepseek-v2", [*["cpu"] * 10, *["cuda:0"] * 50], [HOST])
    buffers = cuda_buffers(["cuda:0"])
    args = args_of_placement(
        meant, RunSettings(8, 512), spec("deepseek-v2"), buffers, context_tokens=100
    )
    assert nearest_placement(args, spec("deepseek-v2"), buffers) == meant
