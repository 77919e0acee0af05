"""A CUDA out-of-memory error becomes ours, with its device and bytes."""

import pytest
import torch

from autoplace.errors import DeviceOutOfMemoryError
from autoplace.models.out_of_memory import translated

MESSAGE = (
    "CUDA out of memory. Tried to allocate 1.50 GiB. GPU 1 has a total capacity of 44.40 GiB of "
    "which 1.06 GiB is free. Including non-PyTorch memory, this process has 43.33 GiB in use."
)


def test_the_device_and_the_bytes_are_taken_from_torchs_message() -> None:
    with pytest.raises(DeviceOutOfMemoryError) as caught, translated("a decode step"):
        raise torch.cuda.OutOfMemoryError(MESSAGE)
    assert caught.value.device == "cuda:1"
    assert caught.value.requested_bytes == 3 << 29
    assert caught.value.what == "a decode step"


def test_other_errors_pass() -> None:
    with pytest.raises(RuntimeError, match="no kernel image"), translated("a decode step"):
        raise RuntimeError("no kernel image")
