"""What a placement's process really takes, against what it declared: a run that is not timed.

On an emulated machine every device is host memory, so there is one pool, `host`. Pages of the
GGUF that are read in place belong to the page cache: they are compared as pages in memory.
"""

from dataclasses import dataclass

from autoplace.units import MIB

TOLERANCE_SHARE = 0.03
TOLERANCE_BYTES = 300 * MIB


@dataclass(frozen=True)
class Pool:
    """Memory that is taken together: the host's, or one GPU's."""

    declared_bytes: int
    """Peak of the ledger, without what is read in place from the memory map."""
    used_bytes: int
    """Peak growth of the process: anonymous pages, or what torch held of a GPU."""

    @property
    def is_within(self) -> bool:
        tolerance = max(TOLERANCE_SHARE * self.declared_bytes, TOLERANCE_BYTES)
        return self.used_bytes <= self.declared_bytes + tolerance


@dataclass(frozen=True)
class Footprint:
    """All pools of one placement."""

    pools: dict[str, Pool]
    mapped_bytes: int
    """Declared weights that are read in place."""
    resident_bytes: int
    """Of these, what was in memory at the end."""

    @property
    def is_within(self) -> bool:
        return all(pool.is_within for pool in self.pools.values())
