"""One description of a model, from which matching, memory, time and the torch modules derive."""

from autoplace.architectures.presets import geometry_from_preset, read_preset
from autoplace.architectures.registry import (
    expert_modules,
    file_metadata,
    file_tensors,
    spec_from_geometry,
    spec_from_gguf,
)

__all__ = [
    "expert_modules",
    "file_metadata",
    "file_tensors",
    "geometry_from_preset",
    "read_preset",
    "spec_from_geometry",
    "spec_from_gguf",
]
