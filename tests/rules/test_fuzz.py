"""Rule files from the internet: whatever they hold, an answer or one line, soon."""

import time
from typing import Any

import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

from autoplace.errors import AutoplaceError
from autoplace.placement.facts import facts
from autoplace.placement.remedies import smallest_changes
from autoplace.rules.explain import explain
from autoplace.rules.fix import fixed_text
from autoplace.rules.lint import examine
from autoplace.rules.read import read_rules
from tests.rules.specs import spec
from tests.rules.test_fix import MISTAKES, examined, meaning, situation
from tests.rules.two_gpus import TWO_GPUS, v2_on_two_gpus

MODEL = spec("deepseek-v2")
GOOD = v2_on_two_gpus()
QUIET: dict[str, Any] = {
    "deadline": None,
    "suppress_health_check": list(HealthCheck),
    "phases": [Phase.explicit, Phase.generate],
    "derandomize": True,
}
SCRAPS = st.sampled_from(
    [
        "",
        "null",
        "[]",
        "{}",
        "- ",
        "\n",
        ": ",
        "'",
        '"',
        "cuda:9",
        "cpu",
        "cuda",
        "1e999",
        ".nan",
        "[1, [2]]",
        "{a: b}",
        "&a [*a]",
        "!!python/object:os.system x",
        "<<: {}",
        "true",
        "-1",
        "99999999999999999999",
        "(a+)+$",
        "(?:)",
        ".*.*.*.*.*.*x",
        "KExpertsTorch",
        "default",
        "\x00",
        "\ud800".encode("utf-8", "replace").decode(),
        "transfer_map: {x: y}",
        "? [a]\n: b",
        "%YAML 9",
        "---\n",
    ]
)


def answer(text: str) -> str:
    """What the whole of `check` with fix says, without the command line; one line for an error."""
    try:
        read = read_rules(text, source="mine")
        found = examine(read, MODEL, engine="ktransformers-0.3", machine=TWO_GPUS)
        assert all(str(finding) for finding in found.findings)
        now = situation(found)
        facts(now)
        smallest_changes(now)
        explain("experts$", found.assignment, MODEL, read.rules)
        return "\n".join([*map(str, found.findings), fixed_text(found, now)])
    except AutoplaceError as error:
        line = str(error)
    assert "\n" not in line
    return line


@settings(max_examples=10, **QUIET)
@given(
    cuts=st.lists(
        st.tuples(st.integers(0, len(GOOD)), st.integers(0, 60), SCRAPS), min_size=1, max_size=4
    )
)
def test_a_file_with_pieces_cut_out_and_put_in_is_answered(
    cuts: list[tuple[int, int, str]],
) -> None:
    text = GOOD
    for start, length, scrap in cuts:
        text = text[:start] + scrap + text[start + length :]
    began = time.process_time()
    assert answer(text)
    assert time.process_time() - began < 5


@settings(max_examples=10, **QUIET)
@given(lines=st.lists(st.tuples(st.integers(0, 150), SCRAPS), min_size=1, max_size=3))
def test_a_file_with_values_of_other_kinds_is_answered(lines: list[tuple[int, str]]) -> None:
    text = GOOD.splitlines()
    for number, scrap in lines:
        index = number % len(text)
        key, colon, _ = text[index].partition(": ")
        text[index] = f"{key}{colon}{scrap}"
    assert answer("\n".join(text))


@pytest.mark.parametrize("text", ["", "\n", "[]", "null", "- ", "- 3", "- [a]", "# only\n", "a: b"])
def test_files_that_hold_no_rules_are_answered(text: str) -> None:
    assert answer(text)


@settings(max_examples=6, **QUIET)
@given(names=st.lists(st.sampled_from(sorted(MISTAKES)), min_size=2, max_size=3, unique=True))
def test_several_mistakes_at_once_are_mended_to_the_same_meaning(names: list[str]) -> None:
    text = GOOD
    for name in names:
        try:
            text = MISTAKES[name](text)
        except AssertionError:
            continue
    found = examined(text)
    mended = fixed_text(found, situation(found))
    assert examined(mended).is_clean
    assert meaning(mended) == meaning(GOOD)
