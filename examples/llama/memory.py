"""Memory of this process, as the operating system counts it."""

from __future__ import annotations

import multiprocessing
import os
import sys
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from pathlib import Path
from typing import TypeVar

from .common import ExampleError

Result = TypeVar("Result")

_STATUS = Path("/proc/self/status")
_STATM = Path("/proc/self/statm")


def resident_bytes() -> int:
    """Resident memory now, or its peak if the system only reports that."""
    if _STATM.exists():
        return int(_STATM.read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")
    return peak_bytes()


def peak_bytes() -> int:
    """The highest resident memory since the start of the process or the last ``reset_peak``."""
    if _STATUS.exists():
        for line in _STATUS.read_text().splitlines():
            if line.startswith("VmHWM:"):
                return int(line.split()[1]) * 1024
    import resource  # absent on Windows, where the example has not been tried

    unit = 1 if sys.platform == "darwin" else 1024
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit


def reset_peak() -> bool:
    """Restarts the peak, so that imports and earlier runs do not count. Returns False if the system cannot."""
    try:
        Path("/proc/self/clear_refs").write_text("5")
    except OSError:
        return False
    return True


def alone(function: Callable[..., Result], *arguments: object) -> Result:
    """Calls a function in a fresh process, without memory of earlier runs. Raises ExampleError if the process was killed."""
    # Makes freed buffers from 64 KiB on return to the system. glibc would keep buffers below a size that it raises by itself,
    # differently in each run.
    before = os.environ.get("MALLOC_MMAP_THRESHOLD_")
    os.environ.setdefault("MALLOC_MMAP_THRESHOLD_", str(1 << 16))
    try:
        with ProcessPoolExecutor(1, multiprocessing.get_context("spawn")) as pool:
            return pool.submit(function, *arguments).result()
    except BrokenProcessPool as error:
        raise ExampleError("the process of this run ended without a result: memory ran out, or it was killed or crashed; "
                           "free memory or make the run smaller")  from error  # fmt: skip
    finally:
        if before is None:
            del os.environ["MALLOC_MMAP_THRESHOLD_"]


def cpu_name() -> str:
    """The processor's model name."""
    info = Path("/proc/cpuinfo")
    if info.exists():
        for line in info.read_text().splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    import platform

    return platform.processor() or platform.machine()
