"""From the minimum of a split to a placement: which layers' experts are where."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from autoplace.placement.placement import Choice, LayerPlacement, Placement
from autoplace.predict.choices import Choices, HostExperts
from autoplace.predict.split import Part, Split, Splitter


@dataclass(frozen=True)
class Candidate:
    """A minimum for one price, with what it was found among."""

    value: float
    """Estimated; exact but for experts that must go elsewhere than planned."""
    split: Split
    choices: Choices
    host: HostExperts | None
    splitter: Splitter


def trimmed(candidate: Candidate) -> tuple[Part, ...]:
    """No more experts than there are layers: taken off the GPUs that are slowest with them."""
    too_many = candidate.split.num_experts - candidate.splitter.num_moe
    parts = list(candidate.split.parts)
    slowest = sorted(range(len(parts)), key=lambda i: -candidate.splitter.expert_s(parts[i]))
    for i in slowest:
        take = min(max(too_many, 0), parts[i].num_experts)
        parts[i] = replace(parts[i], num_experts=parts[i].num_experts - take)
        too_many -= take
    return tuple(parts)


def repaired(
    candidate: Candidate, parts: Sequence[Part], over: Mapping[str, int]
) -> tuple[Part, ...] | None:
    """Fewer experts where there is too little room; None where that cannot help."""
    fewer_experts = []
    for part in parts:
        missing = over.get(part.device, 0)
        combination = candidate.choices.combinations[part.device][part.combination]
        if missing > 0:
            fewer = int(-(-missing // combination.expert_bytes)) if part.num_experts else 0
            if not fewer:
                return None
            part = replace(part, num_experts=max(0, part.num_experts - fewer))
        fewer_experts.append(part)
    return tuple(fewer_experts) if tuple(fewer_experts) != tuple(parts) else None


def placement_of(candidate: Candidate, parts: Sequence[Part]) -> Placement:
    choices = candidate.choices
    on_gpu = _expert_devices(candidate, parts)
    layers = []
    for part in parts:
        combination = choices.combinations[part.device][part.combination]
        for layer in range(part.start, part.end):
            experts = None
            if choices.moe[layer]:
                experts = on_gpu.get(layer) or _on_host(candidate)
            layers.append(
                LayerPlacement(
                    part.device,
                    combination.attention,
                    choices.mlp_of(layer, combination.mlp),
                    experts,
                )
            )
    return Placement(choices.space.engine, tuple(layers), _head(choices, parts, layers[-1].device))


def _head(choices: Choices, parts: Sequence[Part], last: str) -> Choice:
    """The output where the split has it, or at the last layer's device where it has to be there."""
    if choices.space.head_follows:
        return choices.heads[last][0].choice
    for part in parts:
        if part.head is not None:
            return choices.heads[part.device][part.head].choice
    return choices.heads[choices.space.machine.host.name][0].choice


def _on_host(candidate: Candidate) -> Choice:
    assert candidate.host is not None
    return candidate.host.choice


def _expert_devices(candidate: Candidate, parts: Sequence[Part]) -> dict[int, Choice]:
    """Layer → the GPU's choice: a GPU's own layers first, dearest on the host first, then others'.

    Then a layer of a GPU gives way to a dearer one of another's while that pays for the way.
    """
    if candidate.host is None:
        return {}
    worth = candidate.splitter.layer_values(candidate.host)
    own = {p.device: range(p.start, p.end) for p in parts}
    moe = candidate.choices.moe
    held = {
        p.device: sorted((i for i in own[p.device] if moe[i]), key=lambda i: (-worth[i], i))[
            : p.num_experts
        ]
        for p in parts
    }
    for part in parts:
        _fill_with_others(part, held, worth, moe, candidate.splitter.away)
    chosen = {}
    for part in parts:
        expert = candidate.choices.combinations[part.device][part.combination].experts
        if expert is not None:
            chosen.update(dict.fromkeys(held[part.device], expert))
    return chosen


def _fill_with_others(
    part: Part,
    held: dict[str, list[int]],
    worth: NDArray[np.float64],
    moe: NDArray[np.bool_],
    away: float,
) -> None:
    taken = {layer for layers in held.values() for layer in layers}
    left = sorted(
        (i for i in range(len(moe)) if moe[i] and i not in taken), key=lambda i: -worth[i]
    )
    here = held[part.device]
    while left and len(here) < part.num_experts:
        here.append(left.pop(0))
    here.sort(key=lambda i: -worth[i])
    for position in reversed(range(len(here))):
        if not left or worth[left[0]] - worth[here[position]] <= away:
            return
        here[position] = left.pop(0)
