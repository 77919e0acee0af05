import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from autoplace.__main__ import main
from autoplace.hardware.fingerprint import fingerprint
from autoplace.hardware.profile import machine_from_profile
from autoplace.predict.calibration import Calibration, save_calibration
from autoplace.units import GIB
from tests.hardware.profiles import profile


def plan(capsys: pytest.CaptureFixture[str], *words: str) -> tuple[int, dict[str, Any]]:
    capsys.readouterr()
    code = main(["plan", *words, "output=json"])
    return code, json.loads(capsys.readouterr().out)


def test_two_a6000_hold_deepseek_v2(capsys: pytest.CaptureFixture[str]) -> None:
    code, document = plan(capsys, "hardware=2xa6000", "model=deepseek-v2")
    assert code == 0
    assert document["basis"] == "predicted"
    best = document["placements"][0]
    assert best["fits"]
    assert best["predicted"]["decode_tok_per_s"] > 0
    for name in ("cuda:0", "cuda:1"):
        device = best["devices"][name]
        assert device["memory_bytes"] == 51_527_024_640
        assert device["margin_bytes"] == device["budget_bytes"] - device["peak_bytes"]


def test_two_4090_with_64_gib_hold_no_placement_because_of_the_host(
    capsys: pytest.CaptureFixture[str],
) -> None:
    code, document = plan(capsys, "hardware=2x4090", "model=deepseek-v2")
    assert code == 1
    assert document["placements"]
    for placement in document["placements"]:
        assert placement["gpus_fit"]
        assert not placement["host_fits"]
        assert placement["devices"]["cpu"]["margin_bytes"] < -20 * GIB


def test_all_experts_on_the_cpu_take_their_blocks(capsys: pytest.CaptureFixture[str]) -> None:
    _, document = plan(capsys, "hardware=2xa6000", "model=deepseek-v2")
    (placement,) = (p for p in document["placements"] if p["name"] == "all experts on the CPU")
    embedding_bytes = 102_400 * 5120 * 2
    assert placement["devices"]["cpu"]["weights_bytes"] == 134_686_310_400 + embedding_bytes


def test_a_given_kv_type_is_planned_with(capsys: pytest.CaptureFixture[str]) -> None:
    words = ("hardware=2xa6000", "model=deepseek-v2", "workload.context_tokens=8192")
    caches = []
    for kv_type in ("f16", "f32"):
        _, document = plan(capsys, *words, f"settings.kv_type={kv_type}")
        placement = document["placements"][0]
        assert placement["settings"]["kv_type"] == kv_type
        caches.append(sum(device["kv_cache_bytes"] for device in placement["devices"].values()))
    assert caches == [60 * 9_437_184, 2 * 60 * 9_437_184]


def test_a_machine_that_is_too_small_says_by_how_much(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["plan", "hardware=2x4090", "model=deepseek-v2"]) == 1
    text = capsys.readouterr().out
    assert "does not fit: over the budget of cpu by " in text
    assert "Everything here is predicted" in text


def test_an_emulated_machine_is_said_to_be_one(capsys: pytest.CaptureFixture[str]) -> None:
    code, document = plan(capsys, "hardware=emulated-2x2gib", "model=tiny")
    assert code == 0
    assert document["emulated"]
    assert {gpu.model for gpu in machine_from_profile(profile("emulated-2x2gib")).gpus} == {
        document["placements"][0]["devices"]["cuda:0"]["model"]
    }


def test_the_pick_comes_with_what_binds_it_and_a_bound(
    capsys: pytest.CaptureFixture[str],
) -> None:
    _, document = plan(capsys, "hardware=2xa6000", "model=deepseek-v2")
    pick = document["pick"]
    assert pick == document["placements"][0]
    assert 0 <= document["gap"] < 0.02
    assert {margin["device"] for margin in document["margins"]} == {"cuda:0", "cuda:1"}
    best = document["margins"][0]
    assert best["gain_tok_per_s"] > 0
    assert best["missing_bytes"] == best["next_bytes"] - best["left_bytes"]
    parts = pick["predicted"]["decode_s"]
    assert 1 / sum(parts.values()) == pytest.approx(pick["predicted"]["decode_tok_per_s"])
    others = [one["predicted"]["request_s"] for one in document["placements"] if one["fits"]]
    assert pick["predicted"]["request_s"] == min(others)


def test_longer_prompts_are_predicted_for_the_pick(capsys: pytest.CaptureFixture[str]) -> None:
    _, document = plan(capsys, "hardware=2xa6000", "model=deepseek-v2")
    prompts = [one["prompt_tokens"] for one in document["at_lengths"]]
    latencies = [one["prefill_latency_s"] for one in document["at_lengths"]]
    assert prompts == [32, 512, 2048]
    assert latencies == sorted(latencies)


