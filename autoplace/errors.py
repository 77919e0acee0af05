"""Errors a user can cause or meet: one line each, with what was expected, came and exists."""

import difflib
from collections.abc import Iterable


class AutoplaceError(Exception):
    """A request that cannot be served. The message is one line without a final period."""

    exit_code = 2


class DoesNotFitError(AutoplaceError):
    """The answer is no: a placement needs more memory than a device has."""

    exit_code = 1


class NothingFeasibleError(AutoplaceError):
    """The answer is no: a search ended without one measured placement."""

    exit_code = 1


class DeviceOutOfMemoryError(AutoplaceError):
    """An allocation went over the budget of a device, real or emulated."""

    exit_code = 1

    def __init__(
        self,
        device: str,
        *,
        requested_bytes: int,
        allocated_bytes: int,
        budget_bytes: int,
        what: str,
    ) -> None:
        super().__init__(
            f"out of memory on {device}: {what} needs {requested_bytes} B more, "
            f"but {allocated_bytes} B of {budget_bytes} B are taken"
        )
        self.device = device
        self.requested_bytes = requested_bytes
        self.allocated_bytes = allocated_bytes
        self.budget_bytes = budget_bytes
        self.what = what

    def __reduce__(self) -> tuple[object, ...]:
        return _rebuild_out_of_memory, (
            self.device,
            self.requested_bytes,
            self.allocated_bytes,
            self.budget_bytes,
            self.what,
        )


def _rebuild_out_of_memory(
    device: str, requested_bytes: int, allocated_bytes: int, budget_bytes: int, what: str
) -> DeviceOutOfMemoryError:
    return DeviceOutOfMemoryError(
        device,
        requested_bytes=requested_bytes,
        allocated_bytes=allocated_bytes,
        budget_bytes=budget_bytes,
        what=what,
    )


def did_you_mean(word: str, known: Iterable[str]) -> str:
    """`; did you mean 'x'` if one of the known words is near, else the list of what exists."""
    known = sorted(known)
    near = difflib.get_close_matches(word, known, n=1, cutoff=0.6)
    if near:
        return f"; did you mean {near[0]!r}"
    return f"; there are {', '.join(known)}" if known else ""
