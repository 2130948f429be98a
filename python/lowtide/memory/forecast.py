"""Forecasts of the memory that state under a budget will take, as the core decides it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from lowtide import _core
from lowtide.memory.budgets import Budget


@dataclass(frozen=True)
class Forecast:
    """One budget, or all. Bytes are those of `Optimizer.report()` after a first step in which every parameter had a
    gradient; where the state does not fit, those below `problem` are 0."""

    params: int  # with state
    elements: int
    state_bytes: int  # codes + scales
    fits: bool
    problem: str  # why it does not fit: what was given and how much is needed
    device_bytes: int  # of device memory, buffers included; 0 for parameters on the CPU
    host_bytes: int  # of host memory, buffers included
    disk_bytes: int  # of the scratch file
    direct_bytes: int  # directly addressable, of host_bytes
    resident_bytes: int  # chunks that stay where they are stepped
    streamed_bytes: int  # the other chunks
    slot_bytes: int  # buffers that these stream through there
    chunks: int
    moved_per_step: int  # from wherever chunks are stepped: read and written
    disk_moved_per_step: int  # of the disk
    step_seconds: float  # stepping; 0: a rate is unknown, here and below
    link_seconds: float  # of a device
    disk_seconds: float
    seconds: float  # of a step: a lower bound where state streams, if all of these overlap fully


def forecast(
    rule: str, budget: Budget | None, groups: Sequence[Any], read: float = 0.0, write: float = 0.0
) -> tuple[Forecast, tuple[Forecast, ...]]:
    """In all, and for each budget: the optimizer's (None: no limit), then each group's own. groups: as `_core.forecast` takes
    them; read, write: bytes per second of the disk. ValueError for what an optimizer would refuse whatever its budgets."""
    total, budgets = _core.forecast(rule, budget, groups, read, write)
    return Forecast(**total), tuple(Forecast(**each) for each in budgets)
