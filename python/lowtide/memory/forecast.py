"""Forecasts how much memory state takes under a budget, by the core's own decisions. Imports no torch."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

from lowtide import _core


GRADIENT_BUCKET = 64 << 20  # bytes of gradients that step_in_backward=True steps together
STREAMED_STATE = 64 << 20  # bytes of memory that `lowtide.stream` leaves for state and its buffers


class Budget(NamedTuple):
    """A `Memory` in the core's form, in bytes. -1: no limit."""

    host: int
    disk: str = ""  # a directory
    disk_limit: int = -1
    chunk: int = 0  # 0: chosen from the budget
    device: int = -1
    managed: bool = False
    transfer: str = ""
    automatic: bool = False


def path_of(name: str, path: str | bytes | os.PathLike[str] | os.PathLike[bytes]) -> str:
    """A path in the core's form. Raises TypeError for other values, and ValueError for a name that is not UTF-8 or has a
    NUL."""
    if not isinstance(path, (str, bytes, os.PathLike)):
        raise TypeError(f"{name}: got {path!r} ({type(path).__name__}), wanted a path")
    text = os.fsdecode(path)
    try:
        text.encode()
    except UnicodeEncodeError:
        raise ValueError(f"{name}: got {text!r}, wanted a path in UTF-8") from None
    if "\0" in text:
        raise ValueError(f"{name}: got {text!r}, wanted a path without NUL")
    return text


def disk_info(name: str, path: str | os.PathLike[str]) -> dict[str, Any]:
    """Returns `_core.disk_info` of a directory. Raises ValueError about `name` if it cannot be used; OSError."""
    try:
        return dict(_core.disk_info(path_of(name, path)))
    except ValueError as error:
        raise ValueError(f"{name}: {str(error).removeprefix(f'{name}: ')}") from None


@dataclass(frozen=True)
class Forecast:
    """The forecast of one budget or of all. Bytes equal `Optimizer.report()` after a first step in which every parameter had a
    gradient; only Muon without a budget may take 64 KiB or 1/16 more or less host memory. If the state does not fit, the fields below
    `problem` are 0."""

    params: int  # with state
    elements: int
    state_bytes: int  # codes + scales, and row moments
    fits: bool
    problem: str  # if it does not fit: what was given and what is needed
    device_bytes: int  # of device memory, with buffers; 0 for parameters on the CPU
    host_bytes: int  # of host memory, with buffers
    disk_bytes: int  # of the scratch file
    direct_bytes: int  # directly addressable; part of host_bytes
    resident_bytes: int  # chunks that stay where they are stepped
    streamed_bytes: int  # the other chunks
    slot_bytes: int  # buffers through which they stream
    chunks: int
    moved_per_step: int  # bytes read and written where state is stepped
    disk_moved_per_step: int  # bytes read and written on disk
    step_seconds: float  # of stepping; here and below, 0 means that a rate is unknown
    link_seconds: float  # of a device's link
    disk_seconds: float
    seconds: float  # of a step; if state streams, a lower bound, with full overlap

    def with_moments(self, size: int) -> Forecast:
        """The forecast with row moments of so many bytes in host memory, beside which the budget was."""
        if not size:
            return self
        if not self.fits:
            return replace(self, state_bytes=self.state_bytes + size, problem=beside_moments(self.problem, size))
        names = ("state_bytes", "host_bytes", "direct_bytes")
        return replace(self, **{name: getattr(self, name) + size for name in names})


def beside_moments(problem: str, size: int) -> str:
    """A problem of a budget, with the bytes of it that row moments take."""
    return f"{problem} (beside {size} bytes of row moments)"


def forecast(
    rule: str, budget: Budget | None, groups: Sequence[Any], read: float = 0.0, write: float = 0.0
) -> tuple[Forecast, tuple[Forecast, ...]]:
    """Forecasts the total and each budget: the optimizer's (None: no limit), then each group's own. groups: as `_core.forecast`
    takes them. read, write: bytes per second of the disk. Raises ValueError for input that an optimizer would refuse under any
    budget."""
    total, budgets = _core.forecast(rule, budget, groups, read, write)
    return Forecast(**total), tuple(Forecast(**each) for each in budgets)
