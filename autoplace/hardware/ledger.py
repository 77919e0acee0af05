"""The ledger: every allocation that matters, declared per device and held to the budgets.

An emulated device runs out of memory here; a real one also in the driver, and both raise the same
error.
"""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager

from autoplace.errors import DeviceOutOfMemoryError
from autoplace.hardware.machine import Machine

KINDS = ("weights", "kv_cache", "workspace", "load")
"""What bytes are for. `load` is transient: it must be back at zero when a model stands."""


class Ledger:
    """Bytes taken per device and kind, with the peak. Devices without a budget are unlimited."""

    def __init__(self, budgets: Mapping[str, int]) -> None:
        self._budgets = dict(budgets)
        self._taken: dict[str, dict[str, int]] = {}
        self._peaks: dict[str, int] = {}

    @classmethod
    def of(cls, machine: Machine) -> "Ledger":
        return cls({device.name: device.budget_bytes for device in machine.devices})

    def allocate(self, device: str, n_bytes: int, *, kind: str, what: str) -> None:
        """Declare bytes. Raise `DeviceOutOfMemoryError` before anything is taken if over budget."""
        assert kind in KINDS, kind
        assert n_bytes >= 0, n_bytes
        total = self.total(device)
        budget = self._budgets.get(device)
        if budget is not None and total + n_bytes > budget:
            raise DeviceOutOfMemoryError(
                device,
                requested_bytes=n_bytes,
                allocated_bytes=total,
                budget_bytes=budget,
                what=what,
            )
        taken = self._taken.setdefault(device, dict.fromkeys(KINDS, 0))
        taken[kind] += n_bytes
        self._peaks[device] = max(self._peaks.get(device, 0), total + n_bytes)

    def free(self, device: str, n_bytes: int, *, kind: str) -> None:
        taken = self._taken[device]
        assert taken[kind] >= n_bytes, (device, kind, taken[kind], n_bytes)
        taken[kind] -= n_bytes

    @contextmanager
    def transient(self, device: str, n_bytes: int, *, what: str) -> Iterator[None]:
        """Bytes that are needed only while a module loads."""
        self.allocate(device, n_bytes, kind="load", what=what)
        try:
            yield
        finally:
            self.free(device, n_bytes, kind="load")

    def total(self, device: str) -> int:
        return sum(self._taken.get(device, {}).values())

    def taken(self, device: str, kind: str) -> int:
        return self._taken.get(device, {}).get(kind, 0)

    def peak(self, device: str) -> int:
        return self._peaks.get(device, 0)

    @property
    def devices(self) -> tuple[str, ...]:
        return tuple(self._taken)
