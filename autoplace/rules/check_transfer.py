"""Checks: whether the activations move where the layers are, and the class that moves them."""

from collections.abc import Mapping

from autoplace.architectures.spec import Role
from autoplace.placement.assignment import Value
from autoplace.rules.families import family_of, injections
from autoplace.rules.finding import Severity, ranges
from autoplace.rules.subject import Subject

ERROR, WARNING, ADVICE = Severity.ERROR, Severity.WARNING, Severity.ADVICE


def moves_of(homes: tuple[str, ...]) -> dict[int, str]:
    """The transfer map that layers on these devices need."""
    return {i: homes[i] for i in range(1, len(homes)) if homes[i] != homes[i - 1]}


def _check_transfer_map(subject: Subject) -> None:
    for key, device in subject.assignment.transfer_map.items():
        _check_key(subject, key)
        _check_target(subject, device)
    off = _off_layers(subject)
    quoted = any(
        type(key) is not int or not _is_target(subject, device)
        for key, device in subject.assignment.transfer_map.items()
    )
    if off and not quoted and not _is_split_family(subject):
        _cannot_split(subject)
    elif off and not quoted:
        _wrong_moves(subject, off)
    elif len(set(subject.homes)) > 1 and not _is_split_family(subject):
        _cannot_split(subject)


def _off_layers(subject: Subject) -> list[int]:
    """Layers that are wholly on another device than the activations."""
    pairs = zip(subject.homes, subject.stream, strict=True)
    return [layer for layer, (home, stream) in enumerate(pairs) if home != stream]


def _model_rule(subject: Subject) -> list[int | None]:
    model = subject.assignment.modules.get("model")
    return [model.rule] if model else []


def _wrong_moves(subject: Subject, off: list[int]) -> None:
    """The whole layer disagrees with the map: the map is what is wrong."""
    model = subject.assignment.modules.get("model")
    where = " and ".join(dict.fromkeys(subject.homes[layer] for layer in off))
    at = " and ".join(dict.fromkeys(subject.stream[layer] for layer in off))
    is_or_are = f"{'layer' if len(off) == 1 else 'layers'} {ranges(off)} {_be(off)} on {where}"
    remedy = _right_map(subject)
    if model is None or model.class_name is None:
        code, message = "no-model-rule", f"{is_or_are}, but no rule replaces ^model$"
        remedy = f"{_model_class(subject)}, {remedy}"
    elif not subject.assignment.transfer_map:
        code, message = "no-transfer-map", f"{is_or_are}, but there is no transfer_map"
    else:
        code, message = "transfer-layer", f"{is_or_are}, but the activations{_when(subject, off)}"
    subject.report(
        ERROR,
        code,
        message,
        layers=off,
        rules=_model_rule(subject),
        effect=f"there the activations are still on {at}: the first prompt fails",
        remedy=remedy,
    )


def _when(subject: Subject, off: list[int]) -> str:
    keys = [key for key in subject.assignment.transfer_map if type(key) is int]
    later = [key for key in keys if key > off[-1]]
    return (
        f" move before layer {min(later)} only" if later else " are elsewhere by the transfer_map"
    )


def _be(layers: list[int]) -> str:
    return "is" if len(layers) == 1 else "are"


def _right_map(subject: Subject) -> str:
    moves = moves_of(subject.homes)
    return f"write transfer_map: {_written(moves)}" if moves else "leave the transfer_map out"


def _written(moves: Mapping[int, str]) -> str:
    return "{" + ", ".join(f'{layer}: "{device}"' for layer, device in moves.items()) + "}"


