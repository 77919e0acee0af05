"""Triton launches on the current GPU: this makes it the tensors' own."""

from contextlib import AbstractContextManager, nullcontext

import torch
from torch import Tensor


def on_device_of(x: Tensor) -> AbstractContextManager[None]:
    """A context within which x's GPU is the current one; nothing for host memory."""
    return torch.cuda.device(x.device) if x.is_cuda else nullcontext()
