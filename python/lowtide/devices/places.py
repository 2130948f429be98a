"""Where parameters are: all that Lowtide asks of torch about devices (of CUDA's memory: `cuda_memory`), and the only
place that names them.

Each kind of torch device has a backend (`lowtide.backends()`) that steps what is there. Another kind is one more entry
of `KINDS`.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from typing import NamedTuple

import torch
from torch.utils._python_dispatch import is_traceable_wrapper_subclass

from lowtide import _core
from lowtide.checks.values import PARAMETER_DTYPES, expect
from lowtide.devices import cuda_memory

EXACT = "exact"  # the arithmetic that every device has: the same bits as the CPU


class Allocator(NamedTuple):
    """Device memory of torch's cache, which hands out what is freed behind what is queued on the current stream."""

    allocate: Callable[[int], int]  # bytes -> address, aligned to 256 bytes; 0: there is none
    free: Callable[[int], None]
    # Address, queue: what is queued there still uses the memory that is freed next.
    note_use: Callable[[int, int], None]


class Kind(NamedTuple):
    """One kind of torch device (`torch.device.type`)."""

    backend: str
    queue: Callable[[torch.device], int]  # address of the backend's queue that torch now queues its work on
    memory: Callable[[torch.device], int]  # bytes that there are
    arithmetics: tuple[str, ...] = (EXACT,)  # that the backend's steps can be in
    target: Callable[[torch.device, str], str] = lambda device, arithmetic: ""  # as the backend names the device
    # Bytes that nothing else needs now, and where a step needs most, counting what torch's cache keeps unused; -1: not
    # known, or not just now.
    free: Callable[[torch.device], int] = lambda device: -1
    room: Callable[[torch.device], int] = lambda device: -1
    allocator: Callable[[torch.device], Allocator | None] = lambda device: None  # None: the driver's
    capturing: Callable[[torch.device], bool] = lambda device: False  # whether torch's queue is being recorded
    empty_cache: Callable[[], None] = lambda: None  # gives what torch's cache keeps unused back to the driver
    automatic: bool = False  # state moves to the device as it fits, unless a budget says otherwise


def _ram(_: torch.device) -> int:
    return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")


def _xpu_queue(device: torch.device) -> int:  # a sycl::queue*; torch's queues are in order and live as long as it
    return int(torch.xpu.current_stream(device).sycl_queue)


def _xpu_memory(device: torch.device) -> int:
    return int(torch.xpu.get_device_properties(device).total_memory)


def _xpu_free(device: torch.device) -> int:
    """Bytes that the driver could give: state is not torch's memory there, so what torch's cache keeps unused does not count."""
    try:
        return int(torch.xpu.mem_get_info(device)[0])
    except (AttributeError, RuntimeError):  # an older torch; a driver that does not tell
        return -1


def _xpu_room(device: torch.device) -> int:
    free = _xpu_free(device)
    if free < 0:
        return free
    # The cache takes again what it had at most, and has given back since.
    return max(free - max(torch.xpu.max_memory_reserved(device) - torch.xpu.memory_reserved(device), 0), 0)


def _cuda_queue(device: torch.device) -> int:  # a cudaStream_t; 0 is a stream too, the legacy default one
    return int(torch.cuda.current_stream(device).cuda_stream)


def _cuda_memory(device: torch.device) -> int:
    return int(torch.cuda.get_device_properties(device).total_memory)


def _cuda_target(device: torch.device, arithmetic: str) -> str:
    return f"{arithmetic}:{device.index}"


def _cuda_allocator(device: torch.device) -> Allocator:
    cache = cuda_memory.cache_of(device)
    return Allocator(cache.allocate, cache.release, cache.note_use)


