"""The words that a rule may use: classes to match, classes to inject, their options and defaults.

Classes come from the catalogue; nothing is ever imported by name.
"""

import difflib
import re
from collections.abc import Collection, Mapping
from dataclasses import dataclass

from autoplace.architectures.spec import Role
from autoplace.catalog import classes
from autoplace.placement.assignment import Value

LINEAR_CLASS = "torch.nn.Linear"
WRAPPED_LINEAR = "ktransformers.operators.linear.KTransformersLinear"
EXPERTS_CLASS = "ktransformers.operators.experts.KTransformersExperts"
SERVER_EXPERTS_CLASS = "ktransformers.operators.experts.KTransformersExpertsV2"
LINEAR_ROLES = (Role.ATTENTION_LINEAR, Role.DENSE_LINEAR, Role.SHARED_LINEAR)
MARLIN = ("KLinearMarlin", "VLinearMarlin", "KExpertsMarlin")

_DEVICES = ("generate_device", "prefill_device")
_OPERATORS = (*_DEVICES, "generate_op", "prefill_op", "out_device")
_MARLIN_OPTIONS = ("num_bits", "group_size", "act_order", "is_k_full")
_OPTIONS: Mapping[str, tuple[str, ...]] = {
    "default": _DEVICES,
    WRAPPED_LINEAR: (*_OPERATORS, *_MARLIN_OPTIONS, "stride", "group_max_len"),
    EXPERTS_CLASS: (*_OPERATORS, "num_bits", "backend"),
    SERVER_EXPERTS_CLASS: (*_OPERATORS, "backend"),
    "ktransformers.operators.attention.KDeepseekV2Attention": (
        *_DEVICES,
        "chunck_size",
        "absorb_for_prefill",
    ),
    "ktransformers.operators.balance_serve_attention.flashinfer_attn": (
        *_DEVICES,
        "chunck_size",
        "absorb_for_prefill",
    ),
    "ktransformers.operators.balance_serve_attention.KQwen2MoeAttention": (
        *_DEVICES,
        "chunck_size",
    ),
    "ktransformers.operators.balance_serve_attention.KQwen3MoeAttention": (
        *_DEVICES,
        "chunck_size",
    ),
}
_MODEL_OPTIONS = (*_DEVICES, "device", "per_layer_prefill_intput_threshold", "transfer_map")


@dataclass(frozen=True)
class Defaults:
    """What an injected class does where a rule does not say it."""

    device: str
    operator: str | None = None


def defaults_of(replace_class: str) -> Defaults:
    if replace_class == WRAPPED_LINEAR:
        return Defaults("cuda:0", "KLinearMarlin")
    if replace_class in (EXPERTS_CLASS, SERVER_EXPERTS_CLASS):
        return Defaults("cpu", "KExpertsCPU")
    return Defaults("cuda:0")


def wrapped_kind(class_name: str | None) -> str | None:
    """`linear` or `experts` for the wrappers that run an operator."""
    if class_name in (EXPERTS_CLASS, SERVER_EXPERTS_CLASS):
        return "experts"
    return "linear" if class_name == WRAPPED_LINEAR else None


def options_of(replace_class: str) -> Collection[str]:
    """Keyword arguments that an injectable class knows."""
    if replace_class.startswith("ktransformers.operators.models."):
        return _MODEL_OPTIONS
    return _OPTIONS.get(replace_class, _DEVICES)


_DEVICE = re.compile(r"cpu|cuda(:\d{1,3})?")
DEVICE_OPTIONS = (*_DEVICES, "out_device", "device")
_TEXT_OPTIONS = ("generate_op", "prefill_op", "backend")
_COUNT_OPTIONS = ("num_bits", "group_size", "stride", "group_max_len", "chunck_size")
_FLAG_OPTIONS = ("act_order", "is_k_full", "absorb_for_prefill")


def problem_with(option: str, value: Value) -> str | None:
    """Why a value cannot be understood; None if it can. What it does is `lint`'s to say."""
    if option in DEVICE_OPTIONS:
        if not isinstance(value, str) or not _DEVICE.fullmatch(value):
            return f"must be cpu or cuda:N, not {value!r}"
    elif option in _TEXT_OPTIONS:
        if not isinstance(value, str) and not (option == "prefill_op" and value is None):
            return f"must be a name, not {value!r}"
    elif option in _COUNT_OPTIONS:
        if type(value) is not int:
            return f"must be an integer, not {value!r}"
    elif option in _FLAG_OPTIONS:
        if type(value) is not bool:
            return f"must be true or false, not {value!r}"
    elif option == "transfer_map":
        if value is not None and not isinstance(value, Mapping):
            return f"must map layers to devices, not {value!r}"
    elif option == "per_layer_prefill_intput_threshold" and value is not None:
        return None if type(value) is int else f"must be an integer, not {value!r}"
    return None


def num_bits_of(operator: str, kwargs: Mapping[str, Value]) -> int | None:
    """Bits of a Marlin operator's weights, 4 where the rule does not say; None for the others."""
    if operator not in MARLIN:
        return None
    value = kwargs.get("num_bits", 4)
    return value if type(value) is int else None


def option_problems(operator: str, kwargs: Mapping[str, Value], *, engine: str) -> list[str]:
    """Options that the operator cannot run with in that engine."""
    problems = []
    if operator in MARLIN:
        num_bits = kwargs.get("num_bits", 4)
        if num_bits not in (4, 8):
            problems.append(f"num_bits must be 4 or 8, but got {num_bits!r}")
        if operator == "KExpertsMarlin" and num_bits == 8 and engine.startswith("ktransformers"):
            problems.append(f"num_bits 8 does not reach KExpertsMarlin in {engine}: it runs at 4")
        group_size = kwargs.get("group_size", 64)
        allowed = (64,) if engine == "builtin" else (-1, 32, 64, 128)
        if group_size not in allowed:
            problems.append(
                f"group_size must be {' or '.join(map(str, allowed))} in {engine}, "
                f"but got {group_size!r}"
            )
        if kwargs.get("act_order", False) is not False:
            problems.append("act_order must be false")
    return problems


def is_known_class(path: str) -> bool:
    """Whether `match` may name the class: one of a model's modules, or a base or alias of it."""
    return path in classes.MODULE_CLASSES


def is_injectable(path: str) -> bool:
    """Whether `replace` may name it."""
    return path == "default" or path in classes.INJECTABLE_CLASSES


def similar_classes(path: str) -> Collection[str]:
    return _similar(path, classes.MODULE_CLASSES)


def similar_injectables(path: str) -> Collection[str]:
    return _similar(path, ("default", *classes.INJECTABLE_CLASSES))


def _similar(path: str, known: Collection[str]) -> Collection[str]:
    """Classes of the same last name first: the module part is what people forget."""
    name = path.rpartition(".")[2]
    same = [candidate for candidate in known if candidate.rpartition(".")[2] == name]
    near = difflib.get_close_matches(path, known, n=1, cutoff=0.6)
    return same[:1] or near


def is_instance(class_name: str, match_class: str) -> bool:
    """Whether a module of the class is an instance of what `match` names, as Python sees it."""
    return classes.is_instance(class_name, match_class)
