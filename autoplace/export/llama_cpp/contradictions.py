"""Words of one line of llama.cpp arguments that cannot both be meant."""

from collections.abc import Callable, Mapping
from typing import Any

from autoplace.errors import AutoplaceError
from autoplace.placement.settings import is_quantised

Values = Mapping[str, Any]


def refuse_contradictions(words: Mapping[str, str], values: Values) -> None:
    """Raise `AutoplaceError` for the first pair that contradicts, both as they were written.

    `words` and `values`: by the names of `options.Option`, of what was given only.
    """
    for first, second, why, is_so in _PAIRS:
        if first in values and second in values and is_so(values):
            raise AutoplaceError(f"{words[first]} and {words[second]} contradict each other: {why}")
    _refuse_unknown_servers(words, values)


def _refuse_unknown_servers(words: Mapping[str, str], values: Values) -> None:
    """An override to `RPC0[host:port]` needs that server in `--rpc`."""
    for _, buffer in values.get("overrides", ()):
        if not buffer.startswith("RPC") or "[" not in buffer:
            continue
        endpoint = buffer.partition("[")[2].removesuffix("]")
        if "rpc" not in values:
            raise AutoplaceError(f"{words['overrides']} names {buffer}, but there is no --rpc")
        if endpoint not in values["rpc"]:
            raise AutoplaceError(
                f"{words['overrides']} and {words['rpc']} contradict each other: "
                f"no server is at {endpoint}"
            )


def _both(first: str, second: str) -> Callable[[Values], bool]:
    return lambda values: bool(values[first]) and bool(values[second])


_PAIRS: tuple[tuple[str, str, str, Callable[[Values], bool]], ...] = (
    (
        "cpu_moe",
        "n_cpu_moe",
        "the one keeps the experts of all layers on the CPU, the other of the first few",
        lambda values: bool(values["cpu_moe"]),
    ),
    (
        "batch",
        "ubatch",
        "a physical batch is no larger than a logical one",
        lambda values: bool(values["ubatch"] > values["batch"]),
    ),
    (
        "cache_type_v",
        "flash_attn",
        "a quantised V cache needs flash attention",
        lambda values: is_quantised(values["cache_type_v"]) and values["flash_attn"] == "off",
    ),
    (
        "split_mode",
        "tensor_split",
        "one device takes no shares",
        lambda values: values["split_mode"] == "none" and len(values["tensor_split"]) > 1,
    ),
    (
        "n_gpu_layers",
        "tensor_split",
        "no layer is on a device",
        lambda values: values["n_gpu_layers"] == 0 and len(values["tensor_split"]) > 1,
    ),
    (
        "devices",
        "n_gpu_layers",
        "there is no device for the layers",
        lambda values: values["devices"] == ("none",) and values["n_gpu_layers"] != 0,
    ),
    (
        "devices",
        "tensor_split",
        "as many shares as devices are needed",
        lambda values: len(values["tensor_split"]) > len(values["devices"]),
    ),
    (
        "fit",
        "n_gpu_layers",
        "--fit changes only what is not given",
        lambda values: bool(values["fit"]) and values["n_gpu_layers"] is not None,
    ),
    ("fit", "tensor_split", "--fit changes only what is not given", _both("fit", "tensor_split")),
    ("fit", "overrides", "--fit changes only what is not given", _both("fit", "overrides")),
    ("fit", "cpu_moe", "--fit changes only what is not given", _both("fit", "cpu_moe")),
    ("fit", "n_cpu_moe", "--fit changes only what is not given", _both("fit", "n_cpu_moe")),
    (
        "fit",
        "fit_target_mib",
        "a margin is for fitting",
        lambda values: not values["fit"],
    ),
)
"""Two options, why they contradict, and for which values."""
