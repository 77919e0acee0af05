"""What loading declares, and what it refuses: nothing is left behind either way."""

import logging
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from autoplace.engine.loader import load_model
from autoplace.errors import AutoplaceError, DeviceOutOfMemoryError
from autoplace.hardware.ledger import KINDS, Ledger
from autoplace.models.place import checked_places
from autoplace.placement.assignment import Assignment
from autoplace.placement.memory import plan_memory
from autoplace.placement.settings import RunSettings
from autoplace.workload import Workload
from tests.engine.tiny import CONTEXT, EMULATED, load_tiny, placed, some_tokens, write_tiny

GPUS = ("cuda:0", "cuda:1")


def _changed(assignment: Assignment, path: str, **changes: object) -> Assignment:
    modules = dict(assignment.modules)
    modules[path] = replace(modules[path], **changes)  # type: ignore[arg-type]
    return replace(assignment, modules=modules)


def test_closing_gives_every_byte_back(tiny_folder: Path) -> None:
    gguf, spec = write_tiny(tiny_folder, "tiny", "q8_0")
    ledger = Ledger.of(EMULATED)
    model = load_tiny(gguf, spec, placed(spec, layer_devices=GPUS), ledger=ledger)
    assert all(ledger.total(device) > 0 for device in ("cpu", *GPUS))
    model.close()
    assert all(ledger.taken(d, kind) == 0 for d in ledger.devices for kind in KINDS)


@pytest.mark.parametrize("device", ["cpu", "cuda:0", "cuda:1"])
def test_a_budget_one_byte_too_small_is_out_of_memory_on_that_device(
    device: str, tiny_folder: Path
) -> None:
    gguf, spec = write_tiny(tiny_folder, "tiny", "q8_0")
    assignment = placed(spec, linear="KLinearMarlin", experts="KExpertsCPU", layer_devices=GPUS)
    enough = Ledger.of(EMULATED)
    load_tiny(gguf, spec, assignment, ledger=enough)
    peaks = {name: enough.peak(name) for name in EMULATED.by_name}
    load_tiny(gguf, spec, assignment, ledger=Ledger(peaks))
    short = Ledger({**peaks, device: peaks[device] - 1})
    with pytest.raises(DeviceOutOfMemoryError) as caught:
        load_tiny(gguf, spec, assignment, ledger=short)
    assert caught.value.device == device
    assert caught.value.requested_bytes + caught.value.allocated_bytes == peaks[device]
    assert all(short.total(name) == 0 for name in EMULATED.by_name)


class LoadPeaks(Ledger):
    """Remembers the peaks of when the first of the cache is declared: weights are loaded."""

    peaks: dict[str, int]

    def allocate(self, device: str, n_bytes: int, *, kind: str, what: str) -> None:
        if kind == "kv_cache" and not hasattr(self, "peaks"):
            self.peaks = {name: self.peak(name) for name in self.devices}
        super().allocate(device, n_bytes, kind=kind, what=what)


@pytest.mark.parametrize("preset", ["tiny", "tiny-v3", "tiny-qwen2moe"])
@pytest.mark.parametrize("linear", ["KLinearMarlin", "KLinearTorch"])
def test_while_weights_load_devices_peak_where_the_plan_says(
    preset: str, linear: str, tiny_folder: Path
) -> None:
    """On a GPU too: what a tensor arrives in is declared, to be dequantised or packed there."""
    gguf, spec = write_tiny(tiny_folder, preset, "q8_0")
    experts = "KExpertsMarlin" if linear == "KLinearMarlin" else "KExpertsTorch"
    assignment = placed(
        spec, linear=linear, experts=experts, experts_device="cuda:1", layer_devices=GPUS
    )
    ledger = LoadPeaks.of(EMULATED)
    assert isinstance(ledger, LoadPeaks)
    load_tiny(gguf, spec, assignment, ledger=ledger)
    planned = plan_memory(
        spec,
        assignment,
        workload=Workload("test", 64, 16, CONTEXT),
        settings=RunSettings(1, 64, "f32"),
        dtype_bytes=4,
    )
    assert ledger.peaks == {name: m.load_peak for name, m in planned.by_device.items()}
    assert all(m.load_peak > m.weights for m in planned.by_device.values())


def test_a_plain_module_away_from_its_layer_is_refused(tiny_folder: Path) -> None:
    gguf, spec = write_tiny(tiny_folder, "tiny", "q8_0")
    path = "model.layers.3.self_attn.kv_b_proj"
    assignment = _changed(placed(spec, layer_devices=GPUS), path, device="cuda:0")
    with pytest.raises(AutoplaceError, match=f"{path} is on cuda:0 but its input is on cuda:1"):
        load_tiny(gguf, spec, assignment)


def test_a_transfer_map_with_quoted_keys_never_moves_and_is_refused(tiny_folder: Path) -> None:
    gguf, spec = write_tiny(tiny_folder, "tiny", "q8_0")
    assignment = _changed(
        placed(spec, layer_devices=GPUS), "model", kwargs={"transfer_map": {"2": "cuda:1"}}
    )
    with pytest.raises(AutoplaceError, match="is on cuda:1 but its input is on cuda:0"):
        load_tiny(gguf, spec, assignment)


