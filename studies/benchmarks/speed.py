"""Placements predicted a second, and how long `plan` takes.

    python studies/benchmarks/speed.py [--repeats 5]

The table of DeepSeek-V2 on two A6000; `plan` for 61 layers on 8 L40, the whole process.
"""

import argparse
import subprocess
import sys
import time

import numpy as np
import yaml

from autoplace.architectures import geometry_from_preset, spec_from_geometry
from autoplace.config.groups import CONF, profile
from autoplace.hardware.profile import machine_from_profile
from autoplace.placement.space import SearchSpace
from autoplace.predict.latency import LatencyModel
from autoplace.workload import Workload

NUM_PLACEMENTS = 100_000
PLAN = ("plan", "hardware=8xl40", "model=deepseek-v3", "output=json")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--repeats", type=int, default=5)
    repeats = parser.parse_args().repeats
    rates = [predictions_per_s() for _ in range(repeats)]
    print(f"placements a second: median {np.median(rates):,.0f}, best {max(rates):,.0f}")
    times = [plan_s() for _ in range(repeats)]
    print(f"{' '.join(PLAN)}: median {np.median(times):.2f} s, best {min(times):.2f} s")


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


def plan_s() -> float:
    begin = time.perf_counter()
    subprocess.run([sys.executable, "-m", "autoplace", *PLAN], check=True, capture_output=True)
    return time.perf_counter() - begin


if __name__ == "__main__":
    main()
