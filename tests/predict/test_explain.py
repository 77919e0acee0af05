"""What binds a placement and what would help, against models that are asked again."""

from dataclasses import replace

import pytest

from autoplace.placement.placement import Choice, LayerPlacement
from autoplace.placement.space import SearchSpace
from autoplace.predict.explain import lengths_to_try, margins, why_it_loses
from autoplace.predict.latency import LatencyModel
from autoplace.predict.predicted import Predicted
from autoplace.predict.solve import Solver
from autoplace.units import GIB
from autoplace.workload import Workload
from tests.placement.machines import machine
from tests.predict.test_solve import model_of, overrun_of
from tests.rules.specs import spec

CHAT = Workload("chat", 128, 32, 160)


def solved(engine: str = "builtin") -> tuple[SearchSpace, LatencyModel, Predicted]:
    space = SearchSpace(spec("deepseek-v2-lite"), machine(5, 3), CHAT, engine)
    model = model_of(space)
    pick = Solver(space, model, overrun_of(space)).solve().pick
    assert pick is not None
    return space, model, pick


def test_a_margin_is_what_moving_one_more_layer_really_gives() -> None:
    space, model, pick = solved()
    margin, *_ = margins(space, model, overrun_of(space), pick)
    layers = list(pick.placement.layers)
    rates = []
    for i, layer in enumerate(layers):
        if layer.experts is not None and layer.experts.device == "cpu":
            moved = LayerPlacement(
                layer.device, layer.attention, layer.mlp, Choice(margin.device, "KExpertsMarlin", 4)
            )
            placement = replace(pick.placement, layers=(*layers[:i], moved, *layers[i + 1 :]))
            rates.append(model.predict(placement, pick.settings).decode_tok_per_s)
    gain = max(rates) - pick.prediction.decode_tok_per_s
    assert margin.gain_tok_per_s == pytest.approx(gain, rel=0.02)
    assert margin.missing_bytes == margin.next_bytes - margin.left_bytes > 0
    assert f"{margin.device} is full" in str(margin)


def test_memory_that_is_added_as_a_margin_says_takes_one_more_layer() -> None:
    space, model, pick = solved()
    margin, *_ = margins(space, model, overrun_of(space), pick)
    gpus = tuple(
        replace(gpu, memory_bytes=gpu.memory_bytes + margin.missing_bytes)
        if gpu.name == margin.device
        else gpu
        for gpu in space.machine.gpus
    )
    larger = replace(space, machine=replace(space.machine, devices=(space.machine.host, *gpus)))
    again = Solver(larger, model_of(larger), overrun_of(larger)).solve().pick
    assert again is not None
    rate, before = again.prediction.decode_tok_per_s, pick.prediction.decode_tok_per_s
    assert rate - before > 0.9 * margin.gain_tok_per_s


def test_without_experts_on_the_host_there_is_no_margin() -> None:
    space = SearchSpace(spec("deepseek-v2-lite"), machine(48), CHAT, "builtin")
    pick = Solver(space, model_of(space), overrun_of(space)).solve().pick
    assert pick is not None
    assert margins(space, model_of(space), overrun_of(space), pick) == ()


def test_a_card_with_room_that_stays_empty_says_what_an_expert_there_would_cost() -> None:
    where = machine(48)
    host = replace(where.host, memory_bytes=256 * GIB, bandwidth_bytes_per_s=400e9)
    where = replace(where, devices=(host, *where.gpus), num_cores=32)
    space = SearchSpace(spec("deepseek-v2"), where, CHAT, "ktransformers-0.3")
    model = model_of(space)
    fastest = Solver(space, model, overrun_of(space)).solve().front[0]
    margin, *_ = margins(space, model, overrun_of(space), fastest)
    assert margin.gain_tok_per_s < 0
    assert "has room for more" in str(margin)


def test_the_parts_that_a_loser_loses_by_are_named_largest_first() -> None:
    space, model, pick = solved()
    loser = model.predict(*space.decode({}))
    text = why_it_loses(loser, pick.prediction, CHAT)
    difference = loser.request_s(CHAT) - pick.prediction.request_s(CHAT)
    assert difference > 0
    assert "a request more: experts on the host +" in text


@pytest.mark.parametrize(("longest", "prompts"), [(700, [32, 512]), (100_000, [32, 512, 2048])])
def test_lengths_end_where_the_model_does(longest: int, prompts: list[int]) -> None:
    assert [w.prompt_tokens for w in lengths_to_try(CHAT, longest)] == prompts
