"""llama.cpp: what its arguments can say, what they mean for a file's tensors, what that takes."""

from autoplace.export.llama_cpp.args import LlamaCppArgs
from autoplace.export.llama_cpp.check import check_overrides, live_overrides, warnings_of
from autoplace.export.llama_cpp.layout import buffers_of, layer_devices, tensor_devices
from autoplace.export.llama_cpp.parse import parse_args
from autoplace.export.llama_cpp.placed import (
    args_of_placement,
    arguments_of,
    nearest_placement,
    placement_of,
)

__all__ = [
    "LlamaCppArgs",
    "args_of_placement",
    "arguments_of",
    "buffers_of",
    "check_overrides",
    "layer_devices",
    "live_overrides",
    "nearest_placement",
    "parse_args",
    "placement_of",
    "tensor_devices",
    "warnings_of",
]
