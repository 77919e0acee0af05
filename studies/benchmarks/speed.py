"""Placements predicted a second, and how long `plan` and `check` take.

    python studies/benchmarks/speed.py [--repeats 5]

The table of DeepSeek-V2 on two A6000; `plan` and `check` for 61 layers on 8 L40, the whole process.
"""

import argparse
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import yaml

from autoplace.architectures import geometry_from_preset, spec_from_geometry
from autoplace.config.groups import CONF, profile
from autoplace.hardware.profile import machine_from_profile
from autoplace.placement.placement import Choice, LayerPlacement, Placement
from autoplace.placement.space import SearchSpace
from autoplace.predict.latency import LatencyModel
from autoplace.rules.export import rule_body
from autoplace.workload import Workload

NUM_PLACEMENTS = 100_000
ON_EIGHT = ("hardware=8xl40", "model=deepseek-v3")
PLAN = ("plan", *ON_EIGHT, "output=json")
CHECK = ("check", *ON_EIGHT, "engine=ktransformers-0.3", "rules={rules}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--repeats", type=int, default=5)
    repeats = parser.parse_args().repeats
    rates = [predictions_per_s() for _ in range(repeats)]
    print(f"placements a second: median {np.median(rates):,.0f}, best {max(rates):,.0f}")
    with tempfile.TemporaryDirectory() as folder:
        rules = Path(folder) / "v3.rules.yaml"
        rules.write_text(v3_on_eight_gpus())
        for words in (PLAN, tuple(word.format(rules=rules) for word in CHECK)):
            times = [command_s(words) for _ in range(repeats)]
            shown = " ".join(words).replace(folder, "")
            print(f"{shown}: median {np.median(times):.2f} s, best {min(times):.2f} s")


def predictions_per_s() -> float:
    preset = yaml.safe_load((CONF / "model" / "deepseek-v2.yaml").read_text())
    spec = spec_from_geometry("deepseek-v2", geometry_from_preset(preset), quant="q4_k_m")
    machine = machine_from_profile(profile("2xa6000"))
    workload = Workload("chat", 128, 32, 160)
    space = SearchSpace(spec, machine, workload, "builtin")
    placement, settings = space.decode(
        {"cuda:0.end_layer": 30, "cuda:0.num_experts": 20, "cuda:1.num_experts": 20}
    )
    options = [layer for layer in dict.fromkeys(placement.layers) if layer.experts is not None]
    model = LatencyModel(spec, machine, workload)
    table = model.table(options, [placement.lm_head], settings)
    shape = (NUM_PLACEMENTS, spec.geometry.num_layers)
    codes = np.random.default_rng(0).integers(0, len(options), shape)
    heads = np.zeros(NUM_PLACEMENTS, int)
    begin = time.perf_counter()
    table.predict(codes, heads)
    return NUM_PLACEMENTS / (time.perf_counter() - begin)


def v3_on_eight_gpus() -> str:
    """DeepSeek-V3's rule file for eight GPUs of eight layers or fewer, all experts on the host."""
    preset = yaml.safe_load((CONF / "model" / "deepseek-v3.yaml").read_text())
    spec = spec_from_geometry("deepseek-v3", geometry_from_preset(preset), quant="q4_k_m")
    layers = []
    for layer in range(spec.geometry.num_layers):
        gpu = f"cuda:{layer // 8}"
        linear = Choice(gpu, "KLinearMarlin", 4)
        experts = Choice("cpu", "KExpertsCPU") if layer in spec.moe_layers else None
        layers.append(LayerPlacement(gpu, linear, linear, experts))
    head = Choice("cuda:7", "KLinearTorch")
    return rule_body(Placement("ktransformers-0.3", tuple(layers), head), spec)


def command_s(words: Sequence[str]) -> float:
    """Seconds of the whole process. 1 is an answer too: the host of 8xl40 may be too small."""
    begin = time.perf_counter()
    done = subprocess.run([sys.executable, "-m", "autoplace", *words], capture_output=True)
    seconds = time.perf_counter() - begin
    assert done.returncode in (0, 1), done.stderr
    return seconds


if __name__ == "__main__":
    main()
