"""Decides where the threads of a measurement run, and tells whether they got their cores.

Import this before anything that loads an OpenMP runtime, which binds the thread that loads it to one core. The cores that the
process may use are read here, at import.
"""

from __future__ import annotations

import ctypes
import os
import sys
from collections.abc import Callable

# While anything else runs, a worker that wakes up is placed on its waker's core, and without binding two threads are often as
# fast as one. OpenMP reads these variables when it is loaded.
BOUND = {"OMP_PROC_BIND": "true", "OMP_PLACES": "cores"}
# Settings that would slow a contender or change its thread count.
UNWANTED = ("OMP_WAIT_POLICY", "OMP_NUM_THREADS", "OMP_DYNAMIC", "GOMP_CPU_AFFINITY", "GOMP_SPINCOUNT", "KMP_AFFINITY",
            "KMP_BLOCKTIME", "MKL_NUM_THREADS")

ALLOWED = sorted(os.sched_getaffinity(0))


def restart_bound() -> None:
    """Restarts this process with the settings above, unless it has them."""
    wanted = {key: value for key, value in os.environ.items() if key not in UNWANTED} | BOUND
    if wanted != dict(os.environ):
        os.execve(sys.executable, [sys.executable, *sys.orig_argv[1:]], wanted)


def _siblings(cpu: int) -> frozenset[int]:
    """The logical CPUs that share a core with this one."""
    try:
        with open(f"/sys/devices/system/cpu/cpu{cpu}/topology/thread_siblings_list") as file:
            text = file.read()
    except OSError:
        return frozenset({cpu})
    cpus: set[int] = set()
    for part in text.strip().split(","):
        first, _, last = part.partition("-")
        cpus.update(range(int(first), int(last or first) + 1))
    return frozenset(cpus)


def cores() -> list[int]:
    """One logical CPU of each core that this process may use."""
    seen: set[frozenset[int]] = set()
    return [cpu for cpu in ALLOWED if (one := _siblings(cpu)) not in seen and not seen.add(one)]


def tasks() -> list[int]:
    return [int(name) for name in os.listdir("/proc/self/task")]


def set_threads(count: int) -> None:
    """Sets `count` threads for torch and for every OpenMP runtime in the process, because a library may have its own."""
    import torch

    torch.set_num_threads(count)
    with open("/proc/self/maps") as maps:
        mapped = {line.split(maxsplit=5)[5].strip() for line in maps if ".so" in line}
    for path in mapped:
        if os.path.basename(path).startswith(("libgomp", "libiomp5", "libomp")):
            ctypes.CDLL(path).omp_set_num_threads(count)


def placed(warm_up: Callable[[], None]) -> None:
    """Runs `warm_up`, in which every contender starts its threads. Then binds this thread to the first core and keeps all
    others off it.

    A pool that does not use OpenMP starts its threads from this one and inherits its cores. OpenMP has bound this thread to one
    core by now, which such a pool would share with its caller.
    """
    first = cores()[0]
    os.sched_setaffinity(0, ALLOWED)
    warm_up()
    os.sched_setaffinity(0, {first})
    elsewhere = set(ALLOWED) - _siblings(first)
    if not elsewhere:
        return
    for task in tasks():
        if task == os.getpid():
            continue
        try:
            now = os.sched_getaffinity(task)
            os.sched_setaffinity(task, now & elsewhere or elsewhere)
        except OSError:
            pass  # the thread has ended


def queue_delay() -> int:
    """Nanoseconds for which threads of this process, ready to run, have waited for a core."""
    total = 0
    for task in tasks():
        try:
            with open(f"/proc/self/task/{task}/schedstat") as file:
                total += int(file.read().split()[1])
        except (OSError, IndexError):
            pass  # the thread has ended, or the kernel keeps no such figures
    return total
