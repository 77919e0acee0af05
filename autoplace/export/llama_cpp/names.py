"""How GGUF files name what llama.cpp's overrides are about: routed experts in every spelling.

Sources: llama.cpp's common/common.h (`LLM_FFN_EXPS_REGEX`, the pattern of `--cpu-moe`) and
src/llama-arch.cpp (`ffn_gate_exps`, fused `ffn_gate_up_exps`, Grove's `ffn_gate_chexps`, with
`.weight`, `.bias` and `.scale`; old Mixtral files hold each expert by itself: `ffn_gate.3.weight`).
"""

import re
from collections.abc import Iterable, Sequence

EXPERTS = r"ffn_(up|down|gate|gate_up)_(ch|)exps"
"""Split, fused and chunked names; biases and scales by being a prefix of theirs."""
EVERY_LAYERS_EXPERTS = rf"\.{EXPERTS}"
"""llama.cpp's own pattern of `--cpu-moe`."""
PARTS = ("up", "gate", "down")
_OLD_EXPERT = re.compile(r"\.ffn_(gate|up|down)\.\d+\.")
_GATE_OR_UP = re.compile(r"blk\.(\d+)\.ffn_(gate|up|gate_up)(_(?:ch|)exps|_shexp|\.\d+|)\.(\w+)$")


def experts_of_first_layers(count: int) -> list[str]:
    """llama.cpp's own patterns of `--n-cpu-moe`."""
    return [rf"blk\.{layer}{EVERY_LAYERS_EXPERTS}" for layer in range(count)]


def experts_of_layers(layers: Sequence[int]) -> str:
    """One pattern for the routed experts of some layers."""
    return rf"blk\.({'|'.join(map(str, layers))}){EVERY_LAYERS_EXPERTS}"


def old_experts_of_layers(layers: Sequence[int]) -> str:
    """The same where each expert has tensors of its own."""
    return rf"blk\.({'|'.join(map(str, layers))})\.ffn_(gate|up|down)\.\d+\."


def has_old_experts(names: Iterable[str]) -> bool:
    return any(_OLD_EXPERT.search(name) for name in names)


def one_name(names: Sequence[str]) -> str:
    """A pattern for just these tensors."""
    return f"^({'|'.join(re.escape(name) for name in names)})$"


def gate_and_up(name: str) -> tuple[str, str] | None:
    """The pair that a tensor belongs to, and which half it is: llama.cpp runs both halves of
    SwiGLU in one operation, so that they belong on one device. None for other tensors."""
    match = _GATE_OR_UP.match(name)
    if match is None or match[2] == "gate_up":
        return None
    return f"blk.{match[1]}.ffn{match[3]}.{match[4]}", match[2]
