"""The engine that a command is about, and what only one of them has."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from autoplace.config.compose import Composed
from autoplace.config.group_configs import EngineConfig
from autoplace.config.values import require_one_of
from autoplace.errors import AutoplaceError
from autoplace.placement.settings import CUDA_GRAPHS, INTERLEAVE

DTYPES = ("bfloat16", "float32")
LLAMA_CPP_TOOLS = ("llama-bench", "llama-server", "xllamacpp")


def build_engine(composed: Composed) -> EngineConfig:
    values = composed.values["engine"]
    require_one_of("engine.dtype", values["dtype"], DTYPES)
    graphs = _switch(values["cuda_graphs"])
    require_one_of("engine.cuda_graphs", graphs, CUDA_GRAPHS)
    interleave = _switch(values["interleave"])
    require_one_of("engine.interleave", interleave, INTERLEAVE)
    return EngineConfig(
        values["name"], values["dtype"], graphs, interleave, **_llama_cpp(values, values["name"])
    )


def _switch(value: str) -> str:
    """What YAML made of on and off."""
    return {"True": "on", "False": "off"}.get(value, value)


def _llama_cpp(values: Mapping[str, Any], engine: str) -> dict[str, Any]:
    """What only llama.cpp has, refused for other engines."""
    given = [key for key in ("binaries", "tool", "args") if values[key] is not None]
    if engine != "llama.cpp" and (given or values["keep"]):
        raise AutoplaceError(f"engine.{[*given, 'keep'][0]} is for engine=llama.cpp, not {engine}")
    if values["tool"] is not None:
        require_one_of("engine.tool", values["tool"], LLAMA_CPP_TOOLS)
    if values["keep"] and not values["args"]:
        raise AutoplaceError('engine.keep keeps what engine.args="…" overrides, which is not given')
    paths = (values["binaries"] or "").split(":")
    return {
        "binaries": tuple(Path(path).expanduser() for path in paths if path),
        "tool": values["tool"],
        "args": values["args"],
        "keep": values["keep"],
    }
