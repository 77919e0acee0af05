"""Patterns: what is compiled, what is refused, and which can tell experts apart."""

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from autoplace.rules.pattern import PatternError, compile_pattern, is_blind_to_experts


@pytest.mark.parametrize(
    "pattern",
    [
        r"^model\.layers\.(?:0|1|2|30)\.(?!self_attn\.kv_b_proj$).*$",
        r"^model\.layers\.([0-9]|[1][0-9]|2[0-9])\.mlp\.experts$",
        r"(^model\.layers\.([3-5][0-9])\.)|(^model\.norm)|(^lm_head)",
        r"^model\.layers\..*\.mlp\.experts\.\d+\..*_proj$",
        r"^(?!.*self_attn).*mlp.*gate.*$",
        "",
    ],
)
def test_patterns_that_people_write_are_compiled(pattern: str) -> None:
    assert compile_pattern(pattern) == re.compile(pattern)


@pytest.mark.parametrize(
    ("pattern", "position", "reason"),
    [
        ("([4-10])", 2, "bad character range 4-1"),
        ("(model", 0, "unterminated subpattern"),
        ("a**", 2, "multiple repeat"),
    ],
)
def test_an_invalid_pattern_is_refused_with_its_position(
    pattern: str, position: int, reason: str
) -> None:
    with pytest.raises(PatternError, match=reason) as caught:
        compile_pattern(pattern)
    assert caught.value.position == position


@pytest.mark.parametrize(
    "pattern",
    [
        "(a+)+$",
        "^(([a-z])+.)+[A-Z]([a-z])+$",
        "(a|a)*$",
        "(?:.*.*)*x",
        "(.?){40}x",
        ".*a.*b.*c.*d.*e.*f.*g",
        "(?:){1000000}",
        "(?:(?:(?:x{1000}){1000}){1000})",
        "(" * 9_000 + ")" * 9_000,
        "a" * 10_001,
    ],
)
@pytest.mark.timeout(60)
def test_a_pattern_that_could_run_for_minutes_is_refused(pattern: str) -> None:
    with pytest.raises(PatternError):
        compile_pattern(pattern)


@pytest.mark.timeout(60)
def test_the_worst_patterns_that_are_accepted_finish_on_a_module_name() -> None:
    name = "model.layers.33.mlp.experts.129.aaaaaaaaaaaaaaaaaaaaaaaaaaaaa"
    for pattern in (".*.*.*.*.*!", "(a?){5}(a?){5}!", "(?:a|aa){5}!"):
        assert compile_pattern(pattern).search(name) is None


@pytest.mark.parametrize(
    ("pattern", "is_blind"),
    [
        (r"^model\.layers\.(?:3|4)\.mlp\.experts", True),
        (r"^model\.layers\.([0-9]|[1-5]\d)\..*$", True),
        (r"(^model\.layers\.(?:1|2)\.)|(^model\.norm)", True),
        (r"^lm_head$", True),
        (r"mlp\.experts.*down_proj$", True),
        (r"experts\.3\.", False),
        (r"\.(?:3|4)\.", False),
        (r"experts\.\d\.", False),
        (r"experts\.[0-9]+\.", False),
        (r"experts\..\.gate", False),
        (r"model\.layers\.(?:3|4)\.", False),
        (r"^model\.layers\.3.mlp\.experts", False),
    ],
)
def test_a_pattern_is_blind_to_experts_only_if_no_part_can_read_their_index(
    pattern: str, is_blind: bool
) -> None:
    assert is_blind_to_experts(pattern) is is_blind


PIECES = [
    *(r"^model\.layers\.(?:0|1|12)\.", r"^model\.layers\.\d+\.", "^", r"\.", "experts", "mlp"),
    *(".*", r"\d", "1", "[0-3]+", "(?:1|2)", ".", "$", r"(?!.*1)", "(?:mlp|up_proj)", r"\w+"),
]


@given(st.lists(st.sampled_from(PIECES), min_size=1, max_size=5).map("".join))
def test_a_blind_pattern_matches_every_expert_alike(pattern: str) -> None:
    try:
        compiled = compile_pattern(pattern)
    except PatternError:
        return
    if not is_blind_to_experts(pattern):
        return
    for layer in ("1", "12", "7"):
        for tail in ("", ".up_proj", ".act_fn"):
            found = {
                compiled.search(f"model.layers.{layer}.mlp.experts.{expert}{tail}") is None
                for expert in (0, 1, 2, 9, 11, 12, 21, 100, 131)
            }
            assert len(found) == 1, (pattern, layer, tail)
