"""The time model against published runs: what prediction.md asks of a profile alone, and fitted."""

import csv
import importlib.util
import sys
from collections import defaultdict
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest

SCRIPT = Path(__file__).parents[2] / "studies" / "benchmarks" / "published.py"


@pytest.fixture(scope="module")
def published() -> ModuleType:
    spec = importlib.util.spec_from_file_location("published", SCRIPT)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules["published"] = module
    spec.loader.exec_module(module)
    return module


@pytest.fixture(scope="module")
def rows(published: ModuleType) -> list[Any]:
    return list(published.read_rows())


def test_a_profile_alone_predicts_decode_within_twenty_percent(rows: list[Any]) -> None:
    """Asked: 30 %; 20 % as a stretch."""
    errors = [row.decode_s / sum(row.decode_costs.values()) - 1 for row in rows]
    assert len(rows) >= 40
    assert np.mean(np.abs(errors)) < 0.20


def test_a_rig_with_five_rows_is_predicted_within_ten_percent_by_its_others(
    published: ModuleType, rows: list[Any]
) -> None:
    groups = defaultdict(list)
    for row in rows:
        groups[row.group].append(row)
    large = [members for members in groups.values() if len(members) >= 5]
    assert len(large) >= 3
    for members in large:
        predicted = published.left_out(members)
        errors = [row.decode_s / s - 1 for row, s in zip(members, predicted, strict=True)]
        assert np.mean(np.abs(errors)) < 0.10, members[0].group


def test_every_row_has_a_source_and_none_is_both_used_and_left_out(published: ModuleType) -> None:
    with (published.DATA / "published_runs.csv").open(newline="") as file:
        used = list(csv.DictReader(file))
    with (published.DATA / "excluded_runs.csv").open(newline="") as file:
        excluded = {name for entry in csv.DictReader(file) for name in entry["ids"].split()}
    ids = [row["id"] for row in used]
    assert len(ids) == len(set(ids))
    assert all(row["source"] for row in used)
    assert not {name.rstrip("ab") for name in ids} & excluded
