"""Reading: typed rules with their lines, and one clear error for every mistake people make."""

import re
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from autoplace.errors import AutoplaceError
from autoplace.placement.settings import RunSettings
from autoplace.rules.header import Header, render_file
from autoplace.rules.read import load_rules, parse_rules, read_rules
from autoplace.rules.rule import Rule

GOOD = r"""# my rules
- match:
    name: "^model\\.layers\\.(?:0|1)\\."   # two layers
    class: torch.nn.Linear
  replace:
    class: ktransformers.operators.linear.KTransformersLinear
    kwargs:
      generate_device: "cuda:0"
      prefill_device: cuda:0
      generate_op: KLinearMarlin
      num_bits: 8

- match: {name: '^model$'}
  replace:
    class: "ktransformers.operators.models.KDeepseekV2Model"
    kwargs:
      transfer_map: {30: cuda:1, '45': cuda:0}
      per_layer_prefill_intput_threshold: 0
- match:
    class: torch.nn.ModuleList
  replace:
    kwargs: {generate_device: cpu}
  recursive: False
"""

MUTATIONS = st.sampled_from(
    [
        "",
        "\n",
        "- ",
        ": ",
        "{",
        "]",
        "'",
        '"',
        "\t",
        "&a ",
        "*a",
        "!!python/name:os.system ",
        "(",
        "+",
    ]
) | st.text(max_size=4)


def test_rules_keep_their_types_order_and_lines() -> None:
    assert parse_rules(GOOD, source="mine.yaml").rules == (
        Rule(
            r"^model\.layers\.(?:0|1)\.",
            "torch.nn.Linear",
            "ktransformers.operators.linear.KTransformersLinear",
            {
                "generate_device": "cuda:0",
                "prefill_device": "cuda:0",
                "generate_op": "KLinearMarlin",
                "num_bits": 8,
            },
            line=2,
        ),
        Rule(
            "^model$",
            None,
            "ktransformers.operators.models.KDeepseekV2Model",
            {
                "transfer_map": {30: "cuda:1", "45": "cuda:0"},
                "per_layer_prefill_intput_threshold": 0,
            },
            line=13,
        ),
        Rule(
            None,
            "torch.nn.ModuleList",
            "default",
            {"generate_device": "cpu"},
            recursive=False,
            line=19,
        ),
    )


def rule(match: str = "name: '^model$'", replace: str = "class: default", more: str = "") -> str:
    return f"- match: {{{match}}}\n  replace: {{{replace}}}\n{more}"


LINEAR = "class: ktransformers.operators.linear.KTransformersLinear"


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "expected a list of rules, but got nothing"),
        ("match: 1\n", "line 1: expected a list of rules, but got a mapping"),
        ("rules\n", "expected a list of rules, but got the string 'rules'"),
        ("- 1\n", "rule 1, line 1: a rule must be a mapping, not the number 1"),
        (
            rule(more="  recursiv: false\n"),
            "line 3: a rule has no key 'recursiv'; did you mean 'rec",
        ),
        (rule("nmae: a"), "line 1: 'match' has no key 'nmae'; did you mean 'name'"),
        (rule(replace="klass: default"), "'replace' has no key 'klass'; did you mean 'class'"),
        (rule(""), "rule 1, line 1: 'match' needs 'name' or 'class', or both"),
        ("- match: {name: a}\n", "rule 1, line 1: a rule needs 'replace'"),
        ("- replace: {class: default}\n", "rule 1, line 1: a rule needs 'match'"),
        ("- match: a\n  replace: {}\n", "'match' must be a mapping, not the string 'a'"),
        (rule("name: 30"), "'name' must be a string, not the number 30"),
        (
            rule("name: '([4-10])'"),
            "rule 1, line 1: the pattern '([4-10])': bad character range 4-1 at character 3",
        ),
        (rule("name: '(a+)+$'"), "could run for minutes"),
        (rule("class: torch.nn.Linaer"), "'torch.nn.Linaer'; did you mean 'torch.nn.Linear'"),
        (rule("class: Linear"), "no class known here: 'Linear'; did you mean 'torch.nn"),
        (rule("class: os.system"), "'match' names no class known here: 'os.system'"),
        (
            rule(replace="class: ktransformers.operators.linear.KTransformerLinear"),
            "; did you mean 'ktransformers.operators.linear.KTransformersLinear'",
        ),
        (rule(replace="class: os.system"), "'replace' names no operator known here: 'os.system'"),
        (rule(replace="class: defualt"), "did you mean 'default'"),
        (rule(replace="class: torch.nn.Linear"), "'replace' names no operator known here"),
        (
            rule(replace=f"{LINEAR}, kwargs: {{generate_opp: KLinearMarlin}}"),
            "unknown option 'generate_opp'; did you mean 'generate_op'",
        ),
        (
            rule(replace="class: default, kwargs: {generate_device: gpu}"),
            "'gpu' is no device: expected cpu or cuda:N",
        ),
        (rule(replace=f"{LINEAR}, kwargs: {{num_bits: '8'}}"), "must be an integer, not '8'"),
        (rule(replace=f"{LINEAR}, kwargs: [1]"), "'kwargs' must be a mapping, not a list"),
        (
            rule(more="  recursive: 'False'\n"),
            "rule 1, line 3: 'recursive' must be true or false, not the string 'False'",
        ),
        (
            rule() + "- match: {name: a}\n  match: {name: b}\n",
            "line 4: the key 'match' occurs twice",
        ),
        ("- !!python/object/apply:os.system ['true']\n", "tag"),
    ],
)
def test_a_mistake_gives_one_line_with_file_rule_and_line(text: str, message: str) -> None:
    with pytest.raises(AutoplaceError, match=r"^mine.yaml: ") as caught:
        parse_rules(text, source="mine.yaml")
    assert message in str(caught.value)
    assert "\n" not in str(caught.value)
    assert not str(caught.value).endswith(".")


