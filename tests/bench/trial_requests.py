"""Requests for real trials of the `tiny` model, on devices that are budgets in host memory."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path

import pytest
import yaml

import autoplace
from autoplace import native
from autoplace.architectures import (
    file_metadata,
    file_tensors,
    geometry_from_preset,
    spec_from_gguf,
)
from autoplace.bench.request import MeasureSettings, TrialRequest
from autoplace.hardware.machine import Device, Machine
from autoplace.placement.baselines import obvious_placements
from autoplace.placement.memory import MemoryPlan, plan_memory
from autoplace.placement.placement import Placement
from autoplace.placement.settings import RunSettings
from autoplace.placement.space import SearchSpace
from autoplace.rules.compile import compile_rules
from autoplace.rules.export import rule_body
from autoplace.rules.match import assign
from autoplace.units import GIB, MIB
from autoplace.weights.gguf_file import GGUFFile
from autoplace.weights.synthesize import write_gguf
from autoplace.workload import Workload

PRESET = Path(autoplace.__file__).parent / "conf/model/tiny.yaml"
WORKLOAD = Workload("test", prompt_tokens=16, output_tokens=4, context_tokens=20)
HUGE = Workload("huge", prompt_tokens=2, output_tokens=1_000_000, context_tokens=1_000_002)
"""Days of work: a trial of it is still running whenever a test looks."""
SETTINGS = RunSettings(num_threads=1, prefill_chunk=16)
MEASURE = MeasureSettings(
    min_repeats=2,
    max_repeats=2,
    time_limit_s=60,
    quality_tokens=8,
    unstable_spread=1e9,
    max_other_share=1.0,
)
"""The machine that runs the tests may be busy: only the test of that gate has it closed."""


@contextmanager
def own_cache(folder: Path) -> Iterator[None]:
    """A cache and a lock of the tests' own; only the kernels, a minute's work, are the user's."""
    native.load()
    for built in native.cache_dir().glob("kernels-*.so"):
        (folder / built.name).symlink_to(built)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("AUTOPLACE_CACHE", str(folder))
        patch.setenv("AUTOPLACE_LOCK", str(folder / "lock"))
        yield


def emulated_machine(gpu_bytes: int = 64 * MIB, num_gpus: int = 2) -> Machine:
    host = Device("cpu", "test", 4 * GIB, 0, 100e9, 1e12)
    gpus = tuple(
        Device(f"cuda:{i}", "emulated", gpu_bytes, 0, 100e9, 1e12) for i in range(num_gpus)
    )
    return Machine("emulated-test", (host, *gpus), emulated=True, num_cores=1)


@dataclass(frozen=True)
class TinyModel:
    """The file and what its trials are asked."""

    path: Path

    @classmethod
    def written_to(cls, folder: Path) -> "TinyModel":
        preset = yaml.safe_load(PRESET.read_text())
        geometry, quant = geometry_from_preset(preset), preset["default_quant"]
        path = folder / "tiny.gguf"
        write_gguf(
            path,
            metadata=file_metadata("tiny", geometry, quant),
            tensors=file_tensors(geometry, quant=quant),
            seed=0,
        )
        return cls(path)

    def request(self, baseline: str = "all experts on the CPU") -> TrialRequest:
        spec = spec_from_gguf(GGUFFile.open(self.path))
        return TrialRequest(
            model_path=str(self.path),
            rules=rule_body(self._placement(baseline), spec),
            engine="builtin",
            machine=emulated_machine(),
            workload=WORKLOAD,
            settings=SETTINGS,
            measure=MEASURE,
        )

    def endless_request(self, *, time_limit_s: float = 60.0) -> TrialRequest:
        """Decodes until somebody ends it. Its KV cache is small: only the file's name is real."""
        request = self.request()
        return replace(
            request,
            workload=HUGE,
            machine=emulated_machine(gpu_bytes=16 * GIB),
            measure=replace(MEASURE, time_limit_s=time_limit_s, quality=False),
        )

    def plan(self, request: TrialRequest) -> MemoryPlan:
        """What the arithmetic says of a request made by `request`."""
        spec = spec_from_gguf(GGUFFile.open(self.path))
        rules = compile_rules(self._placement("all experts on the CPU"), spec)
        return plan_memory(
            spec,
            assign(rules, spec, engine="builtin"),
            workload=request.workload,
            settings=request.settings,
            dtype_bytes=2,
        )

    def with_nan_scales(self, path: Path) -> "TinyModel":
        """A copy whose first routed experts have NaN for their blocks' scales (f16 0x7e00)."""
        gguf = GGUFFile.open(self.path)
        name = next(name for name in gguf.tensors if name.startswith("blk.1.ffn_down_exps"))
        content = bytearray(self.path.read_bytes())
        start = gguf.location(name)[1]
        for block in range(start, start + gguf.tensors[name].n_bytes, 34):
            content[block : block + 2] = b"\x00\x7e"
        path.write_bytes(content)
        return TinyModel(path)

    def _placement(self, baseline: str) -> Placement:
        spec = spec_from_gguf(GGUFFile.open(self.path))
        space = SearchSpace(spec, emulated_machine(), WORKLOAD, "builtin", kv_types=("f16",))
        found = {
            each.name: each.placement
            for each in obvious_placements(space, lambda placement, settings: {})
        }
        return found[baseline]