KINDS: dict[str, Kind] = {
    "cpu": Kind("cpu", lambda _: 0, _ram),
    "cuda": Kind(
        "cuda",
        _cuda_queue,
        _cuda_memory,
        arithmetics=(EXACT, "fast"),
        target=_cuda_target,
        free=lambda device: cuda_memory.cache_of(device).free(),
        room=lambda device: cuda_memory.cache_of(device).room(),
        allocator=_cuda_allocator,
        capturing=cuda_memory.capturing,
        empty_cache=lambda: torch.cuda.empty_cache(),
        automatic=True,
    ),
    "xpu": Kind(
        "sycl", _xpu_queue, _xpu_memory, free=_xpu_free, room=_xpu_room, empty_cache=lambda: torch.xpu.empty_cache()
    ),
}


class Place(NamedTuple):
    """Where the parameters of one optimizer are."""

    device: torch.device
    reads: str  # what .device says of the tensors that the core steps
    mirrored: bool = False  # whether the CPU steps copies of them (`engine.mirrors`)

    @property
    def kind(self) -> Kind:
        return KINDS["cpu" if self.mirrored else self.device.type]

    @property
    def name(self) -> str:
        """For errors."""
        return f"{self.device} (by the CPU)" if self.mirrored and has_kernels(self.device) else str(self.device)

    @property
    def on_host(self) -> bool:
        """Whether the CPU steps them, from memory of the host."""
        return self.kind.backend == "cpu"

    def by_host(self) -> Place:
        """The same device, where the CPU steps copies of the parameters."""
        return Place(self.device, HOST.reads, mirrored=True)

    def queue(self) -> int:
        """That the next step is ordered on; 0 for the CPU."""
        return self.kind.queue(self.device)

    def memory(self) -> int:
        return self.kind.memory(self.device)

    def free(self) -> int:
        """Bytes that nothing else needs now; -1: not known. Waits for nothing."""
        return self.kind.free(self.device)

    def room(self) -> int:
        """Bytes that nothing else needs at any time of a step; -1: not known. Waits for nothing."""
        return self.kind.room(self.device)

    def capturing(self) -> bool:
        """Whether a step would be recorded, for replays, instead of taken."""
        return has_kernels(self.device) and KINDS[self.device.type].capturing(self.device)

    def allocator(self) -> Allocator | None:
        return self.kind.allocator(self.device)

    def core_arguments(self, arithmetic: str) -> tuple[str, int, str, str, Allocator | None]:
        """The backend, the queue, what `.device` says, the target and the allocator, as a core takes them. Raises as
        `require_backend` and `target`."""
        if self.device.type == "cpu" and arithmetic == EXACT:
            return "cpu", 0, self.reads, "", None
        target = self.target(arithmetic)
        self.require_backend()
        return self.kind.backend, self.queue(), self.reads, target, self.allocator()

    def target(self, arithmetic: str) -> str:
        """The device, as its backend names it. ValueError for an arithmetic that it does not have."""
        if arithmetic not in self.kind.arithmetics:
            wanted = " or ".join(map(repr, self.kind.arithmetics))
            raise ValueError(f"arithmetic: got {arithmetic!r} for parameters on {self.device}, wanted {wanted}")
        return self.kind.target(self.device, arithmetic)

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
_PLAIN = (torch.Tensor, torch.nn.Parameter)


def require_kernels(place: Place, name: str) -> None:
    """NotImplementedError for a class, of that name, which computes where parameters are, if nothing can do so there."""
    if place.mirrored:
        raise NotImplementedError(f"{name}: got parameters on {place.device}, wanted them on {' or '.join(KINDS)}")


def device_of(tensor: torch.Tensor) -> torch.device:
    """The device that a tensor's memory belongs to."""
    return tensor.device


def has_kernels(device: torch.device) -> bool:
    """Whether Lowtide has a backend for this kind of device. It has none for AMD's GPUs, which torch calls "cuda" as well."""
    return device.type in KINDS and not (device.type == "cuda" and torch.version.hip)


