"""Runs the Triton kernels on a GPU where there is one, and by Triton's interpreter elsewhere."""

import os
from importlib.util import find_spec

import pytest
import torch

if not torch.cuda.is_available():
    os.environ["TRITON_INTERPRET"] = "1"  # read when the kernels are first imported

collect_ignore_glob = [] if find_spec("triton") else ["test_*.py"]


def pytest_report_header() -> str | None:
    return None if find_spec("triton") else "no triton: tests/kernels/triton is left out"


@pytest.fixture(scope="session")
def device() -> torch.device:
    return torch.device("cuda" if torch.cuda.is_available() else "cpu")