def _check_key(subject: Subject, key: Value) -> None:
    num_layers = subject.spec.geometry.num_layers
    effect = remedy = ""
    layers: list[int] = []
    if type(key) is not int:
        layers = _off_layers(subject)
        shown = f", so layers {ranges(layers)} are on another device than the activations"
        message = f"the transfer_map's key {key!r} is a string, not an integer"
        message = message if isinstance(key, str) else f"the transfer_map's key {key!r} is no layer"
        message += shown if layers else ""
        effect = "KTransformers never finds it, so the transfer never happens"
        remedy = f"write {key}: without quotes" if str(key).isdigit() else ""
    elif not 0 <= key < num_layers:
        message = f"the transfer_map names layer {key}, but the layers are 0 to {num_layers - 1}"
        effect = "the transfer never happens"
    elif key == 0:
        subject.report(
            ADVICE,
            "transfer-zero",
            "the transfer_map has an entry for layer 0, where the activations begin",
            rules=_model_rule(subject),
            remedy="leave it out",
        )
        return
    else:
        return
    subject.report(
        ERROR,
        "transfer-key",
        message,
        layers=layers,
        rules=_model_rule(subject),
        effect=effect,
        remedy=remedy,
    )


def _check_target(subject: Subject, device: Value) -> None:
    """`cpu` is a target in `builtin`, and in KTransformers since 0.3.2."""
    if _is_target(subject, device):
        return
    subject.report(
        ERROR,
        "transfer-device",
        f"the transfer_map's device {device!r} is none of "
        f"{'cuda:N' if subject.is_ktransformers else 'cpu, cuda:N'}",
        layers=_off_layers(subject),
        rules=_model_rule(subject),
        effect="set_device fails at the first prompt",
        remedy=_right_map(subject),
    )


def _is_target(subject: Subject, device: Value) -> bool:
    old = subject.assignment.engine in ("ktransformers-0.2.1", "ktransformers-0.3")
    known = isinstance(device, str) and device != "cuda"
    return known and not (device == "cpu" and old)


def _model_class(subject: Subject) -> str:
    """What to add where no rule replaces the model."""
    wanted = injections(subject.spec, engine=subject.assignment.engine).get(Role.MODEL)
    name = wanted.replace_class if wanted is not None else "the family's K…Model"
    return f"add a rule: match ^model$, replace it by {name} with threshold 0"


def _is_split_family(subject: Subject) -> bool:
    return not subject.is_ktransformers or family_of(subject.spec).can_split


def _cannot_split(subject: Subject) -> None:
    devices = list(dict.fromkeys(subject.homes))
    subject.report(
        ERROR,
        "family-split",
        f"KTransformers cannot split {subject.spec.geometry.architecture} over "
        f"{', '.join(devices)}",
        layers=[i for i, home in enumerate(subject.homes) if home != subject.homes[0]],
        effect="it has no model class for this family that moves the activations",
        remedy=f"put all layers on {devices[0]}",
    )


def _check_threshold(subject: Subject) -> None:
    model = subject.assignment.modules.get("model")
    if model is None or model.class_name is None:
        return
    threshold = model.kwargs.get("per_layer_prefill_intput_threshold", 30000)
    given = "per_layer_prefill_intput_threshold" in model.kwargs
    if threshold and (subject.is_ktransformers or not given):
        left_out = "" if given else ", the default where it is left out"
        subject.report(
            WARNING,
            "layerwise-prefill",
            f"per_layer_prefill_intput_threshold is {threshold!r}{left_out}",
            rules=[model.rule],
            effect=f"prompts from {threshold!r} tokens on are prefilled layer by layer, which "
            "breaks with two or more GPUs and with DeepSeek-V3",
            remedy="write per_layer_prefill_intput_threshold: 0",
        )


def _check_order(subject: Subject) -> None:
    """Back and forth between GPUs is allowed by the code, and tried by nobody."""
    moves = list(moves_of(subject.homes).values())
    seen = [subject.homes[0], *moves]
    back = sorted({device for device in seen if seen.count(device) > 1 and device != "cpu"})
    if back and subject.is_ktransformers and subject.spec.of_role(Role.ATTENTION):
        subject.report(
            ADVICE,
            "back-and-forth",
            f"the layers come back to {', '.join(back)} after another device",
            rules=_model_rule(subject),
            effect="the project has never tested it; each move costs time",
            remedy="give each GPU one run of layers",
        )


CHECKS = (_check_transfer_map, _check_threshold, _check_order)
