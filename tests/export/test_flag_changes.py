"""Lines of llama.cpp that do not fit, and the smallest changes with which they would."""

import pytest

from autoplace.export.flag_changes import LlamaSituation, smallest_flag_changes
from autoplace.export.llama_cpp import LlamaCppArgs, buffers_of
from autoplace.hardware.machine import Device, Machine
from tests.rules.specs import spec

GIB = 2**30
MODEL = spec("deepseek-v2-lite")


def machine(*gpu_gib: float, host_gib: float = 64) -> Machine:
    gpus = (Device(f"cuda:{i}", "GPU", int(n * GIB), 0, 1e12, 1e14) for i, n in enumerate(gpu_gib))
    return Machine("m", (Device("cpu", "host", int(host_gib * GIB), 0, 1e11, 1e12), *gpus))


def situation(
    args: LlamaCppArgs, on: Machine, context_tokens: int = 4096, model: str = "deepseek-v2-lite"
) -> LlamaSituation:
    return LlamaSituation(spec(model), args, buffers_of(on), on, context_tokens)


ALL = LlamaCppArgs(n_gpu_layers=99)


def test_what_fits_needs_no_change() -> None:
    assert smallest_flag_changes(situation(ALL, machine(24))) == []


def test_as_few_layers_experts_as_needed_leave_the_gpu() -> None:
    found = situation(ALL, machine(8))
    assert found.over().keys() == {"cuda:0"}
    change = smallest_flag_changes(found)[0]
    assert change.what.startswith("experts of layers ")
    after = found.with_args(change.args)
    assert after.over() == {}
    moved = after.expert_layers()["cpu"]
    assert change.args.line().count("-ot") == 1
    fewer = found.with_args(
        LlamaCppArgs(
            n_gpu_layers=99,
            overrides=((rf"blk\.({'|'.join(map(str, moved[1:]))})\.ffn_.*_exps", "CPU"),),
        )
    )
    assert fewer.over()


def test_unequal_gpus_get_a_split_by_their_memory() -> None:
    found = situation(LlamaCppArgs(n_gpu_layers=99, tensor_split=(1, 1)), machine(24, 5))
    what = [change.what for change in smallest_flag_changes(found)]
    assert "-ts 24,5, by the GPUs' memory" in what


@pytest.mark.parametrize("word", ["-ctk q8_0", "-c "])
def test_a_cache_that_is_too_long_gets_smaller_or_shorter(word: str) -> None:
    found = situation(ALL, machine(24), context_tokens=32768, model="qwen2-57b-a14b")
    moved = smallest_flag_changes(found)[0].args
    room = found.with_args(moved).plan().by_device["cuda:0"].peak
    tight = situation(moved, machine(room / GIB - 0.5), 32768, "qwen2-57b-a14b")
    changes = smallest_flag_changes(tight)
    (change,) = [one for one in changes if one.what.startswith(word)]
    assert max(change.plan.overrun_bytes(tight.machine).values()) <= 0


def test_a_host_that_is_too_small_sends_experts_to_gpus() -> None:
    args = LlamaCppArgs(n_gpu_layers=99, overrides=(("exps", "CPU"),))
    found = situation(args, machine(24, host_gib=6))
    assert found.over().keys() == {"cpu"}
    change = smallest_flag_changes(found)[0]
    assert change.what.endswith("to their GPUs")
    assert found.with_args(change.args).over() == {}
