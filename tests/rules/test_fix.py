"""Corrected files: clean, as the author meant them, with the text that needed no change."""

import re
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from autoplace.errors import AutoplaceError
from autoplace.hardware.machine import Machine
from autoplace.placement.settings import RunSettings
from autoplace.placement.situation import Situation
from autoplace.rules.edit import Edits, can_edit, edit
from autoplace.rules.fix import fix, fixed_text
from autoplace.rules.lint import Examined, examine
from autoplace.rules.read import read_rules
from autoplace.rules.rule import Rule
from autoplace.rules.subject import homes_of
from autoplace.workload import Workload
from tests.rules.specs import spec
from tests.rules.two_gpus import CPU, FIRST, SECOND, TWO_GPUS, gpu, sub, v2_on_two_gpus

GIB = 1024**3
MODEL = spec("deepseek-v2")


def examined(text: str, engine: str = "ktransformers-0.3", machine: Machine = TWO_GPUS) -> Examined:
    return examine(read_rules(text, source="mine"), MODEL, engine=engine, machine=machine)


def situation(found: Examined, machine: Machine = TWO_GPUS) -> Situation:
    return Situation(
        MODEL,
        found.assignment,
        homes_of(found.assignment, MODEL),
        machine,
        Workload("chat", 128, 32, 160),
        RunSettings(8, 512),
    )


def fixed(text: str, engine: str = "ktransformers-0.3", machine: Machine = TWO_GPUS) -> str:
    found = examined(text, engine, machine)
    return fixed_text(found, situation(found, machine))


def meaning(text: str) -> dict[str, tuple[object, ...]]:
    """What a file does with each module, whichever rule says it."""
    modules = examined(text).assignment.modules
    return {
        path: (entry.device, entry.class_name, entry.operator)
        for path, entry in modules.items()
        if MODEL.by_path.get(path) is not None and MODEL.by_path[path].tensors
    }


MISTAKES: dict[str, Callable[[str], str]] = {
    "two-digit pattern": sub(f"(?:{FIRST})", "([0-2][0-9])"),
    "number range": sub(f"(?:{SECOND})", "([30-59])"),
    "number range that does not compile": sub(f"(?:{FIRST})", "([0-9]|[19-29]|1[0-8])"),
    "quoted transfer map": sub("        30: cuda:1", "        '30': cuda:1"),
    "transfer late": sub("        30: cuda:1", "        31: cuda:1"),
    "transfer early": sub("        30: cuda:1", "        25: cuda:1"),
    "no transfer map": sub("      transfer_map:\n        30: cuda:1\n", ""),
    "quoted recursive": sub("recursive: false", "recursive: 'False'"),
    "recursive": sub("  recursive: false\n", ""),
    "no out_device": sub("      out_device: cuda:1\n", ""),
    "kv_b injected": sub("(?!self_attn\\.kv_b_proj$).*", ".*"),
    "misspelt option": sub("generate_op: KLinear", "generate_opp: KLinear"),
    "misspelt operator": sub("KExpertsCPU", "KExpertCPU"),
    "threshold left out": sub("      per_layer_prefill_intput_threshold: 0\n", ""),
    "embedding on a gpu": sub(
        "generate_device: cpu\n      prefill_device: cpu", "generate_device: cuda:0"
    ),
    "no catch-all for the norm": sub("|(^model\\.norm)|(^lm_head)", ""),
    "catch-all on the first gpu": sub(
        "default\n    kwargs:\n      generate_device: cuda:1",
        "default\n    kwargs:\n      generate_device: cuda:0",
    ),
    "null prefill_op": sub("prefill_op: KExpertsTorch", "prefill_op: null"),
    "plain rotary": sub(
        "class: ktransformers.operators.RoPE.YarnRotaryEmbedding", "class: default"
    ),
    "attention elsewhere": sub(
        "attention.KDeepseekV2Attention\n    kwargs:\n      generate_device: cuda:1",
        "attention.KDeepseekV2Attention\n    kwargs:\n      generate_device: cuda:0",
    ),
    "no prefill_device": sub("      prefill_device: cuda:1\n", ""),
    "foreign rotary": sub("RoPE.YarnRotaryEmbedding", "RoPE.YarnRotaryEmbeddingV3"),
}


WHOLE_FILE: dict[str, Callable[[str], str]] = {
    "classes of V3": sub(
        "ktransformers.models.modeling_deepseek.DeepseekV2",
        "ktransformers.models.modeling_deepseek_v3.DeepseekV3",
    ),
    "devices misspelt": sub("generate_device: cuda:1", "generate_device: cuda1"),
    "no model rule": lambda text: re.sub(
        r"- match: {name: \^model\$}.*?(?=- match:)", "", text, flags=re.S
    ),
}
"""Mistakes of which the whole file is full."""


