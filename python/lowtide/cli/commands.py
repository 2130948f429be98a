"""The implementation of the commands; nothing here prints."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import torch

from lowtide import _core
from lowtide.devices.places import ram
from lowtide.memory.budgets import path_of
from lowtide.planning.rates import measure_rates
from lowtide.state.files import read_metadata


def describe_machine(disk: str | None) -> dict[str, Any]:
    """Values for `lowtide info`. Raises ValueError or OSError for a directory that cannot be used."""
    found_disk = None if disk is None else {"directory": disk, **_core.disk_info(disk)}
    rates = measure_rates(disk)
    if found_disk:
        found_disk |= {"read_rate": rates.read, "write_rate": rates.write}
    return {
        "version": _core.__version__,
        "torch": torch.__version__,
        "backends": _core.backends(),
        "cpu_targets": _core.cpu_targets(),
        "threads": torch.get_num_threads(),
        "cores": len(os.sched_getaffinity(0)),
        "ram_total": ram(),
        "ram_free": min(ram_available(), ram()),
        "memory_rate": memory_rate(),
        "step_rates": rates.step,
        "disk": found_disk,
    }


def ram_available() -> int:
    """Bytes that programs can still allocate without swapping."""
    for line in Path("/proc/meminfo").read_text().splitlines():
        if line.startswith("MemAvailable:"):
            return int(line.split()[1]) * 1024
    return os.sysconf("SC_AVPHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")


def memory_rate() -> float:
    """Bytes per second that `a += b` reads and writes over tensors of 128 MiB: the best of ten runs."""
    from lowtide.cli.core_model import adder, seconds_of

    add, moved = adder(32 << 20)
    return moved / min(seconds_of(add) for _ in range(10))


def describe_checkpoint(file: Path) -> dict[str, Any]:
    """Values for `lowtide inspect`. Raises ValueError or OSError."""
    found = _core.describe_checkpoint(path_of("file", file))
    try:
        metadata = read_metadata(found.pop("metadata"), str(file))
    except ValueError:  # not a checkpoint from Python
        metadata = {}
    groups = metadata.get("lowtide_groups") if isinstance(metadata, dict) else None
    ours = isinstance(groups, list) and all(isinstance(group, dict) for group in groups)
    return {"file": str(file), "bytes": file.stat().st_size, **found, "groups": groups if ours else []}