def place_of(tensor: torch.Tensor, where: str) -> Place:
    """Where a (local) tensor is. ValueError, beginning with `where`, for one that is nowhere ("meta") or on a device that
    torch has no module for."""
    device = device_of(tensor)
    if has_kernels(device):
        return place_on(device)._replace(reads=str(tensor.device))
    try:
        torch.get_device_module(device)
    except RuntimeError:
        wanted = f"one on {' or '.join(KINDS)}, or on another accelerator of torch's"
        raise ValueError(f"{where}: got a tensor on {device}, wanted {wanted}") from None
    return place_on(device)


def place_on(device: torch.device) -> Place:
    """Where tensors on this device would be, whether or not there is one here."""
    if has_kernels(device):
        return HOST if device.type == "cpu" else Place(device, str(device))
    return Place(device, HOST.reads, mirrored=True)


def check_parameter(param: torch.Tensor, where: str, anywhere: bool = False) -> None:
    """Raises for a (local) tensor that cannot be stepped: a wrapper of others, a device without a backend (unless
    `anywhere`), a layout or an element type."""
    if is_traceable_wrapper_subclass(param) or "DTensor" in type(param).__name__:
        raise TypeError(
            f"{where}: got a {type(param).__name__}, wanted a plain tensor, a torch.nn.Parameter or a DTensor of one"
        )
    expect(not param.is_nested, where, "a nested tensor", "a dense one")
    lazy = torch.nn.parameter.is_lazy(param)
    expect(not lazy, where, "an uninitialized parameter", "one with a shape: run the lazy module first")
    if not anywhere:
        place_of(param, where)
    expect(param.layout == torch.strided, where, f"layout {param.layout}", "torch.strided")
    advice = ": convert the module with .float() before its parameters are handed over" if param.is_floating_point() else ""
    wanted = f"one of {', '.join(map(str, PARAMETER_DTYPES))}{advice}"
    expect(param.dtype in PARAMETER_DTYPES, where, param.dtype, wanted)


def is_plain(param: torch.Tensor) -> bool:
    """Whether a parameter is one of the many that need no closer look: trained, dense, of no special kind, on the CPU."""
    plain = type(param) in _PLAIN and param.requires_grad and param.dtype in PARAMETER_DTYPES
    return plain and param.layout == torch.strided and not param.is_nested and device_of(param).type == "cpu"


def may_stand_aside(param: torch.Tensor) -> bool:
    """Whether an optimizer takes this parameter along even if it cannot be stepped: it is frozen, or has no memory yet."""
    return isinstance(param, torch.nn.Parameter) and (param.is_meta or not param.requires_grad)


def new_zero(like: torch.Tensor) -> torch.Tensor:
    """A zero without dimensions on the device of `like`, of its type."""
    return like.new_zeros(())


def new_bytes(place: Place, count: int) -> torch.Tensor:
    """uint8 [count], zero, on the device."""
    return torch.zeros(count, dtype=torch.uint8, device=place.reads)


def look_up(table: torch.Tensor, index: torch.Tensor, out: torch.Tensor) -> None:
    """out[i] = table[index[i]], in the order of torch's current stream. table: of the host or the device; index: of whole numbers, of any
    type, and contiguous, as `out` is, which may be the index."""
    there = table.to(index.device)
    torch.index_select(there, 0, index.reshape(-1).int(), out=out.view(-1))


def stream_of(tensor: torch.Tensor) -> Callable[[], AbstractContextManager[object]]:
    """Contexts, for any thread, in which torch works on the tensor's device in the order of now's current stream."""
    if tensor.device.type == "cpu":
        return nullcontext
    module = torch.get_device_module(tensor.device)
    stream = module.current_stream(tensor.device)
    return lambda: module.stream(stream)


def stand_in(place: Place) -> torch.Tensor:
    """An empty tensor, which a core there has in place of a parameter that cannot be stepped."""
    return torch.empty(0, device=place.reads)
