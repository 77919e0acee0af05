"""How large ggml makes the buffer of a graph on each device: its allocator, tensor by tensor.

Source: llama.cpp b9993, ggml/src/ggml-alloc.c (`ggml_gallocr_alloc_graph_impl`: a tensor takes
the place of an input that nobody needs any more where its operation can; the best fitting free
block, else the end) and ggml/src/ggml-backend.cpp (`ggml_backend_sched_split_graph`: a run of
nodes on one device is a split, which copies what it needs from others when it starts).
"""

from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

ALIGNMENT = 128
"""Of a tensor in CUDA's buffers; 64 on the CPU."""


@dataclass(eq=False, slots=True)
class Tensor:
    """A result of a node, or an input of the graph (`inputs` empty, allocated at the start)."""

    n_bytes: int
    device: str
    inputs: tuple["Tensor", ...] = ()
    reuses: tuple["Tensor", ...] = ()
    """Inputs of the same layout whose place it may take, the first free one."""
    is_kept: bool = False
    """A result of the whole graph: never freed."""
    is_weight: bool = False
    """Not allocated here; a split that needs it on another device starts anew."""


@dataclass
class Arena:
    """One device's buffer: free blocks by address, the last one without an end."""

    peak: int = 0
    _free: list[list[int]] = field(default_factory=lambda: [[0, 1 << 62]])

    def take(self, n_bytes: int) -> int:
        """The address of a new tensor: in the tightest hole, else at the end."""
        size = padded(n_bytes)
        holes = [block for block in self._free[:-1] if block[1] >= size]
        # of equal holes the last one
        block = min(reversed(holes), key=lambda hole: hole[1]) if holes else self._free[-1]
        address = block[0]
        block[0] += size
        block[1] -= size
        if not block[1]:
            self._free.remove(block)
        self.peak = max(self.peak, address + size)
        return address

    def give(self, address: int, n_bytes: int) -> None:
        """Free a tensor's block, joined with its free neighbours."""
        self._free.append([address, padded(n_bytes)])
        self._free.sort()
        joined: list[list[int]] = []
        for block in self._free:
            if joined and joined[-1][0] + joined[-1][1] == block[0]:
                joined[-1][1] += block[1]
            else:
                joined.append(block)
        self._free = joined


def padded(n_bytes: int) -> int:
    return -(-n_bytes // ALIGNMENT) * ALIGNMENT


def buffer_bytes(
    leaves: Sequence[Tensor], nodes: Sequence[Tensor], *, num_copies: int = 1
) -> dict[str, int]:
    """Device → bytes of its buffer, for a graph in the order in which it runs.

    `num_copies`: of inputs and of what splits copy, in a pipeline, where none is ever freed.
    """
    order, copied = _with_copies(nodes)
    if num_copies > 1:
        spare = [Tensor(t.n_bytes, t.device) for t in (*leaves, *copied)]
        leaves = [*leaves, *spare * (num_copies - 1)]
        for tensor in (*leaves, *copied):
            tensor.is_kept = True
    uses: dict[Tensor, int] = defaultdict(int)
    for node in order:
        for tensor in node.inputs:
            uses[tensor] += 1
    arenas: dict[str, Arena] = defaultdict(Arena)
    places: dict[Tensor, int] = {}
    for leaf in leaves:
        places[leaf] = arenas[leaf.device].take(leaf.n_bytes)
    for node in order:
        _place(node, places, uses, arenas)
        for tensor in node.inputs:
            uses[tensor] -= 1
            if not uses[tensor] and tensor in places and not tensor.is_kept:
                arenas[tensor.device].give(places.pop(tensor), tensor.n_bytes)
    return {device: arena.peak for device, arena in arenas.items()}


def _place(
    node: Tensor, places: dict[Tensor, int], uses: dict[Tensor, int], arenas: dict[str, Arena]
) -> None:
    """Where a node's result goes. One without bytes writes into a cache."""
    if not node.n_bytes:
        return
    for parent in node.reuses:
        if parent in places and uses[parent] == 1 and not parent.is_kept:
            places[node] = places.pop(parent)
            if padded(parent.n_bytes) > padded(node.n_bytes):
                rest = padded(parent.n_bytes) - padded(node.n_bytes)
                arenas[node.device].give(places[node] + padded(node.n_bytes), rest)
            return
    places[node] = arenas[node.device].take(node.n_bytes)


def _with_copies(nodes: Sequence[Tensor]) -> tuple[list[Tensor], list[Tensor]]:
    """The nodes with the copies that each split makes when it starts, inputs redirected; and the
    copies alone."""
    copies: dict[tuple[Tensor, str], Tensor] = {}
    moved: dict[Tensor, Tensor] = {}
    order: list[Tensor] = []
    for split in _splits(nodes):
        device = split[0].device
        made: list[Tensor] = []
        redirected: list[Tensor] = []
        for node in split:
            inputs = []
            for source in node.inputs:
                source = moved.get(source, source)
                if source.device != device:
                    if (source, device) not in copies:
                        copies[source, device] = Tensor(source.n_bytes, device, (source,))
                        made.append(copies[source, device])
                    source = copies[source, device]
                inputs.append(source)
            reuses = tuple(_same(tensor, device, moved, copies) for tensor in node.reuses)
            fresh = Tensor(node.n_bytes, device, tuple(inputs), reuses, node.is_kept)
            moved[node] = fresh
            redirected.append(fresh)
        order += [*made, *redirected]
    return order, list(copies.values())


def _same(
    tensor: Tensor,
    device: str,
    moved: dict[Tensor, Tensor],
    copies: dict[tuple[Tensor, str], Tensor],
) -> Tensor:
    tensor = moved.get(tensor, tensor)
    return copies.get((tensor, device), tensor)


def _splits(nodes: Iterable[Tensor]) -> list[list[Tensor]]:
    """Runs on one device; a weight that must be copied starts a new one, so that the place of the
    weights before it can be used again."""
    splits: list[list[Tensor]] = []
    has_inputs = False
    for node in nodes:
        foreign = [source for source in node.inputs if source.device != node.device]
        starts = has_inputs and any(source.is_weight for source in foreign)
        if not splits or splits[-1][-1].device != node.device or starts:
            splits.append([])
            has_inputs = False
        splits[-1].append(node)
        has_inputs = has_inputs or bool(foreign)
    return splits
