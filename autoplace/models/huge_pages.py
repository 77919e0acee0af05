"""Host memory for weights in large pages: a token reads gigabytes, and page walks cost time."""

import mmap

import torch
from torch import Tensor

HUGE_PAGE_BYTES = 2 << 20


def host_bytes(n_bytes: int) -> Tensor:
    """Uint8 [n_bytes], zeroed, where the kernel is asked for pages of 2 MiB if it has them.

    The memory is given back to the system as soon as the tensor is gone.
    """
    if n_bytes < HUGE_PAGE_BYTES:
        return torch.zeros(n_bytes, dtype=torch.uint8)
    memory = mmap.mmap(-1, n_bytes + HUGE_PAGE_BYTES, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    if hasattr(mmap, "MADV_HUGEPAGE"):
        memory.madvise(mmap.MADV_HUGEPAGE)
    whole = torch.frombuffer(memory, dtype=torch.uint8)
    start = -whole.data_ptr() % HUGE_PAGE_BYTES
    return whole[start : start + n_bytes]
