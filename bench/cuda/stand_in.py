"""Stands in for `torch.cuda` on the CPU, so that rehearsals run every line of the measurements without a GPU.

It models no device: work runs when queued, and times are the host's.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator
from types import SimpleNamespace

CAPACITY = 1 << 30  # pretended bytes of the device
FREE = 64 << 20  # pretended free bytes


class Event:
    def __init__(self, enable_timing: bool = False) -> None:
        self._at = 0.0

    def record(self, stream: object = None) -> None:
        self._at = time.perf_counter()

    def elapsed_time(self, end: Event) -> float:
        return (end._at - self._at) * 1e3

    def synchronize(self) -> None:
        pass


class Stream:
    cuda_stream = 0

    def wait_stream(self, other: Stream) -> None:
        pass


class CUDAGraph:
    def replay(self) -> None:
        pass


class OutOfMemoryError(RuntimeError):
    pass


_CURRENT = Stream()


def current_stream() -> Stream:
    return _CURRENT


@contextlib.contextmanager
def stream(of: Stream) -> Iterator[None]:
    yield


@contextlib.contextmanager
def graph(of: CUDAGraph) -> Iterator[None]:
    yield


def synchronize() -> None:
    pass


def empty_cache() -> None:
    pass


def reset_peak_memory_stats() -> None:
    pass


def max_memory_allocated() -> int:
    return 0


def mem_get_info() -> tuple[int, int]:
    return FREE, CAPACITY


def get_device_name() -> str:
    return "rehearsal on the CPU"


def cudart() -> SimpleNamespace:
    return SimpleNamespace(cudaHostRegister=lambda *_: 0, cudaHostUnregister=lambda *_: 0)


def memory_allocated() -> int:
    return 0
