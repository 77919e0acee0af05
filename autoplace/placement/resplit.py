"""The same operators with the layers split otherwise over the GPUs."""

from collections import defaultdict
from dataclasses import replace

from autoplace.architectures.spec import Role
from autoplace.placement.assignment import ModuleAssignment, Value
from autoplace.placement.situation import HOST, Situation


def resplit(situation: Situation) -> Situation | None:
    """Layers moved from GPUs that are too small to the next with room; None if there is none.

    Each GPU keeps as many layers as it can of what it has, and takes what the one before could
    not; then the same from the last GPU to the first.
    """
    gpus = list(dict.fromkeys([*situation.homes, *(gpu.name for gpu in situation.machine.gpus)]))
    if HOST in gpus or len(gpus) < 2 or list(situation.homes) != _sorted_by(situation, gpus):
        return None
    for order in (gpus, gpus[::-1]):
        homes = _pushed(situation, order)
        if homes is not None and homes != situation.homes:
            return moved(situation, homes)
    return None


def _sorted_by(situation: Situation, gpus: list[str]) -> list[str]:
    return sorted(situation.homes, key=gpus.index)


def _pushed(situation: Situation, order: list[str]) -> tuple[str, ...] | None:
    """Homes after what each GPU cannot hold is pushed on in this order."""
    sizes, cache = _layer_bytes(situation)
    left = {gpu: _room_without_layers(situation, gpu, sizes, cache) for gpu in order}
    layers = list(range(len(situation.homes)))
    if order[0] != situation.homes[0]:
        layers.reverse()
    wanted = [situation.homes.count(gpu) for gpu in order]
    homes: dict[int, str] = {}
    carried = 0
    for gpu, count in zip(order, wanted, strict=True):
        budget, carried = left[gpu], carried + count
        while carried and (needed := sizes[layers[len(homes)]] + cache) <= budget:
            budget -= needed
            homes[layers[len(homes)]] = gpu
            carried -= 1
    return tuple(homes[layer] for layer in range(len(layers))) if not carried else None


def _layer_bytes(situation: Situation) -> tuple[list[int], int]:
    """Bytes of each layer on its own GPU, and of one layer's cache."""
    sizes: dict[int, int] = defaultdict(int)
    for module in situation.spec.modules:
        entry = situation.entry(module)
        if module.layer is None or entry is None or not module.tensors:
            continue
        if entry.device == situation.homes[module.layer]:
            sizes[module.layer] += situation.bytes_as(module, entry.operator or "")
    num = len(situation.homes)
    cache = sum(memory.kv_cache for memory in situation.plan.by_device.values()) // num
    return [sizes[layer] for layer in range(num)], cache


def _room_without_layers(situation: Situation, gpu: str, sizes: list[int], cache: int) -> int:
    """What a GPU has for layers: a GPU that holds none yet will need what the others need."""
    layers = [layer for layer, home in enumerate(situation.homes) if home == gpu]
    budget = situation.plan.budget_bytes(situation.machine, gpu)
    like = gpu if layers else situation.homes[0]
    own = [layer for layer, home in enumerate(situation.homes) if home == like]
    peak = situation.plan.by_device[like].peak
    return budget - (peak - sum(sizes[layer] + cache for layer in own))


def moved(situation: Situation, homes: tuple[str, ...]) -> Situation:
    """The same situation with its layers elsewhere, and what goes with them."""
    old = situation.homes
    modules = dict(situation.assignment.modules)
    for module in situation.spec.modules:
        entry = modules.get(module.path)
        layer = module.layer
        if entry is None:
            continue
        if layer is None:
            follows = module.role in (Role.NORM, Role.LM_HEAD) and entry.device == old[-1]
            layer = len(homes) - 1 if follows else None
        if layer is not None and homes[layer] != old[layer]:
            modules[module.path] = _on(entry, old[layer], homes[layer])
    model = modules.get("model")
    if model is not None:
        moves: dict[Value, Value] = {
            i: homes[i] for i in range(1, len(homes)) if homes[i] != homes[i - 1]
        }
        modules["model"] = replace(model, kwargs={**model.kwargs, "transfer_map": moves})
    return replace(
        situation, homes=homes, assignment=replace(situation.assignment, modules=modules)
    )


def _on(entry: ModuleAssignment, old: str, new: str) -> ModuleAssignment:
    """An entry with every mention of its layer's old device replaced."""
    kwargs = {key: new if value == old else value for key, value in entry.kwargs.items()}
    return replace(entry, device=new if entry.device == old else entry.device, kwargs=kwargs)
