"""What a study of llama.cpp compares with, what of the user's line stays, and what it warns of."""

from dataclasses import replace

import pytest

from autoplace.architectures.spec import ModelSpec
from autoplace.bench.llama_cpp.tools import BENCH, Program, Tools
from autoplace.bench.metrics import Basis
from autoplace.errors import AutoplaceError
from autoplace.export.llama_cpp import check_overrides, nearest_placement, parse_args
from autoplace.export.llama_cpp.layout import tensor_devices
from autoplace.hardware.machine import Machine
from autoplace.placement.space import SearchSpace
from autoplace.tuner.candidate import Preparer, Problem
from autoplace.tuner.llama_cpp import LlamaCppStudy
from autoplace.workload import Workload
from tests.placement.machines import machine
from tests.rules.specs import spec

WORKLOAD = Workload("test", prompt_tokens=512, output_tokens=32, context_tokens=544)
HELP = "-m -ngl -ts -ot -t -b -ub -ctk -ctv -fa -rpc -nkvo --poll"
TOOLS = Tools({BENCH: Program(BENCH, BENCH, "9993 (abc)", HELP)})
TWO_GPUS = machine(24, 24)


def study(
    line: str | None = None,
    *,
    where: Machine = TWO_GPUS,
    model: ModelSpec | None = None,
    keep: bool = False,
) -> LlamaCppStudy:
    own = parse_args(line) if line is not None else None
    model = model or spec("deepseek-v2-lite")
    return LlamaCppStudy(model, where, WORKLOAD, TOOLS, "model.gguf", own, keep)


def problem(of: LlamaCppStudy) -> Problem:
    space = SearchSpace(of.spec, of.machine, WORKLOAD, "llama.cpp")
    return Problem(space, "model.gguf", "bfloat16", Basis.MEASURED, llama_cpp=of)


def names_of(of: LlamaCppStudy) -> list[str]:
    return [baseline.name for baseline in of.baselines()]


FITTED_LINE = (
    r"-c 4096 -ngl 28 -ts 12,16 -ot "
    r"'blk\.11\.ffn_(gate|gate_up|down).*=CUDA1,"
    r"blk\.26\.ffn_(up|down|gate_up|gate)_(ch|)exps=CPU,"
    r"blk\.27\.ffn_(up|down|gate_up|gate)_(ch|)exps=CPU'"
)
"""As llama-fit-params b9993 prints it: layer 27 is the output, and `up` is parted from `gate`."""


def test_what_fit_itself_prints_may_be_given_as_the_users_line() -> None:
    given = study(FITTED_LINE)
    dead, parted, shared = given.check()
    assert dead.startswith(r"engine.args: -ot blk\.27\.ffn_")
    assert dead.endswith("matches no tensor of the file")
    assert parted == (
        "engine.args: gate of ffn_exps.weight is on CUDA1, but up is on its layer's device "
        "in layer 11"
    )
    assert "ffn_shexp" in shared
    own = next(iter(given.baselines()))
    assert own.name == "your arguments"
    # What may be exported has the two patterns that move something.
    assert len(parse_args(own.line).overrides) == 2


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("-ot exps=CUDA7", "engine.args: -ot exps=CUDA7: there is no such buffer"),
        ("-ot '(=CPU'", "engine.args: -ot '\\('"),
        ("-c 100", "engine.args: -c 100 is less than the 544 tokens"),
        ("--mlock", "engine.args: llama-bench has no --mlock to measure with"),
        ("-sm row", "engine.args: llama-bench version 9993 .* is too old: it knows no -sm"),
    ],
)
def test_what_cannot_be_run_is_refused_before_anything_is(line: str, message: str) -> None:
    with pytest.raises(AutoplaceError, match=message):
        study(line).check()


