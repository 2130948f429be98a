"""Time dilation for workers that share cores: a link slowed by as much as computing (Gupta et al., "To Infinity and Beyond:
Time-Warped Network Emulation", NSDI 2006).

Four workers on two cores compute at half their speed, while the link keeps its own. At half the rate, everything except the
speed of memory behaves like four workers with a core each at the full rate, and takes twice as long, so ratios within a run are
those of that cluster. Each core gets as many pinned workers. They are not capped, so one whose neighbour waits may get more
than its share.
"""

from __future__ import annotations

import os
from collections.abc import Sequence

_BITS = {"kbit": 10**3, "mbit": 10**6, "gbit": 10**9}


def factor(workers: int) -> int:
    """How much slower workers compute when they share this process's cores. Raises SystemExit unless each core gets as many."""
    cores = len(os.sched_getaffinity(0))
    if workers % cores:
        raise SystemExit(f"got {workers} workers on {cores} cores to dilate, wanted a multiple: each core has as many")
    return workers // cores


def slowed(rate: str | None, by: int) -> str | None:
    """The rate divided by `by`, in tc's form."""
    if rate is None or by == 1:
        return rate
    unit = rate[-4:]
    if unit not in _BITS:
        raise SystemExit(f"got rate {rate!r} to dilate, wanted one in {', '.join(_BITS)}")
    return f"{round(float(rate[:-4]) * _BITS[unit] / by / 1000)}kbit"


def pinned(command: Sequence[str], rank: int) -> list[str]:
    """The command of a worker, pinned to its core."""
    cores = sorted(os.sched_getaffinity(0))
    return ["taskset", "-c", str(cores[rank % len(cores)]), *command]


def words(rate: str | None, by: int) -> str:
    """Names the network of a row."""
    if by == 1:
        return rate or "no limit"
    return f"{rate or 'no limit'} dilated {by} times (tc: {slowed(rate, by) or 'none'}; {by} workers pinned to a core; ms are real)"