def test_experts_without_an_operator_are_refused(tiny_folder: Path) -> None:
    gguf, spec = write_tiny(tiny_folder, "tiny", "q8_0")
    assignment = _changed(placed(spec), "model.layers.1.mlp.experts", operator=None)
    with pytest.raises(AutoplaceError, match=r"model\.layers\.1\.mlp\.experts: routed experts"):
        load_tiny(gguf, spec, assignment)


def test_an_injected_kv_b_is_refused(tiny_folder: Path) -> None:
    gguf, spec = write_tiny(tiny_folder, "tiny", "q8_0")
    path = "model.layers.1.self_attn.kv_b_proj"
    assignment = _changed(placed(spec), path, operator="KLinearTorch")
    with pytest.raises(AutoplaceError, match="kv_b_proj cannot be replaced by KLinearTorch"):
        load_tiny(gguf, spec, assignment)


def test_a_device_the_machine_lacks_is_named(tiny_folder: Path) -> None:
    gguf, spec = write_tiny(tiny_folder, "tiny", "q8_0")
    assignment = placed(spec, experts_device="cuda:7")
    with pytest.raises(AutoplaceError, match="the rules name cuda:7"):
        load_tiny(gguf, spec, assignment)


@pytest.mark.parametrize(
    ("kwargs", "message"),
    [({"group_size": 32}, "groups of 64"), ({"num_bits": 3}, "num_bits 4 or 8 but got 3")],
)
def test_marlin_options_that_the_engine_lacks_are_refused(
    kwargs: dict[str, int], message: str, tiny_folder: Path
) -> None:
    gguf, spec = write_tiny(tiny_folder, "tiny", "q8_0")
    assignment = placed(spec, linear="KLinearMarlin", layer_devices=GPUS, kwargs={**kwargs})
    with pytest.raises(AutoplaceError, match=message):
        load_tiny(gguf, spec, assignment)


def test_that_prefill_keys_are_ignored_is_said_once(
    tiny_folder: Path, caplog: pytest.LogCaptureFixture
) -> None:
    gguf, spec = write_tiny(tiny_folder, "tiny", "q8_0")
    kwargs = {"prefill_op": "KLinearTorch", "prefill_device": "cpu"}
    assignment = placed(spec, linear="KLinearTorch", kwargs={**kwargs})
    with caplog.at_level(logging.INFO, logger="autoplace.engine"):
        load_tiny(gguf, spec, assignment)
    said = [r.getMessage() for r in caplog.records if "are ignored" in r.getMessage()]
    assert said == [
        "builtin prefills with the decode operators: prefill_device, prefill_op are ignored"
    ]


def test_tokens_beyond_the_context_are_refused(tiny_folder: Path) -> None:
    gguf, spec = write_tiny(tiny_folder, "tiny", "q8_0")
    model = load_tiny(gguf, spec, placed(spec))
    model.prefill(some_tokens(spec, CONTEXT))
    with pytest.raises(AutoplaceError, match=f"made for {CONTEXT} tokens but {CONTEXT + 1}"):
        model.decode(3)


def test_an_unknown_dtype_is_refused(tiny_folder: Path) -> None:
    gguf, spec = write_tiny(tiny_folder, "tiny", "q8_0")
    with pytest.raises(AutoplaceError, match="bfloat16 or float32 but got 'float16'"):
        load_model(
            gguf,
            spec,
            placed(spec),
            machine=EMULATED,
            ledger=Ledger.of(EMULATED),
            settings=RunSettings(1, 64),
            workload=Workload("test", 8, 8, 16),
            dtype="float16",
        )


def test_the_check_of_places_notices_an_activation_that_was_not_moved(tiny_folder: Path) -> None:
    gguf, spec = write_tiny(tiny_folder, "tiny", "q8_0")
    with checked_places():
        model = load_tiny(gguf, spec, placed(spec, layer_devices=GPUS))
        model.hand_over = lambda x, place: x
        with pytest.raises(AssertionError):
            model.decode(3)


def test_logits_are_on_the_host_in_float32(tiny_folder: Path) -> None:
    gguf, spec = write_tiny(tiny_folder, "tiny", "q8_0")
    model = load_tiny(gguf, spec, placed(spec), dtype="bfloat16", kv_type="f16")
    logits = model.prefill(some_tokens(spec, 5))
    assert logits.shape == (spec.geometry.vocab,)
    assert logits.dtype == torch.float32
    assert logits.device.type == "cpu"


def test_a_module_below_a_match_that_is_not_recursive_has_no_device(tiny_folder: Path) -> None:
    gguf, spec = write_tiny(tiny_folder, "tiny", "q8_0")
    assignment = placed(spec)
    missing = "model.layers.1.self_attn.o_proj"
    modules = {path: m for path, m in assignment.modules.items() if path != missing}
    with pytest.raises(AutoplaceError, match=f"{missing} has no device"):
        load_tiny(gguf, spec, replace(assignment, modules=modules))