def test_cards_are_filled_in_builtin_and_left_empty_in_ktransformers(
    capsys: pytest.CaptureFixture[str],
) -> None:
    words = ("hardware=2xa6000", "model=deepseek-v2", "compare=[builtin,ktransformers-0.3]")
    code, document = plan(capsys, *words)
    assert code == 0
    builtin, ktransformers = document["compare"]
    assert "cuda:0 KExpertsMarlin 4 in" in builtin["pick"]["layout"]
    assert "experts cpu KExpertsCPU in 59 layers" in ktransformers["pick"]["layout"]
    assert main(["plan", *words]) == 0
    text = capsys.readouterr().out
    assert "46 of 59" in text
    assert "ktransformers-0.3: against the first: " in text


def test_machines_are_compared(capsys: pytest.CaptureFixture[str]) -> None:
    _, document = plan(capsys, "model=deepseek-v2-lite", "compare=[1x3090,2x4090]")
    assert [one["hardware"] for one in document["compare"]] == ["1x3090", "2x4090"]
    assert all(one["pick"]["fits"] for one in document["compare"])


def test_what_cannot_be_compared_is_named(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["plan", "model=deepseek-v2", "compare=[2xa600]"]) == 2
    assert "no hardware or engine '2xa600'; did you mean '2xa6000'" in capsys.readouterr().err


def test_the_pick_is_written_as_rules_that_plan_reads_back(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    where = ("hardware=2xa6000", "model=deepseek-v2")
    _, solved = plan(capsys, *where, f"out={tmp_path}/pick.rules.yaml")
    code, document = plan(capsys, *where, f"rules={tmp_path}/pick.rules.yaml")
    assert code == 0
    (placement,) = document["placements"]
    assert placement["predicted"] == solved["pick"]["predicted"]
    assert placement["devices"] == solved["pick"]["devices"]
    assert document["margins"] == solved["margins"]


def test_a_calibration_is_used_or_refused(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    machine = machine_from_profile(profile("2xa6000"))
    path = tmp_path / "calibration.json"
    words = ("hardware=2xa6000", "model=deepseek-v2", f"calibration={path}")
    calibration = Calibration(
        fingerprint(machine), "builtin", "probe and 5 trials", decode_error=0.04
    )
    save_calibration(calibration, path)
    _, document = plan(capsys, *words)
    assert document["calibration"]["source"] == "probe and 5 trials"
    assert document["pick"]["predicted"]["decode_error"] == 0.04
    save_calibration(replace(calibration, machine="another"), path)
    assert main(["plan", *words]) == 2
    assert "this calibration is of machine another, not " in capsys.readouterr().err


def test_llama_cpp_is_planned_by_its_own_memory(capsys: pytest.CaptureFixture[str]) -> None:
    words = ("hardware=2xa6000", "model=deepseek-v2", "engine=llama.cpp")
    code, document = plan(capsys, *words)
    assert code == 0
    assert "LlamaCppExperts" in document["pick"]["layout"]
    devices = document["pick"]["devices"]
    assert all(device["margin_bytes"] >= 0 for device in devices.values())
    weights = sum(device["weights_bytes"] for device in devices.values())
    assert 141e9 < weights < 144e9  # the file's own blocks, wherever they are
    assert document["ceiling"]


def test_an_engine_that_is_launched_without_layers_has_nothing_to_plan(
    capsys: pytest.CaptureFixture[str],
) -> None:
    where = ("hardware=2xa6000", "model=deepseek-v2")
    for words in (["engine=sglang-kt"], ["compare=[builtin,sglang-kt]"]):
        assert main(["plan", *where, *words]) == 2
        error = capsys.readouterr().err
        assert "nothing to solve for; `plan` takes builtin, llama.cpp" in error
        assert "`export engine=sglang-kt rules=FILE` makes its launch line" in error


def test_a_comparison_takes_no_one_calibration(capsys: pytest.CaptureFixture[str]) -> None:
    words = ("compare=[2xa6000,4x3090]", "calibration=kept.json")
    assert main(["plan", "model=deepseek-v2-lite", *words]) == 2
    assert "calibration=kept.json is of one machine and engine" in capsys.readouterr().err


def test_engines_that_differ_are_compared(capsys: pytest.CaptureFixture[str]) -> None:
    words = ("hardware=2xa6000", "model=deepseek-v2", "compare=[builtin,llama.cpp]")
    code, document = plan(capsys, *words)
    assert code == 0
    assert [one["engine"] for one in document["compare"]] == ["builtin", "llama.cpp"]
    assert all(one["pick"]["fits"] for one in document["compare"])


def test_launches_that_nobody_timed_are_called_a_guess(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["plan", "hardware=2xa6000", "model=deepseek-v2"]) == 0
    assert "launches on GPUs are a cautious guess" in capsys.readouterr().out
    assert main(["plan", "hardware=2xa6000", "model=deepseek-v2", "engine=llama.cpp"]) == 0
    assert "cautious guess" not in capsys.readouterr().out
