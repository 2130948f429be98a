"""Describes this machine and this installation."""

from __future__ import annotations

import os
import time
from pathlib import Path
from typing import Any

import torch

from lowtide import _core
from lowtide.cli.core_model import adder
from lowtide.cli.waiting import Waiting
from lowtide.devices.places import ram, ram_free
from lowtide.memory.forecast import disk_info
from lowtide.planning.rates import measure_rates, seconds_of

_MUCH = 0.1  # chosen: a larger share changes a rate by more than its runs differ


def describe(disk: str | None, wait: Waiting) -> dict[str, Any]:
    """Values for `lowtide info`. Raises ValueError or OSError for a directory that cannot be used."""
    found_disk = None if disk is None else {"directory": disk, **disk_info("disk", disk)}
    before = processor_seconds()
    wait(f"measuring steps of AdamW{'' if disk is None else ' and the disk'}")
    rates = measure_rates(disk)
    if found_disk:
        found_disk |= {"read_rate": rates.read, "write_rate": rates.write}
    wait("measuring memory")
    return {
        "version": _core.__version__,
        "torch": torch.__version__,
        "backends": _core.backends(),
        "cpu_targets": _core.cpu_targets(),
        "threads": torch.get_num_threads(),
        "cores": len(os.sched_getaffinity(0)),
        "ram_total": ram(),
        "ram_free": ram_free(),
        "memory_rate": _memory_rate(),
        "step_rates": rates.step,
        "disk": found_disk,
        "doubts": doubts_since(before),
    }


def others_share(before: tuple[float, float, float]) -> float:
    """The share of processor time that other programs have used since `before`; 0 if the system does not report it."""
    own, busy, every = (now - then for now, then in zip(processor_seconds(), before, strict=True))
    return max(0.0, busy - own) / every if every > 0 else 0.0


def doubts_since(before: tuple[float, float, float]) -> tuple[str, ...]:
    """A phrase for `quick_bench.doubts_of`, if other programs used much processor time."""
    share = others_share(before)
    return (f"other programs took {share:.0%} of the processors",) if share > _MUCH else ()


def processor_seconds() -> tuple[float, float, float]:
    """Processor seconds so far: used by this process, used by all, and available to all."""
    try:
        fields = [int(field) for field in Path("/proc/stat").read_text().partition("\n")[0].split()[1:9]]
    except (OSError, ValueError):
        return 0.0, 0.0, 0.0
    tick, idle = os.sysconf("SC_CLK_TCK"), sum(fields[3:5])  # idle includes waiting for a disk
    return time.process_time(), (sum(fields) - idle) / tick, sum(fields) / tick


def _memory_rate() -> float:
    """Bytes per second that `a += b` reads and writes, over tensors of 128 MiB: the best of ten runs."""
    add, moved = adder(32 << 20)
    return moved / min(seconds_of(add) for _ in range(10))
