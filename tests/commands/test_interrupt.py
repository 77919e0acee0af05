"""A study that is interrupted from outside keeps what it has, and says so by its exit code."""

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests.interrupts import listen_to_ctrl_c


def started(study_dir: Path, *, runner: str) -> subprocess.Popen[str]:
    """A study that would go on for hours."""
    arguments = [
        "tune", "model=tiny", f"runner={runner}", "n_trials=500", f"study_dir={study_dir}",
        "measure.quality=false", "measure.max_wait_share=1.0", "measure.unstable_spread=1000.0",
    ]  # fmt: skip
    return subprocess.Popen(
        [sys.executable, "-m", "autoplace", *arguments],
        stderr=subprocess.PIPE,
        stdout=subprocess.DEVNULL,
        text=True,
        preexec_fn=listen_to_ctrl_c,
        env={**os.environ, "COLUMNS": "200"},
    )


@pytest.mark.parametrize(
    ("runner", "number"), [("process", signal.SIGINT), ("ray", signal.SIGTERM)]
)
def test_an_interrupted_study_exports_its_best_and_exits_with_130(
    tmp_path: Path, runner: str, number: signal.Signals
) -> None:
    with started(tmp_path, runner=runner) as process:
        assert process.stderr is not None
        lines = []
        for line in process.stderr:
            lines.append(line)
            if sum(": measured: " in seen for seen in lines) == 2:
                break
        process.send_signal(number)
        rest, _ = process.stderr.read(), process.wait()
    assert process.returncode == 130, "".join(lines) + rest
    assert "Traceback" not in rest
    assert list(tmp_path.glob("*/tiny/chat/best.rules.yaml"))
