"""The variables a worker starts with: set by us, whatever launched it, and checked inside it."""

import os
from pathlib import Path

import autoplace
from autoplace.hardware.machine import Machine

POOLS = ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS")


def worker_environment(machine: Machine) -> dict[str, str]:
    """Variables that a worker's libraries read when they load. (Ray sets one thread and no GPUs.)

    Idle OpenMP threads sleep: spinning, torch's would take the cores from the kernels' own pool.
    The pools may grow to the machine's cores; each trial then sets its own number. Only the GPUs
    of the machine are visible, in its order, so that `cuda:0` is the same card for everyone.
    """
    gpus = [] if machine.emulated else [gpu.uuid for gpu in machine.gpus if gpu.uuid is not None]
    root = str(Path(autoplace.__file__).parents[1])
    others = [path for path in os.environ.get("PYTHONPATH", "").split(os.pathsep) if path != root]
    return {
        **dict.fromkeys(POOLS, str(machine.num_cores)),
        "OMP_WAIT_POLICY": "passive",
        "CUDA_DEVICE_ORDER": "PCI_BUS_ID",
        "CUDA_VISIBLE_DEVICES": ",".join(gpus),
        "PYTHONPATH": os.pathsep.join([root, *filter(None, others)]),
    }


def check_worker_environment(machine: Machine) -> None:
    """Assert inside a worker that nobody changed its variables behind our back."""
    for name, value in worker_environment(machine).items():
        assert os.environ.get(name) == value, (name, os.environ.get(name), value)
