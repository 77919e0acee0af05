"""Where a tensor lives: a device by the name that rules use, and torch's device behind it.

On an emulated machine every torch device is the CPU, so a tensor that was never moved goes
unnoticed. `checked_places` is the test mode that notices: it remembers each tensor's place.
"""

from collections.abc import Iterator, Mapping, MutableMapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode
from torch.utils._pytree import tree_leaves
from torch.utils.weak import WeakTensorKeyDictionary

from autoplace.hardware.machine import Machine


@dataclass(frozen=True)
class Place:
    """A device's name (`cpu`, `cuda:0`) and where its tensors really are."""

    name: str
    torch_device: torch.device

    @property
    def is_gpu(self) -> bool:
        return self.name != "cpu"

    @property
    def runs_on_host(self) -> bool:
        """True for the CPU and for every emulated device: CPU kernels can read its tensors."""
        return self.torch_device.type == "cpu"


HOST = Place("cpu", torch.device("cpu"))


def places_of(machine: Machine) -> Mapping[str, Place]:
    """Every device of a machine by name."""
    return {
        device.name: Place(device.name, torch.device("cpu" if machine.emulated else device.name))
        for device in machine.devices
    }


class _Tags(TorchFunctionMode):
    """Remembers the place of every tensor, and refuses operations between places."""

    def __init__(self) -> None:
        super().__init__()
        self.names: MutableMapping[Tensor, str] = WeakTensorKeyDictionary()

    def name_of(self, x: Tensor) -> str | None:
        return self.names.get(x, None)

    def __torch_function__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        inputs = [leaf for leaf in tree_leaves((args, kwargs or {})) if isinstance(leaf, Tensor)]
        names = {self.names[x] for x in inputs if x in self.names}
        assert len(names) <= 1, f"{getattr(func, '__name__', func)} mixes {sorted(names)}"
        result = func(*args, **(kwargs or {}))
        for name in names:
            for leaf in tree_leaves(result):
                if isinstance(leaf, Tensor):
                    self.names[leaf] = name
        return result


_tags: _Tags | None = None


@contextmanager
def checked_places() -> Iterator[None]:
    """Test mode: tensors made within it by an allocator or moved carry their device's name.

    An operation between two devices, or an operator that gets a tensor of another device, raises
    `AssertionError` also where all devices are emulated.
    """
    global _tags
    assert _tags is None
    _tags = _Tags()
    try:
        with _tags:
            yield
    finally:
        _tags = None


def put(x: Tensor, place: Place) -> Tensor:
    """Say that a new tensor, already on the place's torch device, belongs to the place."""
    if _tags is not None:
        _tags.names[x] = place.name
    return x


def move(x: Tensor, place: Place) -> Tensor:
    """The same values on another place; no copy where they are there already."""
    if _tags is not None and _tags.name_of(x) not in (None, place.name):
        return put(x.clone(), place)
    if x.device == place.torch_device:
        return x
    return put(x.to(place.torch_device), place)


def expect(x: Tensor, place: Place) -> None:
    """Assert that an operator's input is on the operator's device."""
    assert x.device == place.torch_device, (x.device, place)
    if _tags is not None:
        assert _tags.name_of(x) in (None, place.name), (_tags.name_of(x), place)
