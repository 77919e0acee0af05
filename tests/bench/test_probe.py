"""The probe on this machine: what it measures, and the calibration that it makes of it."""

import time

import pytest

from autoplace.bench.metrics import Spread
from autoplace.bench.probe import calibration_of, probe
from autoplace.bench.probe_rates import Figure, measure_rates
from autoplace.bench.probe_subjects import layer_experts, layer_linears, never_interleaved
from autoplace.bench.threads import set_threads
from autoplace.hardware.fingerprint import fingerprint
from autoplace.models.backend import kernels
from autoplace.predict.rates import FAMILIES, HostSpeed
from tests.tuner.problems import small_machine, small_spec


def test_every_kind_family_and_thread_count_is_measured_and_predicted_with() -> None:
    machine = small_machine(64, num_cores=1)
    seen: list[Figure] = []
    done = probe(small_spec(), machine, "builtin", point_limit_s=0.03, on_figure=seen.append)
    assert tuple(seen) == done.figures
    calibration = done.calibration
    assert (calibration.machine, calibration.engine) == (fingerprint(machine), "builtin")
    names = {f"{kind} {family}" for kind in ("linear", "experts") for family in FAMILIES}
    heads = {f"head {family}" for family in FAMILIES}
    assert set(calibration.rates.decode_bytes_per_s) == names | heads
    assert set(calibration.rates.prefill_flops) == names
    assert all(len(curve[1]) >= 3 for curve in calibration.rates.prefill_flops.values())
    assert set(calibration.rates.layer_s[1]) == {1.0, 32.0, 128.0}
    assert set(calibration.rates.token_s) == {1}
    assert "sample marlin4 + blocks, token at 16" in {figure.what for figure in seen}
    speed = HostSpeed(machine, calibration.rates, efficiency=0.53)
    measured = calibration.rates.decode_bytes_per_s["experts blocks"]
    assert speed.decode("experts", "blocks", 1) == measured[1]


def test_a_host_without_emulated_gpus_has_no_packed_weights_to_measure() -> None:
    done = probe(small_spec(), small_machine(num_cores=1), "builtin", point_limit_s=0.03)
    assert not any("marlin" in name for name in done.calibration.rates.decode_bytes_per_s)


def test_what_is_late_is_left_out() -> None:
    native = kernels()
    assert native is not None
    late = measure_rates(
        small_spec(),
        native,
        FAMILIES,
        (1,),
        set_threads=set_threads,
        prefill_tokens=(32,),
        deadline_s=time.monotonic() - 1,
    )
    assert list(late) == []


@pytest.mark.parametrize("family", FAMILIES)
def test_the_work_of_one_call_is_that_of_the_model(family: str) -> None:
    """Two of eight experts of three matrices of 256 by 256."""
    experts = layer_experts(small_spec(), family, never_interleaved)
    assert experts.num_weights == 2 * 3 * 256 * 256
    bits = {"blocks": 8.5, "dense": 16, "marlin4": 4.25, "marlin8": 8.25}[family]
    assert experts.n_bytes == experts.num_weights * bits / 8
    linears = layer_linears(small_spec(), family, never_interleaved)
    # kv_a has 160 rows, which Marlin pads to 192.
    padding = 32 * 256 if "marlin" in family else 0
    assert linears.n_bytes == (linears.num_weights + padding) * bits / 8


def test_a_calibration_is_made_of_medians() -> None:
    figures = [
        Figure("small call", 2, Spread(2e-6, 1e-6, 3e-6, 9), "s"),
        Figure("token", 2, Spread(3e-4, 2e-4, 4e-4, 9), "s"),
        Figure("hand-over", 2, Spread(5e-6, 4e-6, 6e-6, 9), "s"),
        Figure("read", 2, Spread(20e9, 19e9, 21e9, 5), "B/s"),
        Figure("experts blocks decode", 2, Spread(8e9, 7e9, 9e9, 9), "B/s"),
        Figure("experts blocks prefill", 2, Spread(8e10, 7e10, 9e10, 9), "flop/s", 12.0),
    ]
    calibration = calibration_of(figures, small_spec(), "abc", "builtin")
    rates = calibration.rates
    assert rates.bandwidth_bytes_per_s == {2: 20e9}
    assert rates.decode_bytes_per_s == {"experts blocks": {2: 8e9}}
    assert rates.prefill_flops == {"experts blocks": {2: {12.0: 8e10}}}
    assert calibration.handover_s == 5e-6
    assert rates.token_s == {2: 3e-4}
    assert rates.layer_s[2][1.0] == pytest.approx(4 * 2e-6)