@pytest.mark.parametrize(
    ("line", "warning"),
    [
        ("-ctk q8_0 -ctv q8_0", "its cache is q8_0, not f16"),
        ("-np 4", "-np 4 is for several users; one is measured at a time"),
    ],
)
def test_what_changes_the_meaning_of_figures_is_warned_of(line: str, warning: str) -> None:
    (found,) = study(line).check()
    assert warning in found


@pytest.mark.parametrize(
    ("where", "has_fit", "note"),
    [
        (TWO_GPUS, False, "llama.cpp's --fit was not measured: there is no llama-fit-params"),
        (machine(), True, "there is no device beside the host to fit to"),
    ],
)
def test_a_fit_that_is_not_run_is_noted_with_the_reason(
    where: Machine, has_fit: bool, note: str
) -> None:
    one = study(where=where)
    names = ", ".join(names_of(one)).split(", ")
    assert ("--fit" in names) is has_fit
    assert one.notes[0].startswith(note)


@pytest.mark.parametrize(
    ("line", "is_the_defaults"),
    [
        ("-ngl 99", True),
        ("-ngl 99 -c 544", True),
        ("-ngl 99 -nkvo", False),
        ("-ngl 99 --poll 0", False),
        ("-ngl 99 -c 8192", False),
        ("-ngl 99 -ctv q8_0", False),
        (r"-ngl 99 -ot ffn_gate_inp=CPU", False),
    ],
)
def test_a_line_is_one_with_the_defaults_only_if_it_says_no_more(
    line: str, is_the_defaults: bool
) -> None:
    first = names_of(study(line))[0]
    assert first == ("your arguments, defaults" if is_the_defaults else "your arguments")


KEPT = r"-ot 'blk\.[0-3]\.ffn_.*_exps=CPU,blk\.77\.=CPU'"


def test_kept_overrides_are_in_every_trial_and_the_rest_is_the_trials_own() -> None:
    kept = study(KEPT, keep=True)
    tuned = problem(kept)
    preparer = Preparer(tuned)
    seen = set()
    for experts in (0, 10, 26):
        values = {"cuda:0.end_layer": 13, "cpu.end_layer": 0, "cuda:0.num_experts": experts}
        candidate = preparer.prepare(*tuned.space.decode(values))
        args = parse_args(candidate.rules)
        assert args.overrides[0] == (r"blk\.[0-3]\.ffn_.*_exps", "CPU")
        devices = tensor_devices(args, kept.spec, kept.buffers)
        assert devices["blk.3.ffn_up_exps.weight"] == "cpu"
        # What is exported has no dead pattern, and its placement is where it really is.
        assert check_overrides(args, list(kept.spec.tensors), kept.buffers) == []
        assert candidate.placement == nearest_placement(args, kept.spec, kept.buffers)
        assert candidate.placement.layers[3].experts is not None
        assert candidate.placement.layers[3].experts.device == "cpu"
        seen.add(devices["blk.12.ffn_up_exps.weight"])
    assert seen == {"cpu", "cuda:0"}


def test_without_keep_the_users_overrides_are_in_their_own_trial_only() -> None:
    given = study(KEPT)
    tuned = problem(given)
    candidate = Preparer(tuned).prepare(*tuned.space.decode({"cuda:0.num_experts": 26}))
    assert r"blk\.[0-3]" not in candidate.rules
    assert next(iter(given.baselines())).line.count(r"blk\.[0-3]") == 1


def test_two_placements_that_kept_overrides_make_one_are_the_same_trial() -> None:
    tuned = problem(study("-ot 'ffn_.*_exps=CPU'", keep=True))
    preparer = Preparer(tuned)
    keys = {
        preparer.prepare(*tuned.space.decode({"cuda:0.num_experts": count})).key
        for count in (0, 5, 26)
    }
    assert len(keys) == 1
    other = replace(tuned, llama_cpp=study("-ot 'ffn_.*_exps=CPU'"))
    free = {
        Preparer(other).prepare(*other.space.decode({"cuda:0.num_experts": count})).key
        for count in (0, 5, 26)
    }
    assert len(free) == 3
