"""YAML as data: values and lines, and everything that a rule file may not hold."""

import pytest

from autoplace.rules.document import DocumentError, Mapping, Scalar, Sequence, parse_document


def test_values_keep_their_types_and_lines() -> None:
    node = parse_document("- a: 30\n- '30'\n- [true, null, 1.5]\n")
    assert node == Sequence(
        (
            Mapping(((Scalar("a", 1), Scalar(30, 1)),), 1),
            Scalar("30", 2),
            Sequence((Scalar(True, 3), Scalar(None, 3), Scalar(1.5, 3)), 3),
        ),
        1,
    )


def test_an_empty_document_is_none() -> None:
    assert parse_document("# nothing\n") is None


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("a: 1\na: 2\n", "line 2: the key 'a' occurs twice"),
        ("a: !!python/object/apply:os.system [ls]\n", "the tag .*python.* is not read"),
        ("!!python/name:os.system a\n", "reads as .*python"),
        ("a: 2024-01-01\n", "reads as 'timestamp'; quote it"),
        ("a: {<<: {b: 1}}\n", "merge keys"),
        ("[a, b\n", "not YAML"),
        ("a: b: c\n", "line 1: not YAML: mapping values are not allowed"),
        ("- a\n\tb: 1\n", "line 2: not YAML"),
        ("? [a, b]\n: 1\n", "a key must be a plain value"),
        ("a: \x07\n", "not YAML"),
        ("a: 0x\n---\nb: 1\n", "not YAML"),
        ("[" * 100, "nested over"),
        ("- " * 100, "nested over"),
        ("a: &x [*x]\n", "aliases expand"),
        ("a: *nobody\n", "undefined alias"),
        ("a: " + "9" * 5000 + "\n", "is no int"),
        ("x" * 2_000_001, "characters, at most"),
    ],
)
def test_what_a_rule_file_may_not_hold_is_refused_with_its_line(text: str, reason: str) -> None:
    with pytest.raises(DocumentError, match=reason):
        parse_document(text)


@pytest.mark.timeout(60)
def test_aliases_that_would_expand_to_billions_of_values_are_cut_off() -> None:
    lines = ["a0: &a0 [x, x]"]
    lines += [f"a{i}: &a{i} [{', '.join([f'*a{i - 1}'] * 10)}]" for i in range(1, 20)]
    with pytest.raises(DocumentError, match="aliases expand"):
        parse_document("\n".join(lines))


@pytest.mark.timeout(60)
def test_a_million_brackets_are_refused() -> None:
    with pytest.raises(DocumentError, match="nest"):
        parse_document("[" * 1_000_000)


def test_an_alias_stands_for_its_value() -> None:
    node = parse_document("a: &d {x: cuda:0}\nb: *d\n")
    assert isinstance(node, Mapping)
    assert node.get("a") == node.get("b")


@pytest.mark.parametrize("number", ["9" * 5000, ":".join(["59"] * 50), "0x" + "f" * 5000])
def test_numbers_that_could_not_be_shown_are_refused(number: str) -> None:
    with pytest.raises(DocumentError, match=r"is no int of a rule file: it has \d+ digits"):
        parse_document(f"a: {number}")