def test_several_mistakes_are_all_counted() -> None:
    text = rule("name: '('") + rule("nmae: a") + rule(replace="class: x")
    with pytest.raises(AutoplaceError, match=r"rule 1.* \| rule 2.* \| rule 2.* \| and 1 more"):
        parse_rules(text, source="mine.yaml")


def test_the_second_rule_is_named_by_its_own_number_and_line() -> None:
    with pytest.raises(AutoplaceError, match=r"mine.yaml: rule 2, line 4: a rule needs 'replace'"):
        parse_rules(rule() + "\n- match: {name: a}\n", source="mine.yaml")


def test_lenient_reading_keeps_what_ktransformers_would_understand() -> None:
    found = read_rules(rule(more="  recursive: 'False'\n") + "- match: {}\n", source="mine.yaml")
    assert found.rules == (Rule("^model$", None, "default", {}, recursive=True, line=1),)
    assert [finding.code for finding in found.findings] == [
        "bad-recursive",
        "empty-match",
        "no-replace",
    ]


def test_lines_count_from_the_top_of_the_file_header_included() -> None:
    header = Header(
        engine="builtin",
        model="m",
        fingerprint="f",
        hardware="h",
        basis="measured",
        settings=RunSettings(2, 512),
    )
    text = render_file(header, rule())
    found = parse_rules(text, source="best.yaml")
    assert found.header is not None
    assert found.body == rule()
    assert found.is_untouched
    (only,) = found.rules
    assert text.splitlines()[only.line - 1].startswith("- match")


def test_a_changed_body_is_known_by_its_sha256() -> None:
    header = Header(
        engine="builtin",
        model="m",
        fingerprint="f",
        hardware="h",
        basis="measured",
        settings=RunSettings(2, 512),
    )
    text = render_file(header, rule()).replace("^model$", "^lm_head$")
    assert not parse_rules(text, source="best.yaml").is_untouched


def test_files_that_cannot_be_read_are_named(tmp_path: Path) -> None:
    missing = tmp_path / "none.yaml"
    with pytest.raises(
        AutoplaceError, match=f"cannot read the rule file {re.escape(str(missing))}"
    ):
        load_rules(missing)
    with pytest.raises(AutoplaceError, match="cannot read the rule file"):
        load_rules(tmp_path)
    binary = tmp_path / "binary.yaml"
    binary.write_bytes(b"- \xff\xfe")
    with pytest.raises(AutoplaceError, match="expected a rule file in UTF-8, but byte 2 is not"):
        load_rules(binary)


@settings(max_examples=150, deadline=None)
@given(st.lists(st.tuples(st.integers(0, len(GOOD)), st.integers(0, 9), MUTATIONS), max_size=6))
def test_a_mutated_file_gives_rules_or_findings(
    edits: list[tuple[int, int, str]],
) -> None:
    text = GOOD
    for position, length, insert in edits:
        text = text[:position] + insert + text[position + length :]
    found = read_rules(text, source="mine.yaml")
    assert found.rules or found.findings or found.body.strip() in ("", "[]")
    assert not any("\n" in str(finding) for finding in found.findings)


def test_what_a_file_holds_is_shown_in_a_readable_length() -> None:
    name = "x" * 900
    text = f"- match: {{class: {name}}}\n  replace: {{class: default, kwargs: {{{name}: 1}}}}\n"
    findings = read_rules(text, source="t").findings
    assert [finding.code for finding in findings] == ["unknown-class", "unknown-option"]
    assert all(len(finding.message) < 500 for finding in findings)
