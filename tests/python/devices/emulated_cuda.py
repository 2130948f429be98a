"""Torch's "cuda" devices, on the CUDA runtime that is emulated on the CPU (tests/cuda): a separate plug-in, with late streams
and device memory that the host cannot touch. This file stands in for torch.cuda, its streams and its cache of memory; Lowtide's
own part (devices.py) is the code that runs on a GPU. Torch takes tensors there for the CPU's, in memory that device and host
share, and Lowtide is told to take them for tensors on the device.
"""

from __future__ import annotations

import bisect
import contextlib
import ctypes
import gc
import os
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import lowtide
import pytest
import stand_in
import torch
from lowtide.devices import arrays, torch_memory, places
from lowtide.engine import mirrors
from lowtide.optimizers import clipping

_BUILT = "liblowtide_cuda_emulated.so"
# C++ functions of the runtime that tests call (cuda_runtime.h says why).
_FUNCTIONS = {
    "cudaGraphDestroy": "_Z16cudaGraphDestroyP10CUgraph_st",
    "cudaGraphExecDestroy": "_Z20cudaGraphExecDestroyP14CUgraphExec_st",
    "cudaGraphInstantiate": "_Z20cudaGraphInstantiatePP14CUgraphExec_stP10CUgraph_sty",
    "cudaGraphLaunch": "_Z15cudaGraphLaunchP14CUgraphExec_stP11CUstream_st",
    "cudaStreamBeginCapture": "_Z22cudaStreamBeginCaptureP11CUstream_st21cudaStreamCaptureMode",
    "cudaStreamEndCapture": "_Z20cudaStreamEndCaptureP11CUstream_stPP10CUgraph_st",
    "cudaStreamSynchronize": "_Z21cudaStreamSynchronizeP11CUstream_st",
    "lose_device": "_ZN13cuda_emulator11lose_deviceEi9cudaError",
}


def plugin() -> Path | None:
    """The plug-in named by LOWTIDE_CUDA_EMULATED, or that of the tests' build in the source tree."""
    root = Path(__file__).resolve().parents[3]
    path = Path(os.environ.get("LOWTIDE_CUDA_EMULATED") or root / "build" / "dev" / _BUILT)
    return path if path.is_file() else None


def prepare(monkeypatch: pytest.MonkeyPatch) -> str:
    """Makes it the plug-in of this process. Returns why that is impossible, or ""."""
    if torch.cuda.is_available():  # and its backend may be loaded: there is one of a kind in a process
        return "torch has a GPU: CUDA is not emulated beside it (set CUDA_VISIBLE_DEVICES= for that)"
    path = plugin()
    if path is None:
        return f"no emulated CUDA: build/dev/{_BUILT} is not built (make build; needs Boost.Context)"
    monkeypatch.setenv("LOWTIDE_CUDA_PLUGIN", str(path))
    monkeypatch.setenv("LT_CUDA_EMULATOR_DEVICES", "2")
    monkeypatch.setenv("LT_CUDA_EMULATOR_STRICT", "1")
    return stand_in.missing("cuda")


class Block:
    """Stands for a tensor of torch as far as Lowtide uses one: it owns device memory."""

    def __init__(self, cuda: EmulatedCuda, address: int, size: int) -> None:
        self._cuda, self._address, self.nbytes = cuda, address, size
        self._streams: set[int] = set()

    def data_ptr(self) -> int:
        return self._address

    def record_stream(self, stream: int) -> None:
        self._streams.add(stream)

    def __del__(self) -> None:
        if not sys.is_finalizing():
            self._cuda.release(self._address, self._streams)


