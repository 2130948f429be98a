"""The memory ceiling (ceiling.cpp) as a contender: the traffic mix of a step with trivial arithmetic."""

from __future__ import annotations

import ctypes
import subprocess
from collections.abc import Callable, Sequence
from functools import cache
from pathlib import Path

import torch

SOURCE = Path(__file__).with_name("ceiling.cpp")
BUILT = Path(__file__).resolve().parents[2] / "build/bench/ceiling.so"
FLAGS = ["-std=c++20", "-O3", "-march=native", "-shared", "-fPIC", "-pthread"]


@cache
def _library() -> ctypes.CDLL:
    if not BUILT.exists() or BUILT.stat().st_mtime < SOURCE.stat().st_mtime:
        BUILT.parent.mkdir(parents=True, exist_ok=True)
        subprocess.run(["g++", *FLAGS, str(SOURCE), "-o", str(BUILT)], check=True)
    return ctypes.CDLL(str(BUILT))


def ceiling(streams: Sequence[tuple[torch.Tensor, bool]]) -> Callable[[], None]:
    """A function that reads every tensor once and writes those marked True back.

    All tensors have the same number of elements, a multiple of 64, of 1, 2 or 4 bytes each. They are borrowed and their
    contents become garbage. Uses torch's number of threads, at most two.
    """
    n = len(streams)
    data = (ctypes.c_void_p * n)(*(t.data_ptr() for t, _ in streams))
    sizes = (ctypes.c_int * n)(*(t.element_size() for t, _ in streams))
    write = (ctypes.c_int * n)(*(int(w) for _, w in streams))
    elements = ctypes.c_size_t(streams[0][0].numel())
    run = _library().ceiling

    def once() -> None:
        run(data, sizes, write, n, elements, min(2, torch.get_num_threads()))

    once.streams = streams  # type: ignore[attr-defined]  # keeps the tensors alive
    return once
