"""Parameters on a device without a torch that has one: memory that a device and the host share, which torch sees as CPU
tensors, and which Lowtide is told to take for tensors on that device.

Allocation, queues and order come from the C interface (include/lowtide/lowtide_device.h) of the compiled core. Usm
and emulated_cuda.py say what stands in for torch's part.
"""

from __future__ import annotations

import bisect
import ctypes
import sys
from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any

import lowtide
import pytest
import torch
from lowtide import _core
from lowtide.devices import arrays, places
from lowtide.engine import mirrors
from lowtide.optimizers import clipping

DEVICE, SHARED = 0, 2  # lt_memory_kind


def missing(backend: str) -> str:
    """Why there is no such device here; "" if there is one."""
    report = lowtide.backends()[backend]
    if not report["available"]:
        return f"no {backend} backend: {report['detail']}"
    if not hasattr(ctypes.CDLL(_core.__file__), "lt_device_open"):
        return f"{_core.__file__} was linked without the C interface"
    return ""


class StandIn:
    """Two devices with a queue each, and tensors in their shared memory."""

    kind: str  # of torch's devices
    roomy: lowtide.Memory | None = None  # all state on the device
    shares = False  # a model has parameters on the CPU, too

    def __init__(self, monkeypatch: pytest.MonkeyPatch, targets: Sequence[str]) -> None:
        self._lib = ctypes.CDLL(_core.__file__)
        self._lib.lt_last_error.restype = ctypes.c_char_p
        self._devices = [ctypes.c_void_p() for _ in targets]
        self.queues: list[int] = []
        for device, target in zip(self._devices, targets, strict=True):
            queue = ctypes.c_void_p()
            self._call("lt_device_open", self.backend.encode(), target.encode(), None, ctypes.byref(device))
            self._call("lt_device_queue", device, ctypes.byref(queue))
            self.queues.append(queue.value or 0)
        self.asked: list[int] = []  # indices of the devices that Lowtide asked for the current queue of
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
        monkeypatch.setattr(mirrors, "_mark_of", lambda device: SimpleNamespace(synchronize=self.synchronize))
        self._zero_outside = places.new_zero
        monkeypatch.setattr(places, "new_zero", self._zero_beside)  # torch's new_zeros() is the CPU's
        self._new_bytes = places.new_bytes
        monkeypatch.setattr(places, "new_bytes", self._bytes_at)

    @property
    def backend(self) -> str:
        return places.KINDS[self.kind].backend

    def name(self, index: int = 0) -> str:
        """The name, as str() of torch's device."""
        return f"{self.kind}:{index}"

    def close(self) -> None:
        """Frees the memory: no tensor may be used any more."""
        for device in self._devices:
            self._lib.lt_device_close(device)

    def tensor(self, like: torch.Tensor, index: int = 0) -> torch.Tensor:
        """A copy of a tensor in memory of the device."""
        bytes_ = max(like.numel(), 1) * like.element_size()
        memory = self.allocate(SHARED, bytes_, index)
        bisect.insort(self._ranges, (memory, memory + bytes_ - 1, index))
        raw = (ctypes.c_uint8 * bytes_).from_address(memory)
        out = torch.frombuffer(raw, dtype=like.dtype)[: like.numel()].reshape(like.shape)
        return out.copy_(like.detach())

    def forget_tensors(self) -> None:
        """Frees the memory of all tensors, of which none may be used any more."""
        self.synchronize()
        for first, _, index in self._ranges:
            self.free(first, index)
        self._ranges.clear()

    def _index_of(self, address: int) -> int | None:
        """The device whose tensor that is in."""
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

    def parameters(self, like: Sequence[torch.Tensor], index: int = 0) -> list[torch.nn.Parameter]:
        return [torch.nn.Parameter(self.tensor(param, index)) for param in like]

    def give_gradients(self, params: Sequence[torch.Tensor], like: Sequence[torch.Tensor]) -> None:
        """The gradients of other parameters, in memory of the device. Nothing may be under way."""
        for param, other in zip(params, like, strict=True):
            if other.grad is None:
                param.grad = None
            elif param.grad is None or param.grad.dtype != other.grad.dtype:
                param.grad = self.tensor(other.grad)
            else:
                param.grad.copy_(other.grad)

    def synchronize(self) -> None:
        for device in self._devices:
            self._call("lt_device_synchronize", device, None)

    def allocate(self, kind: int, bytes_: int, index: int = 0) -> int:
        memory = ctypes.c_void_p()
        self._call("lt_device_alloc", self._devices[index], kind, ctypes.c_int64(bytes_), ctypes.byref(memory))
        assert memory.value
        return memory.value

    def free(self, address: int, index: int = 0) -> None:
        self._call("lt_device_free", self._devices[index], ctypes.c_void_p(address))

    def limits(self, index: int = 0) -> tuple[int, int]:
        """Bytes of the device's memory that are free, and all."""
        report = (ctypes.c_int64 * 4)(32, -1, -1, -1)  # lt_device_limits_report
        self._call("lt_device_limits", self._devices[index], report)
        return report[2], report[1]

    def current_queue(self, device: torch.device) -> int:
        assert device.type == self.kind
        self.asked.append(device.index)
        return self.queues[device.index]

    def _device_of(self, tensor: torch.Tensor) -> torch.device:
        address = tensor.data_ptr() or tensor.untyped_storage().data_ptr()  # 0: it has no elements
        index = self._index_of(address)
        return self._outside(tensor) if index is None else torch.device(self.kind, index)

    def _call(self, name: str, *args: Any) -> None:
        if getattr(self._lib, name)(*args) != 0:
            raise RuntimeError(f"{name}: {self._lib.lt_last_error().decode()}")


class Usm(StandIn):
    kind = "xpu"

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        super().__init__(monkeypatch, ("cpu", "cpu"))
        monkeypatch.setitem(places.KINDS, "xpu", places.Kind("sycl", self.current_queue, lambda _: 1 << 30))
