"""How many generated rule files KTransformers' own code takes as we do.

    python -m tests.oracles.agreement [--files 40] [--walks 100]

For each version at hand and each family: rule files compiled from random placements (splits,
offloads, operators), injected by their code and compared module by module with the placement; and
random rule lists (odd patterns, classes, keywords), walked by their code and by ours.
"""

import argparse
from collections.abc import Callable
from typing import Any

from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

from autoplace.placement.placement import Placement
from autoplace.rules.export import rule_body
from autoplace.rules.match import assign
from autoplace.rules.read import read_rules
from autoplace.rules.rule import Rule
from autoplace.rules.write import dump_rules
from tests.oracles.ktransformers import ENGINES, KTransformers, OracleUnavailableError, running
from tests.rules.comparison import FAMILIES, check_injected, ours, rule_lists, small, theirs
from tests.rules.placements import placements


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--files", type=int, default=40, help="placements a version and family")
    parser.add_argument("--walks", type=int, default=100, help="rule lists a version and family")
    arguments = parser.parse_args()
    for version, families in FAMILIES.items():
        try:
            with running(version) as oracle:
                for family in families:
                    files = count(_files(oracle, version, family), arguments.files)
                    walks = count(_walks(oracle, version, family), arguments.walks)
                    print(f"{version:12s} {family:18s} files {files}, walks {walks}", flush=True)
        except OracleUnavailableError as reason:
            print(f"{version:12s} not compared: {reason}")


Case = tuple[st.SearchStrategy[Any], Callable[[Any], None]]


def count(case: Case, most: int) -> str:
    """`40 of 40 agree`."""
    strategy, compare = case
    agreed = tried = 0

    @settings(
        max_examples=most,
        deadline=None,
        suppress_health_check=list(HealthCheck),
        phases=[Phase.generate],
        database=None,
    )
    @given(strategy)
    def attempt(value: Any) -> None:
        nonlocal agreed, tried
        tried += 1
        try:
            compare(value)
            agreed += 1
        except AssertionError as difference:
            print(f"differs: {str(difference)[:200]}")

    attempt()
    return f"{agreed} of {tried} agree"


def _files(oracle: KTransformers, version: str, family: str) -> Case:
    engine, model = ENGINES[version], small(family)

    def compare(placement: Placement) -> None:
        text = rule_body(placement, model)
        answer = oracle.inject(family, text)
        assignment = assign(read_rules(text, source="t").rules, model, engine=engine)
        assert ours(assignment) == theirs(answer["config"])
        check_injected(answer["injected"], placement, assignment, model)

    return placements(model, engine), compare


def _walks(oracle: KTransformers, version: str, family: str) -> Case:
    def compare(rules: list[Rule]) -> None:
        body = dump_rules(rules)
        read = read_rules(body, source="t").rules
        found = ours(assign(read, small(family), engine=ENGINES[version]))
        assert found == theirs(oracle.assign(family, body))

    return rule_lists(family), compare


if __name__ == "__main__":
    main()
