"""How many CPU threads torch and the compiled kernels use."""

import torch

from autoplace.models.backend import kernels


def use_threads(num_threads: int) -> None:
    """Set both pools; they are the process's, not a model's."""
    torch.set_num_threads(num_threads)
    native = kernels()
    if native is not None:
        native.set_num_threads(num_threads)
