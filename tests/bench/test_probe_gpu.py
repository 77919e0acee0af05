"""The probe of real GPUs: where there is one, and what its figures make of a calibration."""

import pytest
import torch

from autoplace.bench.metrics import Spread
from autoplace.bench.probe import calibration_of
from autoplace.bench.probe_gpu import probe_gpus
from autoplace.bench.probe_rates import Figure
from autoplace.hardware.detect import detect_machine
from tests.tuner.problems import small_machine, small_spec


def figure(what: str, value: float, unit: str) -> Figure:
    return Figure(what, 1, Spread(value, value, value, 3), unit)


@pytest.mark.skipif(not torch.cuda.is_available(), reason="no GPU")
def test_a_real_gpu_has_all_its_figures() -> None:
    machine = detect_machine()
    figures = {one.what: one.rate.median for one in probe_gpus(machine, 1)}
    assert all(value > 0 for value in figures.values())
    for gpu in machine.gpus:
        assert figures[f"memory {gpu.name}"] < 1.1 * gpu.bandwidth_bytes_per_s
        assert figures[f"launch {gpu.name}"] < figures[f"hand-over {gpu.name}"] < 1e-3
        assert figures[f"cpu to {gpu.name}, pinned"] < figures[f"memory {gpu.name}"]


def test_an_emulated_gpu_has_none() -> None:
    assert list(probe_gpus(small_machine(64), 1)) == []


def test_figures_of_two_gpus_become_memories_launches_and_links() -> None:
    figures = [figure("small call", 2e-6, "s"), figure("hand-over", 5e-6, "s")]
    figures += [figure("read", 20e9, "B/s")]
    for gpu, other in (("cuda:0", "cuda:1"), ("cuda:1", "cuda:0")):
        figures += [
            figure(f"memory {gpu}", 8e11, "B/s"),
            figure(f"launch {gpu}", 4e-6, "s"),
            figure(f"hand-over {gpu}", 9e-6, "s"),
            figure(f"cpu to {gpu}, pinned", 25e9, "B/s"),
            figure(f"cpu to {gpu}, pageable", 12e9, "B/s"),
            figure(f"{gpu} to cpu, pinned", 24e9, "B/s"),
            figure(f"{gpu} to {other}", 20e9, "B/s"),
            figure(f"hop {gpu} to {other}", 46e-6, "s"),
        ]
    calibration = calibration_of(figures, small_spec(), "abc", "builtin")
    assert calibration.gpu_bytes_per_s == {"cuda:0": 8e11, "cuda:1": 8e11}
    assert calibration.launch_s == {"cuda:0": 4e-6, "cuda:1": 4e-6}
    assert calibration.links["cpu cuda:1"] == (9e-6, 25e9)
    assert calibration.links["cuda:1 cpu"] == (9e-6, 24e9)
    assert calibration.links["cuda:0 cuda:1"] == (46e-6, 20e9)
    assert len(calibration.links) == 6
