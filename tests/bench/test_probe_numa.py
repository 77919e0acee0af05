"""NUMA nodes: which CPUs they have, and what reading across them says."""

import os
from pathlib import Path

import pytest

from autoplace.bench import probe_numa as module
from autoplace.bench.metrics import Spread
from autoplace.bench.probe_numa import numa_nodes, probe_numa, remote_share
from autoplace.bench.probe_rates import Figure
from autoplace.units import MIB

ALLOWED = sorted(os.sched_getaffinity(0))


def folder_of(tmp_path: Path, **lists: str) -> Path:
    for node, cpus in lists.items():
        (tmp_path / node).mkdir()
        (tmp_path / node / "cpulist").write_text(f"{cpus}\n")
    return tmp_path


def test_a_node_has_the_cpus_of_its_list_that_this_process_may_use(tmp_path: Path) -> None:
    first = ALLOWED[0]
    nodes = numa_nodes(folder_of(tmp_path, node0=f"{first},4090-4095", node1="4000-4007", node2=""))
    assert nodes == {0: (first,)}


def test_every_pair_of_nodes_is_read(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "BUFFER_BYTES", MIB)
    before = os.sched_getaffinity(0)
    figures = list(probe_numa({0: ALLOWED, 1: ALLOWED[:1]}))
    assert [figure.what for figure in figures] == [
        "node 0 reads node 0",
        "node 1 reads node 0",
        "node 0 reads node 1",
        "node 1 reads node 1",
    ]
    assert all(figure.rate.low > 0 for figure in figures)
    assert os.sched_getaffinity(0) == before


def test_one_node_has_nothing_to_compare() -> None:
    assert list(probe_numa({0: ALLOWED})) == []
    assert remote_share([]) is None


def test_the_slowest_way_across_is_set_against_the_slowest_own() -> None:
    rates = {"0 reads node 0": 40e9, "1 reads node 0": 18e9, "0 reads node 1": 20e9}
    rates["1 reads node 1"] = 36e9
    figures = [Figure(f"node {w}", 8, Spread(r, r, r, 5), "B/s") for w, r in rates.items()]
    assert remote_share(figures) == 0.5
