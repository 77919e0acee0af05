"""Weights per device, by what they are and which operator holds them."""

from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass

from autoplace.architectures.spec import ModelSpec, Role
from autoplace.catalog.engines import engine
from autoplace.placement.assignment import Assignment
from autoplace.placement.module_bytes import DEFAULT_DEVICE, module_bytes

_WORDS: Mapping[Role, str] = {
    Role.EMBEDDING: "embedding",
    Role.ATTENTION_LINEAR: "attention linears",
    Role.KV_B: "kv_b",
    Role.DENSE_LINEAR: "dense MLP",
    Role.SHARED_LINEAR: "shared experts",
    Role.SHARED_GATE: "shared gate",
    Role.ROUTER: "router",
    Role.EXPERTS: "routed experts",
    Role.NORM: "norms",
    Role.LM_HEAD: "lm_head",
}
PLAIN = "plain"
"""The operator's name where no rule puts one in place."""


@dataclass(frozen=True)
class Share:
    """Modules of one role on one device that one operator holds."""

    device: str
    role: str
    operator: str
    num_modules: int
    n_bytes: int


def breakdown(
    spec: ModelSpec, assignment: Assignment, *, dtype_bytes: int = 2, numa_copies: int = 1
) -> tuple[Share, ...]:
    """Shares in the order of devices, largest first. Their sum is the plan's weights."""
    scale_bytes = engine(assignment.engine).memory.marlin_scale_bytes
    sizes = module_bytes(spec, dtype_bytes=dtype_bytes, scale_bytes=scale_bytes)
    totals: dict[tuple[str, str, str], list[int]] = defaultdict(lambda: [0, 0])
    for module in sizes.modules:
        entry = assignment.modules.get(module.path)
        device = entry.device if entry else DEFAULT_DEVICE
        operator = entry.operator if entry and entry.operator else PLAIN
        copies = numa_copies if module.role is Role.EXPERTS and device == "cpu" else 1
        total = totals[device, _WORDS.get(module.role, module.role.value), operator]
        total[0] += 1
        total[1] += copies * sizes.of(module, entry).weights
    shares = [Share(*key, *total) for key, total in totals.items()]
    return tuple(sorted(shares, key=lambda share: (share.device, -share.n_bytes)))
