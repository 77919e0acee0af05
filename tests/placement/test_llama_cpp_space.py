"""What is tuned for llama.cpp: the same space, with leading layers on the host, and its knobs."""

import random
from collections.abc import Mapping

import pytest

from autoplace.catalog.llama_cpp import ENGINE, EXPERTS, LINEAR
from autoplace.export.llama_cpp import args_of_placement, buffers_of, placement_of
from autoplace.export.memory import PlacementMemory
from autoplace.hardware.machine import Machine
from autoplace.placement.placement import Choice, Placement
from autoplace.placement.settings import RunSettings
from autoplace.placement.space import SearchSpace
from autoplace.predict.latency import LatencyModel
from autoplace.predict.solve import Solver
from autoplace.workload import Workload
from tests.placement.machines import machine
from tests.rules.specs import spec

LONG = Workload("long", 4000, 32, 4096)


def space_of(model: str, where: Machine) -> SearchSpace:
    return SearchSpace(spec(model), where, LONG, ENGINE, kv_types=("f16", "q8_0"))


def test_without_a_gpu_only_how_it_runs_is_left_to_choose() -> None:
    space = space_of("deepseek-v2-lite", machine())
    knobs = {"num_threads", "prefill_chunk", "kv_type", "batch", "flash_attn"}
    assert space.names == knobs - ({"num_threads"} if machine().num_cores == 1 else set())


def test_gpus_add_layers_experts_and_the_output_but_no_operators() -> None:
    names = space_of("deepseek-v2-lite", machine(24, 12)).names
    placed = {"cpu.end_layer", "cuda:0.end_layer", "cuda:0.num_experts", "cuda:1.num_experts"}
    assert placed <= names
    assert "lm_head" in names
    assert not any(name.endswith((".attention", ".mlp", ".experts")) for name in names)


@pytest.mark.parametrize("gpus", [(), (24,), (24, 12)])
def test_every_vector_is_a_placement_that_has_its_values(gpus: tuple[int, ...]) -> None:
    space, rng = space_of("deepseek-v2-lite", machine(*gpus)), random.Random(0)
    for _ in range(50):
        placement, settings = space.decode(space.draw(rng))
        assert placement.engine == ENGINE
        again = space.encode(placement, settings)
        assert again is not None
        assert space.decode(again) == (placement, settings)


def test_leading_layers_may_stay_on_the_host() -> None:
    space = space_of("deepseek-v2-lite", machine(24))
    placement, _ = space.decode({"cpu.end_layer": 5})
    assert [layer.device for layer in placement.layers[4:6]] == ["cpu", "cuda:0"]
    assert placement.layers[4].attention == Choice("cpu", LINEAR)
    assert placement.layers[5].experts == Choice("cpu", EXPERTS)


def test_llama_cpp_would_refuse_no_settings_of_the_space() -> None:
    """A quantised V cache needs flash attention; a micro-batch is no larger than a batch."""
    space, rng = space_of("deepseek-v2-lite", machine()), random.Random(1)
    for _ in range(100):
        _, settings = space.decode(space.draw(rng))
        assert settings.flash_attn == "auto" or settings.kv_type == "f16"
        assert settings.batch is not None
        assert settings.prefill_chunk <= settings.batch


def test_settings_of_other_engines_are_written_down_as_before() -> None:
    assert RunSettings(8, 512).record() == {
        "num_threads": 8,
        "prefill_chunk": 512,
        "kv_type": "f16",
    }


@pytest.mark.parametrize("gpus", [(24,), (24, 12)])
def test_an_output_that_is_the_embedding_is_where_the_last_layer_is(gpus: tuple[int, ...]) -> None:
    space, rng = space_of("smollm2-135m", machine(*gpus)), random.Random(2)
    assert "lm_head" not in space.names
    assert "lm_head" in SearchSpace(spec("smollm2-135m"), machine(*gpus), LONG, "builtin").names
    for _ in range(50):
        placement, settings = space.decode(space.draw(rng))
        assert placement.lm_head.device == placement.layers[-1].device
        args = args_of_placement(
            placement, settings, space.spec, buffers_of(space.machine), context_tokens=4096
        )
        assert placement_of(args, space.spec, buffers_of(space.machine)) == placement
        assert args.overrides == ()


def test_solutions_for_a_tied_output_are_such_that_llama_cpp_can_say_them() -> None:
    space = space_of("smollm2-135m", machine(24, 12))
    model = LatencyModel(space.spec, space.machine, LONG, engine=ENGINE)
    plans = PlacementMemory(space.spec, space.machine)

    def overrun(placement: Placement, settings: RunSettings) -> Mapping[str, int]:
        return plans.plan(placement, settings, LONG).overrun_bytes(space.machine)

    solved = Solver(space, model, overrun).solve()
    assert solved.pool
    assert all(space.encode(one.placement, one.settings) is not None for one in solved.pool)
