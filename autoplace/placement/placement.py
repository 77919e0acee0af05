"""Placement: what is tuned. Every layer has its device, every replaceable module its operator."""

from dataclasses import dataclass

PLACEMENT_VERSION = 1


@dataclass(frozen=True)
class Choice:
    """Where one group of replaceable modules runs, and by which operator."""

    device: str
    operator: str
    """A name of the catalogue: KLinearMarlin, KExpertsCPU, …"""
    num_bits: int | None = None
    """4 or 8 for the Marlin operators, None for all others."""


@dataclass(frozen=True)
class LayerPlacement:
    """One layer. Attention, norms, router and KV cache follow `device`."""

    device: str
    attention: Choice
    """The replaceable linears of the attention."""
    mlp: Choice | None
    """The linears of the dense MLP or of the shared expert; None where the layer has neither."""
    experts: Choice | None
    """The routed experts; None in a dense layer. Their device may be any device."""


@dataclass(frozen=True)
class Placement:
    """A whole model on a machine, for one engine."""

    engine: str
    layers: tuple[LayerPlacement, ...]
    lm_head: Choice
    version: int = PLACEMENT_VERSION
