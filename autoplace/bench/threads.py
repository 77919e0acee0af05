"""Thread counts of a trial: set explicitly, checked, and recorded."""

import os
from collections.abc import Mapping

import torch

from autoplace.engine.threads import use_threads
from autoplace.errors import AutoplaceError


def set_threads(num_threads: int) -> None:
    """Give torch's and the kernels' pools their size. Raise `AutoplaceError` if torch refuses."""
    use_threads(num_threads)
    if torch.get_num_threads() != num_threads:
        raise AutoplaceError(
            f"expected {num_threads} torch threads but torch uses {torch.get_num_threads()}"
        )


def recorded_threads() -> Mapping[str, str | int | float]:
    """For `Outcome.environment`."""
    return {
        "torch_threads": torch.get_num_threads(),
        "niceness": os.getpriority(os.PRIO_PROCESS, 0),
        "affinity_cores": len(os.sched_getaffinity(0)),
        "visible_gpus": os.environ.get("CUDA_VISIBLE_DEVICES", "all"),
    }
