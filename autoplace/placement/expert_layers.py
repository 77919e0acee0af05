"""Which layers' experts go to which GPU, given how many each GPU takes."""

from collections.abc import Mapping, Sequence

from autoplace.architectures.spec import ModelSpec, Role

ORDERS = ("first", "last", "most_host_bytes")
"""The first layers, the last ones, or those whose experts free most of the host first."""


def expert_orders(spec: ModelSpec) -> Mapping[str, tuple[int, ...]]:
    """Order name → MoE layers, those that go to a GPU first leading. Equal orders are listed once.

    `most_host_bytes`: on a GPU all layers take the same bytes, on the host those whose `down` is
    Q6_K take more, so they go first (cases/golden-memory: 4.9 GB less on the host).
    """
    layers = spec.moe_layers
    host_bytes = {
        module.layer: spec.n_bytes(module)
        for module in spec.of_role(Role.EXPERTS)
        if module.layer is not None
    }
    by_bytes = tuple(sorted(layers, key=lambda layer: (-host_bytes[layer], layer)))
    orders: dict[str, tuple[int, ...]] = {}
    for name, order in zip(ORDERS, (layers, layers[::-1], by_bytes), strict=True):
        if order not in orders.values():
            orders[name] = order
    return orders


def spread_experts(
    order: Sequence[int],
    counts: Mapping[str, int],
    *,
    layer_devices: Sequence[str],
    host: str,
) -> dict[int, str]:
    """Layer → device of its experts; the leading layers of `order` go to the GPUs.

    A GPU takes its own layers before others', so that activations move as little as possible.
    Counts beyond the number of layers are cut, the last GPU's first.
    """
    left = _cut(counts, len(order))
    chosen = order[: sum(left.values())]
    devices = dict.fromkeys(sorted(order), host)
    strangers = []
    for layer in chosen:
        own = layer_devices[layer]
        if left.get(own, 0) > 0:
            devices[layer] = own
            left[own] -= 1
        else:
            strangers.append(layer)
    free = [gpu for gpu, count in left.items() for _ in range(count)]
    devices.update(zip(strangers, free, strict=True))
    return devices


def _cut(counts: Mapping[str, int], most: int) -> dict[str, int]:
    left = {}
    for gpu, count in counts.items():
        left[gpu] = min(count, most)
        most -= left[gpu]
    return left
