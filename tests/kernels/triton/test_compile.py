"""The kernels compile for a GPU: what the interpreter accepts, Triton's compiler may refuse."""

import os
import subprocess
import sys
from pathlib import Path

import pytest


@pytest.mark.slow
def test_every_kernel_compiles_to_machine_code_for_an_a100(tmp_path: Path) -> None:
    inherited = {name: v for name, v in os.environ.items() if name != "TRITON_INTERPRET"}
    done = subprocess.run(
        [sys.executable, "-m", "tests.kernels.triton.compile_all", "80"],
        cwd=Path(__file__).parents[3],
        env={**inherited, "TRITON_CACHE_DIR": str(tmp_path)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-2000:]
    assert done.stdout == "compiled for sm_80\n"
