"""The body of a rule file: the same rules give the same bytes, and YAML reads them back."""

from typing import cast

import yaml
from hypothesis import given
from hypothesis import strategies as st

from autoplace.placement.assignment import Value
from autoplace.rules.document import parse_document
from autoplace.rules.rule import Rule
from autoplace.rules.write import dump_rules

RULE = Rule(
    r"^model\.layers\.(?:0|1)\.",
    "torch.nn.Linear",
    "default",
    {"generate_device": "cuda:0", "transfer_map": {30: "cuda:1", "45": None}, "x": (1, True)},
    recursive=False,
)


def test_a_rule_is_written_as_people_write_it() -> None:
    assert dump_rules([RULE]) == (
        "- match:\n"
        "    name: '^model\\.layers\\.(?:0|1)\\.'\n"
        "    class: 'torch.nn.Linear'\n"
        "  replace:\n"
        "    class: 'default'\n"
        "    kwargs:\n"
        "      generate_device: 'cuda:0'\n"
        "      transfer_map:\n"
        "        30: 'cuda:1'\n"
        "        '45': null\n"
        "      x: [1, true]\n"
        "  recursive: false\n"
    )


def test_no_rules_are_an_empty_list() -> None:
    assert dump_rules([]) == "[]\n"


texts = st.text(st.characters(exclude_categories=["Cs"]), max_size=12)
scalars = st.none() | st.booleans() | st.integers(-(10**6), 10**6) | texts
values: st.SearchStrategy[Value] = st.recursive(
    scalars | st.floats(allow_nan=False),
    lambda inner: (
        st.lists(inner, max_size=3).map(tuple)
        | st.dictionaries(texts | st.integers(0, 99), inner, max_size=3)
    ),
    max_leaves=6,
)


def _plain(value: Value) -> object:
    if isinstance(value, tuple):
        return [_plain(item) for item in value]
    return {k: _plain(v) for k, v in value.items()} if isinstance(value, dict) else value


@given(texts, texts, st.dictionaries(texts, values, max_size=3), st.booleans())
def test_what_is_written_is_what_yaml_reads(
    name: str, replace_class: str, kwargs: dict[Value, Value], recursive: bool
) -> None:
    body = dump_rules([Rule(name, None, replace_class, cast(dict[str, Value], kwargs), recursive)])
    replace: dict[str, object] = {"class": replace_class}
    if kwargs:
        replace["kwargs"] = _plain(kwargs)
    expected: dict[str, object] = {"match": {"name": name}, "replace": replace}
    if not recursive:
        expected["recursive"] = False
    assert yaml.safe_load(body) == [expected]
    assert parse_document(body) is not None
