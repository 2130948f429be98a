"""Where parameters are: all that Lowtide asks of torch about devices.

Each kind of torch device has a backend (`lowtide.backends()`) that steps what is there. Another kind is one more entry
of `KINDS`.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import NamedTuple

import torch

from lowtide import _core


class Kind(NamedTuple):
    """One kind of torch device (`torch.device.type`)."""

    backend: str
    queue: Callable[[torch.device], int]  # address of the backend's queue that torch now queues its work on; 0: none
    memory: Callable[[torch.device], int]  # bytes that there are


def _ram(_: torch.device) -> int:
    return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")


def _xpu_queue(device: torch.device) -> int:  # a sycl::queue*; torch's queues are in order and live as long as it
    return int(torch.xpu.current_stream(device).sycl_queue)


def _xpu_memory(device: torch.device) -> int:
    return int(torch.xpu.get_device_properties(device).total_memory)


KINDS: dict[str, Kind] = {
    "cpu": Kind("cpu", lambda _: 0, _ram),
    "xpu": Kind("sycl", _xpu_queue, _xpu_memory),
}


class Place(NamedTuple):
    """Where the parameters of one optimizer are."""

    device: torch.device
    reads: str  # what their .device says, for the core to check them by

    @property
    def kind(self) -> Kind:
        return KINDS[self.device.type]

    @property
    def on_host(self) -> bool:
        return self.kind.backend == "cpu"

    def queue(self) -> int:
        """That the next step is ordered on; 0 for the CPU."""
        return self.kind.queue(self.device)

    def memory(self) -> int:
        return self.kind.memory(self.device)

    def require_backend(self) -> None:
        """Raises NotImplementedError, with what `lowtide.backends()` says, if nothing can compute there."""
        if self.on_host:
            return
        found = _core.backends()[self.kind.backend]
        if not found["available"]:
            raise NotImplementedError(
                f"got tensors on {self.device}, wanted the {self.kind.backend} backend for them: {found['detail']}"
            )


HOST = Place(torch.device("cpu"), "cpu")


def device_of(tensor: torch.Tensor) -> torch.device:
    """The device that a tensor's memory belongs to."""
    return tensor.device


def place_of(tensor: torch.Tensor, where: str) -> Place:
    """Where a (local) tensor is. ValueError, beginning with `where`, for a device that there is no backend for."""
    device = device_of(tensor)
    if device.type not in KINDS:
        raise ValueError(f"{where}: got a tensor on {device}, wanted one on {' or '.join(KINDS)}")
    return HOST if device.type == "cpu" else Place(device, str(tensor.device))
