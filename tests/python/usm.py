"""Parameters on a device without a torch that has one: shared memory of the CPU's OpenCL device, which torch sees as
CPU tensors, and which Lowtide is told to take for parameters on "xpu".

Allocation, queue and order come from the C interface (include/lowtide/lowtide_device.h) of the compiled core.
"""

import ctypes
from collections.abc import Sequence
from typing import Any

import lowtide
import pytest
import torch
from lowtide import _core, devices

SHARED = 2  # lt_memory_kind


def missing() -> str:
    """Why there is no such device here; "" if there is one."""
    report = lowtide.backends()["sycl"]
    if not report["available"]:
        return f"no sycl backend: {report['detail']}"
    if not hasattr(ctypes.CDLL(_core.__file__), "lt_device_open"):
        return f"{_core.__file__} was linked without the C interface"
    return ""


class Usm:
    """Devices with a queue each, and tensors in their shared memory, which belong to torch device `xpu:index`. Both are
    the one that there is."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self._lib = ctypes.CDLL(_core.__file__)
        self._lib.lt_last_error.restype = ctypes.c_char_p
        self._devices = [ctypes.c_void_p(), ctypes.c_void_p()]
        self._queues: list[int] = []
        for device in self._devices:
            queue = ctypes.c_void_p()
            self._call("lt_device_open", b"sycl", b"cpu", None, ctypes.byref(device))
            self._call("lt_device_queue", device, ctypes.byref(queue))
            self._queues.append(queue.value or 0)
        self.asked: list[int] = []  # indices of the devices that Lowtide asked for the current queue of
        self._ranges: list[tuple[int, int, int]] = []  # first and last byte, index of the device
        monkeypatch.setitem(devices.KINDS, "xpu", devices.Kind("sycl", self._current_queue, lambda _: 1 << 30))
        monkeypatch.setattr(devices, "device_of", self._device_of)

    def close(self) -> None:
        """Frees the memory: no tensor may be used any more."""
        for device in self._devices:
            self._lib.lt_device_close(device)

    def tensor(self, like: torch.Tensor, index: int = 0) -> torch.Tensor:
        """A copy of a tensor (with elements) in memory of the device."""
        bytes_ = like.numel() * like.element_size()
        memory = ctypes.c_void_p()
        self._call("lt_device_alloc", self._devices[index], SHARED, ctypes.c_int64(bytes_), ctypes.byref(memory))
        assert memory.value
        self._ranges.append((memory.value, memory.value + bytes_ - 1, index))
        raw = (ctypes.c_uint8 * bytes_).from_address(memory.value)
        out = torch.frombuffer(raw, dtype=like.dtype).reshape(like.shape)
        return out.copy_(like.detach())

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

    def _current_queue(self, device: torch.device) -> int:
        assert device.type == "xpu"
        self.asked.append(device.index)
        return self._queues[device.index]

    def _device_of(self, tensor: torch.Tensor) -> torch.device:
        for first, last, index in self._ranges:
            if first <= tensor.data_ptr() <= last:
                return torch.device("xpu", index)
        return tensor.device

    def _call(self, name: str, *args: Any) -> None:
        if getattr(self._lib, name)(*args) != 0:
            raise RuntimeError(f"{name}: {self._lib.lt_last_error().decode()}")
