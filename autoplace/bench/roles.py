"""Where a decoded token's time goes, by role: in steps of their own, after the timed ones.

Hooks watch the modules, and all devices are waited for at every boundary; kernels that do half a
layer in one call count their parts themselves. What no role has is `between kernels`: Python, and
small calls of torch.
"""

import time
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from typing import Any

from torch import Tensor, nn

from autoplace.engine.model import HybridModel
from autoplace.models.backend import decode_kernels
from autoplace.models.basic import Embedding, RMSNorm
from autoplace.models.gqa import GqaAttention
from autoplace.models.mla import MlaAttention
from autoplace.models.moe import Mlp, MoeBlock
from autoplace.models.place import Place, move
from autoplace.native_decode import Role
from autoplace.operators.wrappers import KTransformersExperts, KTransformersLinear

TIMED_TOKENS = 16
EXPERTS, SHARED, HEAD, EMBEDDING = "routed experts", "shared expert", "head", "embedding"
HAND_OVER, BETWEEN = "hand-over", "between kernels"
KERNEL_ROLES = {
    Role.ATTENTION: "attention",
    Role.ROUTER: "router",
    Role.EXPERTS: EXPERTS,
    Role.SHARED: SHARED,
    Role.DENSE: "dense",
    Role.NORMS: "norms",
}
ROLES = (*KERNEL_ROLES.values(), HEAD, EMBEDDING, HAND_OVER, BETWEEN)


def seconds_by_role(
    model: HybridModel,
    prompt: list[int],
    output: Sequence[int],
    *,
    synchronise: Callable[[], None],
) -> dict[str, float]:
    """Seconds of one token by role, the mean of at most 16, after a prefill; without CUDA graphs.

    Their sum is the token's whole time in these steps, the choice of the best token included.
    """
    timed = output[:TIMED_TOKENS]
    stopwatch = Stopwatch(synchronise)
    with model.without_graphs():
        model.reset()
        model.prefill(prompt)
        int(model.decode(output[0]).argmax())
        model.reset()
        model.prefill(prompt)
        with _watched(model, stopwatch):
            for token in timed:
                int(model.decode(token).argmax())
    return {role: stopwatch.seconds[role] / len(timed) for role in ROLES}


class Stopwatch:
    """Seconds by role; time within a role that is entered within another is the inner one's."""

    def __init__(self, synchronise: Callable[[], None]) -> None:
        self.seconds: defaultdict[str, float] = defaultdict(float)
        self._synchronise = synchronise
        self._roles = [BETWEEN]
        self._since = 0.0

    def start(self) -> None:
        self._synchronise()
        self._since = time.perf_counter()

    def enter(self, role: str | None) -> None:
        """None: whatever the surrounding work is, once it has been handed over."""
        self.lap()
        if role is None:
            role = next(role for role in reversed(self._roles) if role != HAND_OVER)
        self._roles.append(role)

    def leave(self) -> None:
        self.lap()
        self._roles.pop()

    def lap(self) -> None:
        self._synchronise()
        now = time.perf_counter()
        self.seconds[self._roles[-1]] += now - self._since
        self._since = now


@contextmanager
def _watched(model: HybridModel, stopwatch: Stopwatch) -> Iterator[None]:
    native = decode_kernels()
    with ExitStack() as stack:
        for module, role in _modules_by_role(model.root):
            _watch(module, role, stopwatch, stack)
        for module in model.root.modules():
            if isinstance(module, KTransformersExperts):
                _watch_experts(module, stopwatch, stack)
        _watch_moves(model, stopwatch, stack)
        if native is not None:
            stack.callback(native.time_roles, on=False)
            native.time_roles(on=True)
        stopwatch.start()
        yield
        stopwatch.lap()
        if native is not None:
            _add_kernels(native.role_seconds(), stopwatch)


def _add_kernels(by_kernels: Mapping[Role, float], stopwatch: Stopwatch) -> None:
    """They ran where no module's hook saw them."""
    for role, seconds in by_kernels.items():
        stopwatch.seconds[KERNEL_ROLES[role]] += seconds
        stopwatch.seconds[BETWEEN] -= seconds


def _modules_by_role(root: nn.Module) -> Iterator[tuple[nn.Module, str | None]]:
    """A MoE block's own work, beside its experts', is the router's."""
    shared = set(_shared_experts(root))
    for module in root.modules():
        match module:
            case RMSNorm():
                yield module, "norms"
            case MlaAttention() | GqaAttention():
                yield module, "attention"
            case MoeBlock():
                yield module, "router"
            case Mlp() if module not in shared:
                yield module, "dense"
            case Embedding():
                yield module, EMBEDDING
    for module in shared:
        yield module, SHARED
    yield root.get_submodule("lm_head"), HEAD
    for module in root.modules():
        if isinstance(module, KTransformersLinear) and module.operator.place != module.home:
            yield module, HAND_OVER
            yield module.operator, None


def _shared_experts(root: nn.Module) -> Iterator[nn.Module]:
    for module in root.modules():
        if isinstance(module, MoeBlock):
            for name, child in module.named_children():
                if name.startswith("shared_expert"):
                    yield child


def _watch(module: nn.Module, role: str | None, stopwatch: Stopwatch, stack: ExitStack) -> None:
    def before(*_: Any) -> None:
        stopwatch.enter(role)

    def after(*_: Any) -> None:
        stopwatch.leave()

    # The hooks of an outer role come first before a module, and last after it.
    stack.callback(module.register_forward_pre_hook(before).remove)
    stack.callback(module.register_forward_hook(after, prepend=True).remove)


def _watch_experts(module: KTransformersExperts, stopwatch: Stopwatch, stack: ExitStack) -> None:
    """`start` is no forward: it is replaced on the instance for the while."""
    start, role = module.start, EXPERTS
    if module.operator.place != module.home:
        role = HAND_OVER
        _watch(module.operator, EXPERTS, stopwatch, stack)

    def watched(x: Tensor, experts: Tensor, weights: Tensor) -> Callable[[], Tensor]:
        stopwatch.enter(role)
        finish = start(x, experts, weights)
        stopwatch.leave()

        def finished() -> Tensor:
            stopwatch.enter(role)
            out = finish()
            stopwatch.leave()
            return out

        return finished

    vars(module)["start"] = watched
    stack.callback(vars(module).pop, "start")


def _watch_moves(model: HybridModel, stopwatch: Stopwatch, stack: ExitStack) -> None:
    """Between layers that are on different devices."""

    def timed(x: Tensor, place: Place) -> Tensor:
        stopwatch.enter(HAND_OVER)
        try:
            return move(x, place)
        finally:
            stopwatch.leave()

    stack.callback(setattr, model, "hand_over", model.hand_over)
    model.hand_over = timed