class EmulatedCuda(stand_in.StandIn):
    kind = "cuda"
    roomy = lowtide.Memory(device="50%")

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        super().__init__(("exact:0", "exact:1"))
        self._ranges: list[tuple[int, int, int]] = []  # first and last byte, index of the device; ascending
        self._outside = places.device_of  # that of a stand-in before this one
        monkeypatch.setattr(places, "device_of", self._device_of)
        self._new_norm = clipping.new_norm
        monkeypatch.setattr(clipping, "new_norm", self._norm_at)  # torch has no memory of the device
        self._empty = arrays.Array.empty
        monkeypatch.setattr(arrays.Array, "empty", lambda array, *of: self._empty_beside(array, *of))
        look_up = places.look_up  # torch's operations are the CPU's, and wait for no queue
        monkeypatch.setattr(places, "look_up", lambda *of, **out: (self.synchronize(), look_up(*of, **out))[1])
        # Torch's copies are the CPU's, which wait for no queue.
        mark_of, mine = mirrors._mark_of, SimpleNamespace(synchronize=self.synchronize)
        monkeypatch.setattr(mirrors, "_mark_of", lambda device: mine if device.type == "cuda" else mark_of(device))
        self._zero_outside = places.new_zero
        monkeypatch.setattr(places, "new_zero", self._zero_beside)  # torch's new_zeros() is the CPU's
        self._new_bytes = places.new_bytes
        monkeypatch.setattr(places, "new_bytes", self._bytes_at)
        path = plugin()
        assert path
        runtime = ctypes.CDLL(str(path.parent / "liblowtide_cudart_emulated.so"))
        self._functions = {name: runtime[symbol] for name, symbol in _FUNCTIONS.items()}
        self._functions["lose_device"].restype = None
        self.cached: dict[int, tuple[int, int]] = {}  # what torch's allocator gave: address -> bytes, device
        self.cache_limit = 1 << 40  # bytes that it has
        self.unused = self.fragments = 0  # bytes that it keeps and nobody uses: whole segments, and parts of others
        self.activations = 0  # bytes of torch's that are gone when the optimizer steps
        self.pools: list[dict[str, Any]] = []  # segments of graphs
        self.peak = 0  # of bytes allocated
        self.recorded = 0  # blocks that another stream still used when they were given back
        self.emptied = 0
        self.legacy = False  # torch works on the legacy default stream, whose address is 0
        self.capturing = False
        for name in (
            "current_stream", "get_device_properties", "mem_get_info", "memory_stats_as_nested_dict", "memory_snapshot",
            "empty_cache", "is_current_stream_capturing",
        ):  # fmt: skip
            monkeypatch.setattr(torch.cuda, name, getattr(self, name))
        monkeypatch.setattr(torch.cuda, "ExternalStream", lambda queue, device: queue)
        monkeypatch.setattr(torch.cuda, "default_stream", lambda device: 0)
        new_block = torch_memory._new_block  # of other devices
        monkeypatch.setattr(
            torch_memory, "_new_block",
            lambda size, device: self.new_block(size, device) if device.type == "cuda" else new_block(size, device),
        )  # fmt: skip
        monkeypatch.setattr(torch.cuda, "current_device", lambda: 0)
        monkeypatch.setattr(torch.cuda, "device", lambda device: contextlib.nullcontext())

    def tensor(self, like: torch.Tensor, index: int = 0) -> torch.Tensor:
        bytes_ = max(like.numel(), 1) * like.element_size()
        memory = self.allocate(stand_in.SHARED, bytes_, index)
        bisect.insort(self._ranges, (memory, memory + bytes_ - 1, index))
        raw = (ctypes.c_uint8 * bytes_).from_address(memory)
        out = torch.frombuffer(raw, dtype=like.dtype)[: like.numel()].reshape(like.shape)
        return out.copy_(like.detach())

    def forget_tensors(self) -> None:
        super().forget_tensors()
        for first, _, index in self._ranges:
            self.free(first, index)
        self._ranges.clear()

    def _index_of(self, address: int) -> int | None:
        """The device with the tensor at this address."""
        at = bisect.bisect_right(self._ranges, (address, sys.maxsize, 0)) - 1
        return self._ranges[at][2] if at >= 0 and address <= self._ranges[at][1] else None

    def _bytes_at(self, place: places.Place, count: int) -> torch.Tensor:
        if place.device.type != self.kind:
            return self._new_bytes(place, count)
        return self.tensor(torch.zeros(count, dtype=torch.uint8), place.device.index)

    def _norm_at(self, place: places.Place | None) -> torch.Tensor:
        if place is None or place.device.type != self.kind:
            return self._new_norm(place)
        return self.tensor(torch.zeros(()), place.device.index)

    def _empty_beside(self, array: arrays.Array, shape: tuple[int, ...], dtype: str) -> Any:
        new = self._empty(array, shape, dtype)
        return new if array.place.on_host else self.tensor(torch.zeros_like(new), array.place.device.index)

    def _zero_beside(self, like: torch.Tensor) -> torch.Tensor:
        index = self._index_of(like.data_ptr())
        return self._zero_outside(like) if index is None else self.tensor(torch.zeros((), dtype=like.dtype), index)

    def _device_of(self, tensor: torch.Tensor) -> torch.device:
        address = tensor.data_ptr() or tensor.untyped_storage().data_ptr()  # 0: it has no elements
        index = self._index_of(address)
        return self._outside(tensor) if index is None else torch.device(self.kind, index)

    def close(self) -> None:
        gc.collect()
        held = dict(self.cached)
        self.cached.clear()  # what a failed test keeps alive frees it later, when there is nothing to free any more
        torch_memory.cache_of.cache_clear()
        super().close()
        assert not held, f"optimizers that are gone still hold {held}"

    def synchronize(self) -> None:
        super().synchronize()
        self.call("cudaStreamSynchronize", None)

    def call(self, name: str, *arguments: Any) -> None:
        """Calls a function of the runtime, which must succeed."""
        assert not self._functions[name](*arguments), name

    # The part of torch.cuda that is used:

    def current_stream(self, device: torch.device) -> SimpleNamespace:
        self.asked.append(device.index)
        return SimpleNamespace(cuda_stream=0 if self.legacy else self.queues[device.index])

    def get_device_properties(self, device: torch.device) -> SimpleNamespace:
        return SimpleNamespace(total_memory=self.limits(device.index)[1])

    def mem_get_info(self, device: torch.device) -> tuple[int, int]:
        return self.limits(device.index)

    def memory_stats_as_nested_dict(self, device: torch.device) -> dict[str, dict[str, dict[str, int]]]:
        used = sum(size for size, index in self.cached.values() if index == device.index)
        self.peak = max(self.peak, used + self.activations)
        kept = self.unused + self.fragments + sum(segment["total_size"] for segment in self.pools)
        return {
            "allocated_bytes": {"all": {"current": used, "peak": self.peak}},
            "active_bytes": {"all": {"current": used}},
            "inactive_split_bytes": {"all": {"current": self.fragments}},
            "reserved_bytes": {"all": {"current": used + kept}},
            "segment": {"all": {"allocated": len(self.cached) + len(self.pools), "freed": 0}},
        }

    def memory_snapshot(self) -> list[dict[str, Any]]:
        ordinary = [
            {"device": index, "total_size": size, "active_size": size, "segment_pool_id": (0, 0)}
            for size, index in self.cached.values()
        ]
        return ordinary + self.pools

    def new_block(self, size: int, device: torch.device) -> Block:
        if sum(used for used, _ in self.cached.values()) + size > self.cache_limit:
            raise torch.OutOfMemoryError(f"CUDA out of memory. Tried to allocate {size} bytes")
        address = self.allocate(stand_in.DEVICE, size, device.index)
        self.cached[address] = size, device.index
        return Block(self, address, size)

    def release(self, address: int, streams: set[int]) -> None:
        if address in self.cached:  # torch keeps it for what comes next on the stream; here it is gone at once
            for stream in {self.queues[0], *streams}:
                self.call("cudaStreamSynchronize", ctypes.c_void_p(stream))
            self.recorded += bool(streams)
            self.free(address, self.cached.pop(address)[1])

    def empty_cache(self) -> None:
        self.emptied += 1

    def is_current_stream_capturing(self) -> bool:
        return self.capturing
