"""RunSettings: what a rule file has no place for, and a measurement depends on."""

from dataclasses import dataclass

KV_TYPES = {"f32": (4, 1), "f16": (2, 1), "bf16": (2, 1), "q8_0": (34, 32)}
"""KV cache type: bytes for how many values."""
ALL_KV_TYPES = KV_TYPES | {
    "q4_0": (18, 32),
    "q4_1": (20, 32),
    "iq4_nl": (18, 32),
    "q5_0": (22, 32),
    "q5_1": (24, 32),
}
"""Those that llama.cpp alone has as well."""


def is_quantised(kv_type: str) -> bool:
    """Whether a cache type stores blocks, which llama.cpp wants flash attention for."""
    return ALL_KV_TYPES[kv_type][1] > 1


CUDA_GRAPHS = ("auto", "on", "off")
"""Whether `builtin` decodes by CUDA graphs: where it can, or refuse to run without, or never."""
INTERLEAVE = ("auto", "off")
"""Whether `builtin` copies CPU weights at load with their rows by sixteens: where the CPU path
gains by it, or never (they stay in the mapped file). Both take the same bytes."""


@dataclass(frozen=True)
class RunSettings:
    """Travels in the header of a rule file; `bench` reads it back."""

    num_threads: int
    prefill_chunk: int
    """Tokens of a prompt at a time; llama.cpp's micro-batch."""
    kv_type: str = "f16"
    batch: int | None = None
    """llama.cpp's logical batch; None for engines that have none."""
    flash_attn: str | None = None
    """llama.cpp's `on`, `off` or `auto`; None for engines that do not say."""

    def record(self) -> dict[str, int | str]:
        """Names and values to write down, what an engine has not left out."""
        return {name: value for name, value in vars(self).items() if value is not None}