@pytest.mark.parametrize("name", WHOLE_FILE)
def test_a_mistake_all_over_the_file_is_mended(name: str) -> None:
    good = v2_on_two_gpus()
    mended = fixed(WHOLE_FILE[name](good))
    assert examined(mended).findings == ()
    assert meaning(mended) == meaning(good)


@pytest.mark.parametrize("name", MISTAKES)
def test_a_mended_file_checks_clean_and_means_what_the_good_one_does(name: str) -> None:
    good = v2_on_two_gpus()
    faulty = MISTAKES[name](good)
    assert not examined(faulty).is_clean
    mended = fixed(faulty)
    assert examined(mended).findings == ()
    assert meaning(mended) == meaning(good)


def test_a_good_file_stays_as_it_is_to_the_byte() -> None:
    text = "# mine\n" + v2_on_two_gpus().replace("- match:\n", "\n# why\n- match:\n")
    assert fixed(text) == text


def test_comments_of_other_rules_and_between_rules_stay() -> None:
    text = "# top\n" + v2_on_two_gpus().replace("- match:\n", "\n# why\n- match:  # this\n")
    lines = text.splitlines()
    mended = fixed(text.replace("        30: cuda:1", "        31: cuda:1")).splitlines()
    changed = [line for line in lines if line not in mended]
    assert all(
        "match: {name: ^model$}" in line or "Model" in line or "30" in line or "threshold" in line
        for line in changed
    ), changed
    assert mended[0] == "# top"
    assert mended.count("# why") == lines.count("# why")


def test_what_does_not_fit_gets_the_smallest_change() -> None:
    text = v2_on_two_gpus().replace("KExpertsCPU", "KExpertsTorch")
    for device in ("cuda:0", "cuda:1"):
        text = text.replace(
            f"generate_device: cpu\n      prefill_device: {device}\n      generate_op",
            f"generate_device: {device}\n      prefill_device: {device}\n      generate_op",
        )
    mended = fixed(text)
    found = examined(mended)
    assert found.is_clean
    assert situation(found).over == {}
    devices = [
        found.assignment.modules[f"model.layers.{i}.mlp.experts"].device for i in range(1, 60)
    ]
    assert 40 < devices.count("cpu") < 59


def test_lm_head_that_is_too_big_to_pack_becomes_torch() -> None:
    head = (
        "- match: {name: ^lm_head$}\n  replace:\n"
        "    class: ktransformers.operators.linear.KTransformersLinear\n    kwargs:\n"
        "      {generate_device: cuda:1, prefill_device: cuda:1, generate_op: KLinearMarlin}\n"
    )
    small = Machine("small", (CPU, *(replace(gpu(i), memory_bytes=7 * GIB) for i in range(2))))
    mended = fixed(head + v2_on_two_gpus(), machine=small)
    found = examined(mended, machine=small)
    assert found.assignment.modules["lm_head"].operator == "KLinearTorch"
    assert situation(found, small).over == {}


def test_old_cards_get_torch_instead_of_marlin() -> None:
    old = Machine("2xv100", (CPU, gpu(0, (7, 0)), gpu(1, (7, 0))))
    mended = fixed(v2_on_two_gpus(), machine=old)
    assert "KLinearMarlin" not in mended
    assert examined(mended, machine=old).findings == ()


def test_a_gpu_that_is_not_there_has_no_one_answer(tmp_path: Path) -> None:
    one = Machine("1xa6000", (CPU, gpu(0)))
    found = examined(v2_on_two_gpus(), machine=one)
    with pytest.raises(AutoplaceError, match=r"fix cannot mend this by itself: .*cuda:1"):
        fix(tmp_path / "f.yaml", found, situation(found, one))
    assert not list(tmp_path.iterdir())


TEXT = (
    "# a\n  - match: {name: a}\n    replace: {class: default}\n\n  # b\n  -\n    match: {name: b}\n"
)


def test_edits_keep_margins_and_what_stands_between_rules() -> None:
    read = read_rules(TEXT, source="")
    assert can_edit(TEXT, read.starts)
    new = Rule("c", None, "default")
    text = edit(TEXT, read.starts, Edits({1: None}, {2: [new]}, [replace(new, name="d")]))
    assert text.startswith("# a\n\n  # b\n  - match:\n      name: 'c'\n")
    assert [line for line in text.splitlines() if "name" in line][1:] == [
        "    match: {name: b}",
        "      name: 'd'",
    ]


def test_a_flow_list_is_written_anew() -> None:
    assert not can_edit("[{match: {name: a}}, {match: {name: b}}]\n", (1, 1))
