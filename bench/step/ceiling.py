"""The memory ceiling of ceiling.cpp, compiled for this CPU on first use."""

from __future__ import annotations

import ctypes
import hashlib
import os
import platform
import subprocess
from pathlib import Path

import torch
from common import threads

SOURCE = Path(__file__).with_name("ceiling.cpp")
BUILT = Path(__file__).parents[2] / "build" / "bench"
FLAGS = ("-std=c++20", "-O3", "-march=native", "-fPIC", "-shared", "-pthread")

Widths = tuple[int, int, int, int]  # bytes per element of p (read, written), g (read), two states (read, written)


def moved(widths: Widths) -> int:
    """Bytes read and written per element."""
    p, g, s1, s2 = widths
    return 2 * p + g + 2 * s1 + 2 * s2


def _load() -> ctypes.CDLL:
    key = SOURCE.read_bytes() + repr((FLAGS, platform.node(), platform.machine())).encode()
    path = BUILT / f"ceiling-{hashlib.sha256(key).hexdigest()[:12]}.so"
    if not path.exists():
        BUILT.mkdir(parents=True, exist_ok=True)
        draft = path.with_suffix(f".{os.getpid()}")
        subprocess.run([os.environ.get("CXX", "g++"), *FLAGS, str(SOURCE), "-o", str(draft)], check=True)
        draft.rename(path)
    library = ctypes.CDLL(str(path))
    pointer, size = ctypes.c_void_p, ctypes.c_int64
    library.ceiling_pass.argtypes = [pointer, pointer, pointer, pointer, size, pointer, ctypes.c_int, pointer]
    library.ceiling_allocate.argtypes, library.ceiling_allocate.restype = [size], pointer
    library.ceiling_free.argtypes, library.ceiling_free.restype = [pointer, size], None
    return library


class Buffers:
    """The arrays of the passes: p and g of the contenders, and states as torch allocates them or, with `huge`, all in separate
    huge pages. No contender's parameters are in huge pages."""

    def __init__(self, param: torch.Tensor, grad: torch.Tensor, huge: bool) -> None:
        self._library = _load()
        self._cpus = (ctypes.c_int * len(threads.cores()))(*threads.cores())
        self._count = param.numel()
        assert self._count % 64 == 0
        self._owned: list[tuple[int, int]] = []
        self._tensors: list[torch.Tensor] = []
        if huge:
            sizes = (param.nbytes, grad.nbytes, 4 * self._count, 4 * self._count)
            for size in sizes:
                data = self._library.ceiling_allocate(size)
                if data is None:
                    raise MemoryError(f"{size} bytes for the memory ceiling")
                self._owned.append((data, size))
            self._streams = [data for data, _ in self._owned]
        else:
            states = [torch.full((self._count,), 1.0) for _ in range(2)]
            self._tensors = [param, grad, *states]
            self._streams = [tensor.data_ptr() for tensor in self._tensors]

    def run(self, widths: Widths) -> None:
        done = self._library.ceiling_pass(
            *self._streams, self._count, (ctypes.c_int * 4)(*widths), torch.get_num_threads(), self._cpus
        )
        if done != 0:
            raise ValueError(f"widths: got {widths}, which ceiling.cpp does not have")

    def close(self) -> None:
        for data, size in self._owned:
            self._library.ceiling_free(data, size)
        self._owned, self._tensors, self._streams = [], [], []
