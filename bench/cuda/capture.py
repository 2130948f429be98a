"""Tests which calls of CUDA's runtime fail during the capture of a stream and spoil it. The manual names few of them.

The table below comes from an H100 with driver 580.159 and CUDA 13.0. The tests' emulated runtime is written by hand from such
findings (tests/cuda/emulator/capture_test.cpp lists those that it keeps); nothing compares it with this table.
"""

from __future__ import annotations

import ctypes
import mmap
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from bench.cuda.device import Gpu
from bench.cuda.rows import Absent, Rows

BYTES = 4096
GLOBAL, RELAXED = 0, 2  # modes of captures and threads
NON_BLOCKING = 1
UNSUPPORTED, ISOLATION = 900, 905  # cudaErrorStreamCapture...
ALWAYS = {"cudaStreamGetDevice": UNSUPPORTED, "cudaDeviceSynchronize": UNSUPPORTED, "cudaStreamWaitEvent of an event outside": ISOLATION}
UNSAFE = dict.fromkeys(
    ("cudaMalloc", "cudaHostAlloc", "cudaHostRegister", "cudaHostUnregister", "cudaStreamSynchronize of another",
     "cudaStreamQuery of another", "cudaEventQuery", "cudaEventSynchronize"), UNSUPPORTED,
)  # fmt: skip
EXPECTED = {RELAXED: ALWAYS, GLOBAL: {**ALWAYS, **UNSAFE}}  # all other calls succeed
Calls = dict[str, Callable[[Any], int]]


def runtime() -> Any:
    """The runtime that torch has loaded."""
    torch.cuda.init()
    loaded = [line.split()[-1] for line in Path("/proc/self/maps").read_text().splitlines() if "libcudart" in line]
    if not loaded:
        raise Absent("torch has loaded no libcudart.so")
    return ctypes.CDLL(loaded[0])


def stream(cuda: Any) -> ctypes.c_void_p:
    made = ctypes.c_void_p()
    if code := cuda.cudaStreamCreateWithFlags(ctypes.byref(made), NON_BLOCKING):
        raise RuntimeError(f"cudaStreamCreateWithFlags: {code}")
    return made


def calls(cuda: Any, kept: list[Any]) -> Calls:
    """Calls by name. Each takes the stream being captured. kept: gets what must live as long as the calls."""
    side, event = stream(cuda), ctypes.c_void_p()
    cuda.cudaEventCreateWithFlags(ctypes.byref(event), 2)
    cuda.cudaEventRecord(event, side)
    cuda.cudaStreamSynchronize(side)
    memory, pinned, pageable = (torch.zeros(BYTES, dtype=torch.uint8, device=device) for device in ("cuda", "cpu", "cpu"))
    pinned = pinned.pin_memory()
    pages = mmap.mmap(-1, 1 << 16)
    address = ctypes.c_void_p(ctypes.addressof(ctypes.c_char.from_buffer(pages)))
    kept += [memory, pinned, pageable, pages]
    count = ctypes.c_size_t(BYTES)

    def out(function: Any, *more: Any) -> Callable[[Any], int]:
        """Calls `function` with a place for its result first."""
        return lambda on: int(function(ctypes.byref(ctypes.c_void_p()), *more))

    def copy(source: torch.Tensor) -> Callable[[Any], int]:
        to, of = ctypes.c_void_p(memory.data_ptr()), ctypes.c_void_p(source.data_ptr())
        return lambda on: int(cuda.cudaMemcpyAsync(to, of, count, 1, side))

    return {
        "cudaStreamIsCapturing": lambda on: cuda.cudaStreamIsCapturing(on, ctypes.byref(ctypes.c_int())),
        "cudaStreamGetDevice": lambda on: cuda.cudaStreamGetDevice(on, ctypes.byref(ctypes.c_int())),
        "cudaPointerGetAttributes": lambda on: cuda.cudaPointerGetAttributes(
            (ctypes.c_char * 256)(), ctypes.c_void_p(memory.data_ptr())
        ),
        "cudaMalloc": out(cuda.cudaMalloc, count),
        "cudaHostAlloc": out(cuda.cudaHostAlloc, count, 3),
        "cudaHostRegister": lambda on: cuda.cudaHostRegister(address, ctypes.c_size_t(1 << 16), 3),
        "cudaHostUnregister": lambda on: cuda.cudaHostUnregister(address),
        "cudaStreamCreateWithFlags": out(cuda.cudaStreamCreateWithFlags, NON_BLOCKING),
        "cudaMemsetAsync on another": lambda on: cuda.cudaMemsetAsync(ctypes.c_void_p(memory.data_ptr()), 0, count, side),
        "cudaMemcpyAsync on another, pinned": copy(pinned),
        "cudaMemcpyAsync on another, pageable": copy(pageable),
        "cudaStreamSynchronize of another": lambda on: cuda.cudaStreamSynchronize(side),
        "cudaStreamQuery of another": lambda on: cuda.cudaStreamQuery(side),
        "cudaEventRecord on another": lambda on: cuda.cudaEventRecord(event, side),
        "cudaEventQuery": lambda on: cuda.cudaEventQuery(event),
        "cudaEventSynchronize": lambda on: cuda.cudaEventSynchronize(event),
        "cudaMemGetInfo": lambda on: cuda.cudaMemGetInfo(ctypes.byref(ctypes.c_size_t()), ctypes.byref(ctypes.c_size_t())),
        "cudaStreamWaitEvent of an event outside": lambda on: cuda.cudaStreamWaitEvent(on, event, 0),
        "cudaDeviceSynchronize": lambda on: cuda.cudaDeviceSynchronize(),
    }


def result(cuda: Any, call: Callable[[Any], int], mode: int) -> tuple[int, bool]:
    """The call's error, and whether it spoils a capture in global mode by a thread in `mode`."""
    on, graph, exchanged = stream(cuda), ctypes.c_void_p(), ctypes.c_int(mode)
    if code := cuda.cudaStreamBeginCapture(on, GLOBAL):
        raise RuntimeError(f"cudaStreamBeginCapture: {code}")
    cuda.cudaThreadExchangeStreamCaptureMode(ctypes.byref(exchanged))
    found = int(call(on))
    cuda.cudaThreadExchangeStreamCaptureMode(ctypes.byref(exchanged))
    spoilt = bool(cuda.cudaStreamEndCapture(on, ctypes.byref(graph)))
    cuda.cudaGetLastError()
    return found, spoilt


def spoiling(gpu: Gpu, rows: Rows) -> None:
    if gpu.rehearsed:
        raise Absent("a rehearsal has no CUDA runtime")
    cuda = runtime()
    kept: list[Any] = []
    for mode, label in ((RELAXED, "relaxed"), (GLOBAL, "global")):
        # New calls for each mode, because a call that fails in one leaves its event or pages as they were.
        found = {name: result(cuda, call, mode) for name, call in calls(cuda, kept).items()}
        other = [name for name, (code, spoilt) in found.items() if (code, spoilt) != (EXPECTED[mode].get(name, 0), name in EXPECTED[mode])]
        rows.add(f"calls in a capture, thread in {label} mode: other than on the H100", len(other), "", "capture_calls",
                 other=other, errors={name: code for name, (code, _) in found.items() if code})  # fmt: skip


CASES = {"capture.calls": spoiling}
