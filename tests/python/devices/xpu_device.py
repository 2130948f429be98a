"""Torch's device type "xpu" on SYCL's CPU device (xpu_device.cpp): real tensors, operators, streams, pinned memory and counters
of a torch whose wheel has no XPU. While it is open, torch.xpu is available in this process."""

from __future__ import annotations

import ctypes
import fcntl
import gc
import hashlib
import os
import subprocess
from functools import cache, partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from lowtide import _core
from lowtide.devices import torch_memory
from stand_in import StandIn, missing as missing_backend
from torch.utils import cpp_extension

SOURCE = Path(__file__).with_suffix(".cpp")
ROOT = SOURCE.parents[3]
MEMORY = 1 << 30  # bytes of each device
_CALLS = ("alloc", "free", "copy", "synchronize")  # of lowtide_device.h


def missing() -> str:
    """Why there is no such device here, or ""."""
    if torch.accelerator.is_available():
        return f"torch has {torch.accelerator.current_accelerator()}: xpu is not stood in for beside it"
    return missing_backend("sycl")


@cache
def _library() -> ctypes.CDLL:
    """Compiled into build/ once for this torch."""
    text = SOURCE.read_bytes() + torch.__version__.encode()
    built = ROOT / "build" / f"xpu_device-{hashlib.sha256(text).hexdigest()[:16]}.so"
    built.parent.mkdir(exist_ok=True)
    with built.with_suffix(".lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)  # of another worker, that compiles it
        if not built.exists():
            new = built.with_suffix(".new")
            found = subprocess.run(
                [
                    os.environ.get("CXX", "c++"), "-std=c++20", "-O0", "-w", "-shared", "-fPIC", f"-I{ROOT / 'include'}",
                    *(f"-isystem{path}" for path in cpp_extension.include_paths()), str(SOURCE), "-o", str(new),
                    *(f"-L{path}" for path in cpp_extension.library_paths()), "-ltorch_cpu", "-lc10",
                ],
                capture_output=True, text=True,
            )  # fmt: skip
            assert found.returncode == 0, found.stderr
            new.rename(built)
    library = ctypes.CDLL(str(built))
    library.xpu_bytes_to_host.restype = library.xpu_bytes_to_device.restype = ctypes.c_int64
    core = ctypes.CDLL(_core.__file__)
    library.xpu_functions(*(ctypes.cast(getattr(core, f"lt_device_{name}"), ctypes.c_void_p) for name in _CALLS))
    return library


class Stream(torch.Stream):
    """torch.xpu.Stream."""

    @property
    def sycl_queue(self) -> int:
        return int(self.native_handle)


class Xpu(StandIn):
    kind = "xpu"

    def __init__(self, monkeypatch: pytest.MonkeyPatch, count: int = 2) -> None:
        super().__init__(("cpu",) * count)
        self._library = _library()
        addresses = ctypes.c_void_p * count
        handles = addresses(*(device.value for device in self._devices))
        self._library.xpu_open(handles, addresses(*self.queues), ctypes.c_int64(count), ctypes.c_int64(MEMORY))
        self.capturing = False
        has = partial(monkeypatch.setattr, raising=False)
        c = torch._C
        for name, call in {
            "_xpu_getDeviceCount": lambda: count,
            "_xpu_getDevice": c._accelerator_getDeviceIndex,
            "_xpu_setDevice": c._accelerator_setDeviceIndex,
            "_xpu_getCurrentRawStream": lambda index: self.queues[index],
            "_xpu_synchronize": c._accelerator_synchronizeDevice,
            "_xpu_memoryStats": self._statistics,
            "_xpu_resetPeakMemoryStats": c._accelerator_resetPeakStats,
            "_xpu_resetAccumulatedMemoryStats": c._accelerator_resetAccumulatedStats,
            "_xpu_getMemoryInfo": c._accelerator_getMemoryInfo,
            "_xpu_emptyCache": c._accelerator_emptyCache,
            "_xpu_memorySnapshot": lambda pool: {"segments": []},
        }.items():
            has(c, name, call)
        for name, value in {
            "_is_compiled": lambda: True,
            "_initialized": True,
            "_cached_device_count": None,
            "_exchange_device": c._accelerator_exchangeDevice,
            "_maybe_exchange_device": c._accelerator_maybeExchangeDevice,
            "_get_device_properties": lambda index: SimpleNamespace(name="cpu", total_memory=MEMORY, has_fp64=True),
            "Stream": Stream,
            "Event": partial(torch.Event, device="xpu"),
            "current_stream": self.current_stream,
            "get_stream_from_external": lambda queue, device: self._stream(self.queues.index(queue)),
            "set_stream": c._accelerator_setStream,
            "is_current_stream_capturing": lambda: self.capturing,
            "default_generators": tuple(torch.Generator() for _ in range(count)),  # of the CPU, where operators draw
            "manual_seed_all": lambda seed: None,
        }.items():
            has(torch.xpu, name, value)
        monkeypatch.setattr(torch.cuda, "_is_compiled", lambda: False)  # a build has one of them

    def close(self) -> None:
        gc.collect()
        self.synchronize()
        torch_memory.cache_of.cache_clear()
        self._library.xpu_open(None, None, ctypes.c_int64(0), ctypes.c_int64(0))
        super().close()

    def current_stream(self, device: Any = None) -> Stream:
        index = torch.device("xpu" if device is None else device).index
        index = torch.accelerator.current_device_index() if index is None else index
        self.asked.append(index)
        return self._stream(index)

    @staticmethod
    def _stream(index: int) -> Stream:
        return Stream(device=torch.device("xpu", index))

    @staticmethod
    def _statistics(index: int) -> dict[str, Any]:
        """The statistics of torch.xpu (as its memory_stats documents them)."""
        every = torch._C._accelerator_getDeviceStats(index)
        return {f"{kind}_bytes": every[f"{kind}_bytes"] for kind in ("allocated", "reserved", "active", "requested")}

    def tensor(self, like: torch.Tensor, index: int = 0) -> torch.Tensor:
        return like.detach().to(torch.device("xpu", index), copy=True)

    def copied(self) -> tuple[int, int]:
        """Bytes that torch has copied so far to the host, and to devices."""
        return self._library.xpu_bytes_to_host(), self._library.xpu_bytes_to_device()

    def allow(self, size: int) -> None:
        """Sets the bytes of each device that torch's allocator may use."""
        self._library.xpu_limit(ctypes.c_int64(size))
