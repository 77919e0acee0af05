"""On which device the activations of every layer are, and whether every module is there too."""

from dataclasses import dataclass

from autoplace.architectures.spec import ModelSpec, Module, Role
from autoplace.errors import AutoplaceError
from autoplace.placement.assignment import Assignment

_FREE = (Role.EMBEDDING, Role.ROOT, Role.MODEL, Role.CONTAINER, Role.MLP)
"""Roles that compute nothing on activations of a layer by themselves."""


def device_name(device: str) -> str:
    """`cuda` means the first GPU, as in torch."""
    return "cuda:0" if device == "cuda" else device


@dataclass(frozen=True)
class Route:
    """The device of the activations in each layer; norm and logits are on the last."""

    layers: tuple[str, ...]

    @property
    def last(self) -> str:
        return self.layers[-1]

    def of(self, module: Module) -> str:
        """Where a module finds its input."""
        return self.last if module.layer is None else self.layers[module.layer]


def route_of(spec: ModelSpec, assignment: Assignment) -> Route:
    """Follow the transfer map: start at layer 0's attention, move before each layer it names."""
    attention = spec.of_role(Role.ATTENTION, 0)[0]
    device = device_name(assigned_device(assignment, attention))
    layers = []
    for layer in range(spec.geometry.num_layers):
        target = assignment.transfer_map.get(layer)
        if isinstance(target, str):
            device = device_name(target)
        layers.append(device)
    return Route(tuple(layers))


def assigned_device(assignment: Assignment, module: Module) -> str:
    """A module's `generate_device`; modules below a `recursive: false` match have none."""
    if module.path not in assignment.modules:
        raise AutoplaceError(
            f"{module.path} has no device: a rule with recursive: false matched above it"
        )
    return device_name(assignment.modules[module.path].device)


def refuse_strays(spec: ModelSpec, assignment: Assignment, route: Route) -> None:
    """Raise where a module without an operator is not where its input is."""
    for module in spec.modules:
        if module.role in _FREE or (not module.tensors and module.role is not Role.ATTENTION):
            continue
        device, expected = assigned_device(assignment, module), route.of(module)
        if assignment.modules[module.path].operator is not None:
            continue
        if device != expected:
            raise AutoplaceError(
                f"{module.path} is on {device} but its input is on {expected}: "
                "expected both on one device, or an operator of KTransformersLinear"
            )


def why_no_graphs(spec: ModelSpec, assignment: Assignment, route: Route) -> str | None:
    """What keeps CUDA graphs from decoding: a layer on the CPU, one GPU that works for another."""
    for layer, device in enumerate(route.layers):
        if device == "cpu":
            return f"{layer=} is on cpu and CUDA graphs need every layer on a GPU"
    for module in spec.modules:
        assigned = assignment.modules.get(module.path)
        if assigned is None or assigned.operator is None:
            continue
        device, home = device_name(assigned.device), route.of(module)
        if device not in ("cpu", home):
            return (
                f"{module.path} is on {device} and its layer on {home}, where CUDA graphs need "
                "operators on their layer's GPU or on cpu"
            )
    return None
