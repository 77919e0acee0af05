from pathlib import Path

import psutil
import pytest

from autoplace.hardware.host import detect_host
from autoplace.units import GIB

TOTAL = psutil.virtual_memory().total


def write(folder: Path, **files: str) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    for name, text in files.items():
        (folder / name.replace("__", ".")).write_text(text + "\n")


def process_in(proc: Path, cgroups: str) -> None:
    write(proc / "self", cgroup=cgroups)


def test_without_a_limit_the_host_has_all_of_its_memory(tmp_path: Path) -> None:
    facts = detect_host(cgroup=tmp_path / "cgroup", proc=tmp_path / "proc")
    assert facts.memory_bytes == TOTAL
    assert facts.num_cores >= 1
    assert facts.numa_nodes >= 1


def test_the_first_core_says_what_the_cpu_is_and_can(tmp_path: Path) -> None:
    entry = "processor\t: {}\nmodel name\t: Some  CPU 9\nflags\t\t: sse2 {}\n\n"
    (tmp_path / "cpuinfo").write_text(entry.format(0, "avx2") + entry.format(1, "avx512f"))
    facts = detect_host(cgroup=tmp_path / "no", proc=tmp_path)
    assert facts.model == "Some-CPU-9"
    assert facts.flags == {"sse2", "avx2"}
    assert detect_host(cgroup=tmp_path, proc=tmp_path / "no").model == "unknown-host"


def test_generations_that_a_virtual_machine_calls_the_same_are_told_apart(tmp_path: Path) -> None:
    entry = "cpu family\t: {}\nmodel\t\t: 1\nmodel name\t: AMD EPYC\n"
    models = []
    for family in (23, 25):
        (tmp_path / "cpuinfo").write_text(entry.format(family))
        models.append(detect_host(cgroup=tmp_path / "no", proc=tmp_path).model)
    assert models == ["AMD-EPYC-family-23-model-1", "AMD-EPYC-family-25-model-1"]


@pytest.mark.parametrize("where", ["", "user.slice", "user.slice/job"])
def test_a_version_2_limit_anywhere_above_the_process_counts(tmp_path: Path, where: str) -> None:
    cgroup = tmp_path / "cgroup"
    process_in(tmp_path / "proc", "0::/user.slice/job")
    write(cgroup / "user.slice" / "job", memory__max="max", memory__current="0")
    write(cgroup / where, memory__max=str(GIB), memory__current=str(GIB // 4))
    facts = detect_host(cgroup=cgroup, proc=tmp_path / "proc")
    assert facts.memory_bytes == GIB
    assert facts.available_bytes <= 3 * GIB // 4


def test_the_page_cache_of_a_container_counts_as_available(tmp_path: Path) -> None:
    cgroup = tmp_path / "cgroup"
    process_in(tmp_path / "proc", "0::/")
    write(
        cgroup,
        memory__max=str(GIB),
        memory__current=str(GIB),
        memory__stat=f"anon 0\ninactive_file {GIB}",
    )
    facts = detect_host(cgroup=cgroup, proc=tmp_path / "proc")
    assert facts.available_bytes == min(GIB, facts.available_bytes) > 0


def test_a_version_1_limit_counts(tmp_path: Path) -> None:
    cgroup = tmp_path / "cgroup"
    process_in(tmp_path / "proc", "5:cpu,cpuacct:/docker/x\n4:memory:/docker/x")
    write(cgroup / "memory" / "docker" / "x", memory__limit_in_bytes=str(2 * GIB))
    facts = detect_host(cgroup=cgroup, proc=tmp_path / "proc")
    assert facts.memory_bytes == min(TOTAL, 2 * GIB)


def test_version_1_spells_no_limit_as_a_huge_number(tmp_path: Path) -> None:
    process_in(tmp_path / "proc", "4:memory:/")
    write(tmp_path / "cgroup" / "memory", memory__limit_in_bytes="9223372036854771712")
    facts = detect_host(cgroup=tmp_path / "cgroup", proc=tmp_path / "proc")
    assert facts.memory_bytes == TOTAL


@pytest.mark.parametrize(
    "files",
    [
        {"cpu__max": "100000 100000"},
        {"cpu__cfs_quota_us": "100000", "cpu__cfs_period_us": "100000"},
    ],
)
def test_a_cpu_quota_limits_the_cores(tmp_path: Path, files: dict[str, str]) -> None:
    process_in(tmp_path / "proc", "0::/")
    write(tmp_path / "cgroup", **files)
    facts = detect_host(cgroup=tmp_path / "cgroup", proc=tmp_path / "proc")
    assert facts.num_cores == 1


@pytest.mark.parametrize(
    "files", [{"cpu__max": "max 100000"}, {"cpu__cfs_quota_us": "-1", "cpu__cfs_period_us": "1"}]
)
def test_no_cpu_quota_limits_nothing(tmp_path: Path, files: dict[str, str]) -> None:
    process_in(tmp_path / "proc", "0::/")
    write(tmp_path / "cgroup", **files)
    with_files = detect_host(cgroup=tmp_path / "cgroup", proc=tmp_path / "proc")
    assert with_files.num_cores == detect_host(cgroup=tmp_path / "no", proc=tmp_path).num_cores
