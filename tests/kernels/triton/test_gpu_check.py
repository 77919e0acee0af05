"""The GPU check: a stage that fails, crashes or hangs costs its own rows and shows in the end."""

import subprocess
import sys
from pathlib import Path

import pytest

from autoplace.errors import DoesNotFitError
from autoplace.kernels.bench.gpu import driver
from autoplace.kernels.bench.gpu.report import Limits, Report
from autoplace.kernels.bench.gpu.rows import FAILED, Row, append_row, read_rows
from autoplace.kernels.bench.gpu.stages import WORK
from autoplace.kernels.bench.gpu.timing import rate

SCRIPT = Path(__file__).parents[3] / "kernels/bench/gpu_check.py"


def run_check(*arguments: str) -> tuple[int, list[str]]:
    """Exit code, and the lines of the table."""
    done = subprocess.run(
        [sys.executable, str(SCRIPT), "--interpret", *arguments],
        capture_output=True,
        text=True,
        check=False,
    )
    return done.returncode, done.stdout.strip().splitlines()[1:]


def stage(tmp_path: Path, body: str, *, seconds: float = 20.0) -> list[Row]:
    """Rows of a process that writes one row and then does something else."""
    script = tmp_path / "stage.py"
    script.write_text(
        "import os, sys, time\n"
        "path = sys.argv[sys.argv.index('--rows') + 1]\n"
        'open(path, \'a\').write(\'{"what": "first", "value": "1", "verdict": "ok"}\\n\')\n' + body
    )
    command = [sys.executable, str(script)]
    return driver.start(command, "limits", tmp_path, seconds=seconds, grace_s=0.0).wait()


def test_every_stage_has_work_and_seconds() -> None:
    assert list(WORK) == list(driver.SECONDS)


def test_a_stage_that_ends_well_gives_its_rows(tmp_path: Path) -> None:
    assert stage(tmp_path, "") == [Row("first", "1", "ok")]


def test_a_stage_that_crashes_keeps_what_it_wrote_and_fails(tmp_path: Path) -> None:
    rows = stage(tmp_path, "print('bad address', file=sys.stderr, flush=True); os.abort()")
    assert rows == [
        Row("first", "1", "ok"),
        Row("stage limits", "exit code -6: bad address", FAILED),
    ]


def test_a_stage_that_hangs_is_ended_and_fails(tmp_path: Path) -> None:
    rows = stage(tmp_path, "time.sleep(600)", seconds=2.0)
    assert rows[-1] == Row("stage limits", "ended: it took too long", FAILED)


def test_a_torn_last_row_is_left_out(tmp_path: Path) -> None:
    append_row(tmp_path / "rows", Row("a", "b", "ok"))
    with (tmp_path / "rows").open("a") as file:
        file.write('{"what": "c", "val')
    assert read_rows(tmp_path / "rows") == [Row("a", "b", "ok")]


def raising(error: Exception) -> None:
    raise error


def test_a_case_that_raises_is_a_failed_row_and_the_next_one_runs(tmp_path: Path) -> None:
    report = Report(tmp_path / "rows", interpret=True, seconds=60)
    report.case("a", lambda: raising(ValueError("expected 1\nbut got 2")))
    report.case("b", lambda: raising(DoesNotFitError("cuda:0 needs more")))
    report.case("c", lambda: report.add("c", "3", good=True))
    assert read_rows(report.path) == [
        Row("a", "ValueError: expected 1", FAILED),
        Row("b", "cuda:0 needs more", "left out: does not fit"),
        Row("c", "3", "ok"),
    ]


def test_an_error_of_cuda_ends_the_stage(tmp_path: Path) -> None:
    report = Report(tmp_path / "rows", interpret=True, seconds=60)
    with pytest.raises(RuntimeError, match="illegal memory access"):
        report.case("a", lambda: raising(RuntimeError("CUDA error: an illegal memory access")))
    assert read_rows(report.path)[0].verdict == FAILED


def test_a_case_after_its_stages_time_is_left_out(tmp_path: Path) -> None:
    report = Report(tmp_path / "rows", interpret=True, seconds=-1)
    report.case("a", lambda: report.add("a", "1", good=True))
    assert read_rows(report.path) == [Row("a", "", "left out: -1 s were over")]


def test_a_rate_is_told_as_the_share_of_the_nearer_limit(tmp_path: Path) -> None:
    report = Report(tmp_path / "rows", interpret=True, seconds=1, limits=Limits(1e12, 1e14))
    told = rate(report, 1e-3, 500_000_000, 10**10)
    assert told == "1000 µs, 500 GB/s, 10.0 TFLOP/s, 50 % of the memory limit"
    assert rate(report, 1e-3, 1, 9 * 10**10).endswith("90 % of the GEMM limit")


def test_a_failed_row_is_exit_code_1() -> None:
    code, rows = run_check("--only", "write", "--model", "no-such-model")
    assert code == 1
    assert len(rows) == 1
    assert "FAILED" in rows[0]
    assert "no-such-model" in rows[0]


def test_decoding_with_recorded_pieces_passes_on_a_tiny_model() -> None:
    code, rows = run_check("--only", "limits,decode", "--model", "tiny-v3")
    assert code == 0, rows
    assert sum("with graphs" in row and "same top" in row for row in rows) == 1
    assert all(" ok " in row for row in rows)


@pytest.mark.slow
@pytest.mark.timeout(1200)
def test_every_stage_passes_by_the_interpreter() -> None:
    code, rows = run_check()
    assert code == 0, rows
    for word in ("limit", "dequantise", "pack", "linear", "experts bf16", "tiny-", "write"):
        assert any(row.startswith(word) or f" {word}" in row for row in rows), word
    assert not any("left out" in row for row in rows)
