"""Devices for parameters without a GPU. Memory, queues and order come from the compiled core's C interface
(include/lowtide/lowtide_device.h). xpu_device.py and emulated_cuda.py stand in for torch's part.
"""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from typing import Any

import lowtide
import torch
from lowtide import _core, sign
from lowtide.devices import places

DEVICE, SHARED = 0, 2  # lt_memory_kind


def missing(backend: str) -> str:
    """Why there is no such device here, or ""."""
    report = lowtide.backends()[backend]
    if not report["available"]:
        return f"no {backend} backend: {report['detail']}"
    if not hasattr(ctypes.CDLL(_core.__file__), "lt_device_open"):
        return f"{_core.__file__} was linked without the C interface"
    return ""


class StandIn:
    """Devices with one queue each, and tensors in their memory."""

    kind: str  # of torch's devices
    roomy: lowtide.Memory | None = None  # all state on the device
    shares = False  # a model has parameters on the CPU, too

    def __init__(self, targets: Sequence[str]) -> None:
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

    @property
    def backend(self) -> str:
        return places.KINDS[self.kind].backend

    def name(self, index: int = 0) -> str:
        """The name, as str() of torch's device."""
        return f"{self.kind}:{index}"

    def close(self) -> None:
        """Frees the memory. No tensor may be used afterwards."""
        sign._signer.cache_clear()  # they have the queues
        for device in self._devices:
            self._lib.lt_device_close(device)

    def tensor(self, like: torch.Tensor, index: int = 0) -> torch.Tensor:
        """A copy of a tensor in the device's memory."""
        raise NotImplementedError

    def parameters(self, like: Sequence[torch.Tensor], index: int = 0) -> list[torch.nn.Parameter]:
        return [torch.nn.Parameter(self.tensor(param, index)) for param in like]

    def give_gradients(self, params: Sequence[torch.Tensor], like: Sequence[torch.Tensor]) -> None:
        """Gives the gradients of other parameters, in the device's memory. Nothing may be under way."""
        for param, other in zip(params, like, strict=True):
            if other.grad is None:
                param.grad = None
            elif param.grad is None or param.grad.dtype != other.grad.dtype:
                param.grad = self.tensor(other.grad)
            else:
                param.grad.copy_(other.grad)

    def forget_tensors(self) -> None:
        """Frees the memory of all tensors. None may be used afterwards."""
        self.synchronize()

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
        """Free and total bytes of the device's memory."""
        report = (ctypes.c_int64 * 4)(32, -1, -1, -1)  # lt_device_limits_report
        self._call("lt_device_limits", self._devices[index], report)
        return report[2], report[1]

    def _call(self, name: str, *args: Any) -> None:
        if getattr(self._lib, name)(*args) != 0:
            raise RuntimeError(f"{name}: {self._lib.lt_last_error().decode()}")
