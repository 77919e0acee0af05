import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import replace

import pytest

from autoplace.hardware.activity import (
    busy_reason,
    foreign_cores,
    gpu_busy_reason,
    own_process_ids,
)
from autoplace.hardware.profile import machine_from_profile
from tests.hardware.profiles import profile
from tests.hardware.test_detect import RTX_4090


@pytest.fixture
def burner() -> Iterator[subprocess.Popen[bytes]]:
    """A process that keeps one core busy."""
    with subprocess.Popen([sys.executable, "-c", "while True: pass"]) as process:
        time.sleep(0.2)
        yield process
        process.kill()


def test_work_of_another_process_is_seen(burner: subprocess.Popen[bytes]) -> None:
    assert foreign_cores(set(), sample_s=0.3) > 0.2


def test_work_of_our_own_child_is_not_anothers(burner: subprocess.Popen[bytes]) -> None:
    assert burner.pid in own_process_ids()


def test_a_busy_host_is_a_reason_with_its_numbers() -> None:
    machine = replace(machine_from_profile(profile("emulated-2x2gib")), num_cores=2)
    reason = busy_reason(machine, sample_s=0.05)
    assert reason is None or "of the host's 2 cores" in reason


def test_a_foreign_process_on_a_card_is_a_reason() -> None:
    reason = gpu_busy_reason([replace(RTX_4090, process_ids=(1,))], own=set())
    assert reason == "process 1 uses NVIDIA GeForce RTX 4090 (00000000:01:00.0)"


def test_our_own_process_on_a_card_is_none() -> None:
    assert gpu_busy_reason([replace(RTX_4090, process_ids=(1,))], own={1}) is None


def test_a_card_that_works_while_we_are_idle_is_a_reason() -> None:
    reason = gpu_busy_reason([replace(RTX_4090, utilisation_percent=90)], own=set())
    assert reason is not None
    assert "90 % busy" in reason
