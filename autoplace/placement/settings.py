"""RunSettings: what a rule file has no place for, and a measurement depends on."""

from dataclasses import dataclass

KV_TYPES = {"f32": (4, 1), "f16": (2, 1), "bf16": (2, 1), "q8_0": (34, 32)}
"""KV cache type: bytes for how many values."""


@dataclass(frozen=True)
class RunSettings:
    """Travels in the header of a rule file; `bench` reads it back."""

    num_threads: int
    prefill_chunk: int
    kv_type: str = "f16"
