"""`check` on the files that people publish: the whole command, as a hook would run it."""

import json
import os
import pty
import shutil
import subprocess
import sys
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from autoplace.__main__ import main
from autoplace.architectures import read_preset, spec_from_geometry
from autoplace.export.llama_cpp import parse_args
from autoplace.export.llama_cpp.preset import preset_body
from autoplace.placement.placement import Choice, LayerPlacement, Placement
from autoplace.rules.compile import compile_rules
from autoplace.rules.write import dump_rules
from tests.rules.test_fix import MISTAKES
from tests.rules.two_gpus import v2_on_two_gpus

V2 = ("model=deepseek-v2", "engine=ktransformers-0.3")
HOOK = Path(__file__).parents[2] / "hooks" / "check-rules"


@pytest.fixture
def good(tmp_path: Path) -> Path:
    path = tmp_path / "good.rules.yaml"
    path.write_text(v2_on_two_gpus())
    return path


def check(capsys: pytest.CaptureFixture[str], *words: str) -> tuple[int, dict[str, Any]]:
    capsys.readouterr()
    code = main(["check", *words, "output=json"])
    return code, json.loads(capsys.readouterr().out)


def test_the_good_file_fits_192_gb_and_not_64_because_of_the_host(
    good: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    code, document = check(capsys, f"rules={good}", *V2, "hardware=2xa6000")
    assert (code, document["findings"], document["memory"]["zone"]) == (0, [], "fits")
    code, document = check(capsys, f"rules={good}", *V2, "hardware=2x4090")
    assert (code, document["findings"]) == (1, [])
    assert document["memory"]["gpus_fit"]
    assert not document["memory"]["host_fits"]
    assert document["memory"]["tightest"] == "cpu"
    assert "134,686,310,400 B of experts" in document["facts"][0]
    assert "no placement of this file fits this machine" in document["facts"][1]


def test_eight_l40_are_over_by_the_bytes_of_the_worked_example(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "r.yaml"
    path.write_text(eight_l40())
    code, document = check(capsys, f"rules={path}", *V2, "hardware=8xl40")
    assert code == 1
    devices = document["memory"]["devices"]
    assert devices["cuda:0"]["weights_bytes"] == 24_293_974_016
    for index in range(1, 7):
        assert devices[f"cuda:{index}"]["weights_bytes"] == 61_443_162_112
        assert devices[f"cuda:{index}"]["memory_bytes"] == 48_305_799_168
    assert {finding["code"] for finding in document["findings"]} == {
        "embedding-on-gpu",
        "cuda-graph",
    }
    assert any("not the split" in fact for fact in document["facts"])
    assert len(document["changes"]) >= 2
    for change in document["changes"]:
        assert all(left >= 0 for left in change["left_bytes"].values())
    main(["check", f"rules={path}", *V2, "hardware=8xl40"])
    text = capsys.readouterr().out
    assert "61,443,162,112 B of weights) of 48,305,799,168 B" in text


def eight_l40() -> str:
    """Layers 4 + 7×8, every expert by KExpertsTorch on its layer's card, the embedding on one."""
    spec = spec_from_geometry("v2", read_preset("deepseek-v2").geometry, quant="q4_k_m")
    layers = []
    for index in range(60):
        gpu = f"cuda:{0 if index < 4 else 1 + (index - 4) // 8}"
        linear = Choice(gpu, "KLinearMarlin", 4)
        experts = Choice(gpu, "KExpertsTorch") if index else None
        layers.append(LayerPlacement(gpu, linear, linear, experts))
    head = Choice("cuda:7", "KLinearTorch")
    rules = compile_rules(Placement("ktransformers-0.3", tuple(layers), head), spec)
    on_gpu: dict[str, Any] = {"generate_device": "cuda:0", "prefill_device": "cuda:0"}
    return dump_rules(
        [
            replace(rule, kwargs=on_gpu) if rule.name == "^model\\.embed_tokens$" else rule
            for rule in rules
        ]
    )


def test_twelve_gib_cards_are_too_small_only_while_lm_head_is_packed(
    good: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    head = (
        "- match: {name: ^lm_head$}\n  replace:\n"
        "    class: ktransformers.operators.linear.KTransformersLinear\n    kwargs:\n"
        "      {generate_device: cuda:1, prefill_device: cuda:1, generate_op: KLinearMarlin}\n"
    )
    theirs = "modeling_deepseek.DeepseekV2"
    v3 = good.read_text().replace(theirs + "Yarn", "modeling_deepseek_v3.DeepseekV3")
    v3 = v3.replace(theirs, "modeling_deepseek_v3.DeepseekV3").replace("|59)", "|59|60)")
    v3 = v3.replace("KDeepseekV2MoE", "KDeepseekV3MoE")
    v3 = v3.replace("RoPE.YarnRotaryEmbedding", "RoPE.YarnRotaryEmbeddingV3")
    good.write_text(head + v3)
    code, document = check(
        capsys,
        f"rules={good}",
        "model=deepseek-v3",
        "engine=ktransformers-0.3",
        "hardware=2xa6000",
        "hardware.gpu_memory_gib=12",
        "hardware.host_memory_gib=512",
    )
    assert code == 1
    over = document["memory"]["devices"]["cuda:1"]
    assert over["zone"] == "close" or over["margin_bytes"] < 0
    standing = over["weights_bytes"] + over["kv_cache_bytes"] + over["workspace_bytes"]
    assert standing < over["budget_bytes"] < over["load_peak_bytes"]
    assert "KLinearTorch for lm_head" in document["changes"][0]["what"]


def test_numa_copies_are_part_of_the_verdict(
    good: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = (f"rules={good}", *V2, "hardware=2xa6000", "hardware.numa_nodes=2")
    code, document = check(capsys, *words)
    assert code == 1
    assert document["memory"]["devices"]["cpu"]["weights_bytes"] == (
        2 * 134_686_310_400 + 1_048_576_000
    )
    assert any("USE_NUMA" in change["what"] for change in document["changes"])
    assert check(capsys, *words, "numa_copies=1")[0] == 0


@pytest.mark.parametrize("name", ["number range", "quoted transfer map", "misspelt option"])
def test_fix_writes_a_file_that_checks_clean(
    name: str, good: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    good.write_text(MISTAKES[name](good.read_text()))
    fixed = good.with_name("fixed.yaml")
    words = (*V2, "hardware=2xa6000")
    assert check(capsys, f"rules={good}", *words, f"fix={fixed}")[0] == 1
    assert check(capsys, f"rules={fixed}", *words)[0] == 0


def test_explain_says_which_rule_and_which_later_ones(
    good: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    module = "model.layers.12.mlp.experts"
    words = (f"rules={good}", *V2, "hardware=2xa6000")
    (one,) = check(capsys, *words, f"explain={module}")[1]["explain"]
    assert (one["module"], one["rule"], one["later_rules"]) == (module, 8, [13])
    assert (one["device"], one["operator"]) == ("cpu", "KExpertsCPU")
    assert one["bytes"] == 2_447_769_600
    many = check(capsys, *words, r"explain=self_attn\.kv_b_proj$")[1]["explain"]
    assert len(many) == 60
    capsys.readouterr()
    assert main(["check", *words, "explain=model.layers.99.mlp"]) == 2
    assert "matches no module" in capsys.readouterr().err


def test_a_folder_and_a_pattern_are_checked_as_one(
    good: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    bad = good.parent / "deep" / "bad.rules.yaml"
    bad.parent.mkdir()
    bad.write_text("a: b\n")
    for rules in (good.parent, good.parent / "**" / "*.yaml"):
        code, document = check(capsys, f"rules={rules}", *V2, "hardware=2xa6000")
        assert code == 1
        found = {entry["rules"]: entry["ok"] for entry in document["files"]}
        assert found == {"bad.rules.yaml": False, "good.rules.yaml": True}
    assert main(["check", f"rules={good.parent}/*.yml", *V2, "hardware=2xa6000"]) == 2


def test_the_hook_fails_for_one_bad_file_among_good_ones(good: Path) -> None:
    bad = good.with_name("bad.rules.yaml")
    bad.write_text("- match: {name: '('}\n")
    environment = {**os.environ, "PYTHON": sys.executable}
    for files, code in (([good], 0), ([good, bad, good], 1)):
        words = [str(HOOK), "hardware=2xa6000", *V2, *map(str, files)]
        done = subprocess.run(words, env=environment, capture_output=True, check=False)
        assert done.returncode == code, done.stderr


def git(folder: Path, *words: str) -> "subprocess.CompletedProcess[str]":
    home = {"GIT_CONFIG_GLOBAL": os.devnull, "GIT_CONFIG_SYSTEM": os.devnull}
    name = {
        f"GIT_{who}_{what}": "a@b.c"
        for who in ("AUTHOR", "COMMITTER")
        for what in ("NAME", "EMAIL")
    }
    environment = {**os.environ, **home, **name, "PYTHON": sys.executable}
    environment["PRE_COMMIT_HOME"] = str(folder.parent / "cache")
    environment["PATH"] = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    return subprocess.run(
        list(words), cwd=folder, env=environment, check=False, capture_output=True, text=True
    )


def test_a_commit_of_a_bad_rule_file_is_refused_by_pre_commit(tmp_path: Path) -> None:
    hooks, mine = tmp_path / "hooks", tmp_path / "mine"
    shutil.copytree(HOOK.parent, hooks / "hooks")
    shutil.copy(HOOK.parents[1] / ".pre-commit-hooks.yaml", hooks)
    mine.mkdir()
    for folder in (hooks, mine):
        git(folder, "git", "init", "-q")
        git(folder, "git", "add", "-A")
        git(folder, "git", "commit", "-q", "--allow-empty", "-m", "x")
    revision = git(hooks, "git", "rev-parse", "HEAD").stdout.strip()
    (mine / ".pre-commit-config.yaml").write_text(
        f"repos:\n- repo: {hooks}\n  rev: {revision}\n  hooks:\n  - id: autoplace-check\n"
        f"    args: [hardware=2xa6000, {', '.join(V2)}]\n"
    )
    assert git(mine, "pre-commit", "install").returncode == 0
    (mine / "bad.rules.yaml").write_text(MISTAKES["quoted transfer map"](v2_on_two_gpus()))
    git(mine, "git", "add", "-A")
    refused = git(mine, "git", "commit", "-q", "-m", "bad")
    assert refused.returncode == 1
    assert "transfer-key" in refused.stderr
    (mine / "bad.rules.yaml").write_text(v2_on_two_gpus())
    git(mine, "git", "add", "-A")
    taken = git(mine, "git", "commit", "-q", "-m", "good")
    assert taken.returncode == 0, taken.stderr


def test_a_rule_file_becomes_a_line_for_llama_cpp_that_checks_itself(
    good: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ("model=deepseek-v2", "engine=llama.cpp", "hardware=2xa6000")
    code, document = check(capsys, f"rules={good}", *words)
    assert code == 0
    line, chat = document["launch"]
    assert line.startswith("llama-server -m GGUF -ngl 61 -ts 30,31 -t ")
    assert chat == line.replace("llama-server", "llama-cli")
    good.write_text(line)
    code, document = check(capsys, f"rules={good}", *words)
    assert (code, document["launch"]) == (0, [line, chat])
    arguments = parse_args(line)
    good.write_text(preset_body("deepseek-v2", arguments))
    code, document = check(capsys, f"rules={good}", *words)
    assert (code, document["launch"][1:]) == (0, [line, chat])
    good.write_text(line.replace("_(ch|)exps", "_exqs"))
    code, document = check(capsys, f"rules={good}", *words)
    assert code == 1
    assert [finding["code"] for finding in document["findings"]] == ["dead-override"]


@pytest.mark.parametrize("engine", ["llama.cpp", "sglang-kt"])
def test_engines_that_flags_drive_have_a_verdict_and_changes(
    engine: str, good: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = (f"rules={good}", "model=deepseek-v2", f"engine={engine}", "hardware=4x3090")
    code, document = check(capsys, *words, "hardware.host_memory_gib=256")
    assert (code, document["memory"]["zone"]) == (0, "fits")
    assert document["changes"] == []
    small = "hardware.gpu_memory_gib=4" if engine == "llama.cpp" else "hardware.gpu_memory_gib=12"
    code, document = check(capsys, *words, "hardware.host_memory_gib=256", small)
    assert code == 1
    changes = document["changes"]
    assert all(min(change["left_bytes"].values()) >= 0 for change in changes)
    if engine == "sglang-kt":
        assert changes[0]["what"] == "--tensor-parallel-size 4 instead of 2"


def test_the_document_has_the_keys_of_its_schema_version(
    good: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Programs read it: a key that goes, or means something else, is a new `schema_version`."""
    good.write_text(eight_l40())
    words = (f"rules={good}", *V2, "hardware=8xl40", "explain=lm_head")
    _, document = check(capsys, *words)
    assert document["schema_version"] == 1
    assert " ".join(document) == (
        "schema_version command rules hardware model engine ok facts findings memory "
        "no_memory_because changes explain launch"
    )
    assert " ".join(document["findings"][0]) == (
        "severity code message effect remedy rule line rules lines layers place"
    )
    assert " ".join(document["memory"]) == ("fits zone gpus_fit host_fits devices tightest weights")
    assert " ".join(document["memory"]["devices"]["cuda:0"]) == (
        "model weights_bytes kv_cache_bytes workspace_bytes load_peak_bytes peak_bytes "
        "budget_bytes memory_bytes margin_bytes zone"
    )
    assert " ".join(document["memory"]["weights"][0]) == "device role operator num_modules bytes"
    assert " ".join(document["changes"][0]) == "what peak_bytes left_bytes"
    assert " ".join(document["explain"][0]) == (
        "module rule line later_rules device class operator bytes note"
    )


@pytest.mark.parametrize(("more", "coloured"), [({}, True), ({"NO_COLOR": "1"}, False)])
def test_colours_are_for_terminals_that_want_them(
    more: dict[str, str], coloured: bool, good: Path
) -> None:
    good.write_text(MISTAKES["quoted transfer map"](v2_on_two_gpus()))
    command = [sys.executable, "-m", "autoplace", "check", f"rules={good}", *V2, "hardware=2xa6000"]
    kept = {
        key: value for key, value in os.environ.items() if key not in ("NO_COLOR", "FORCE_COLOR")
    }
    ours, theirs = pty.openpty()
    with subprocess.Popen(
        command, stdout=theirs, env=kept | {"TERM": "xterm-256color"} | more
    ) as run:
        os.close(theirs)
        shown = b""
        with suppress(OSError):  # Linux ends a closed terminal with an error
            while piece := os.read(ours, 4096):
                shown += piece
        os.close(ours)
    assert run.returncode == 1
    assert b"transfer-key" in shown
    assert (b"\x1b[1;31m" in shown) is coloured
    piped = subprocess.run(command, capture_output=True, env=kept, check=False)
    assert b"\x1b" not in piped.stdout


def test_check_of_a_preset_imports_nothing_that_takes_long(good: Path) -> None:
    words = [f"rules={good}", *V2, "hardware=2xa6000"]
    code = (
        "import sys; from autoplace.__main__ import main; "
        f"assert main(['check', *{words!r}]) == 0; "
        "slow = {'torch', 'optuna', 'ray', 'numpy', 'psutil', 'pynvml', 'gguf', 'scipy'}; "
        "sys.exit(' '.join(slow & set(sys.modules)) or 0)"
    )
    done = subprocess.run([sys.executable, "-c", code], check=False, capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (0, "")
