"""The devices of parameters. Only this module asks torch about devices, and `torch_memory` about their memory; no other names
them.

Each kind of torch device has a backend (`lowtide.backends()`) that steps its parameters. A new kind needs one more entry in
`KINDS`.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, nullcontext, suppress
from pathlib import Path
from typing import NamedTuple

import torch
from torch.utils._python_dispatch import is_traceable_wrapper_subclass

from lowtide import _core
from lowtide.checks.values import PARAMETER_DTYPES, expect
from lowtide.devices import torch_memory

EXACT = "exact"  # every device has this arithmetic, with the same bits as the CPU


class Allocator(NamedTuple):
    """Device memory from torch's cache. Freed memory is reused only behind the work queued on the current stream."""

    allocate: Callable[[int], int]  # bytes -> address, aligned to 256 bytes; 0: out of memory
    free: Callable[[int], None]
    # Takes an address and a queue: work queued there still uses the memory, which is freed next.
    note_use: Callable[[int, int], None]


class Kind(NamedTuple):
    """One kind of torch device (`torch.device.type`)."""

    backend: str
    queue: Callable[[torch.device], int]  # address of the queue that torch uses now
    memory: Callable[[torch.device], int]  # total bytes of memory
    arithmetics: tuple[str, ...] = (EXACT,)  # the arithmetics of the backend's steps
    target: Callable[[torch.device, str], str] = lambda device, arithmetic: ""  # the backend's name for the device
    # Bytes that nothing else needs now, or at the peak of a step, including unused memory in torch's cache; -1: unknown now.
    free: Callable[[torch.device], int] = lambda device: -1
    room: Callable[[torch.device], int] = lambda device: -1
    allocator: Callable[[torch.device], Allocator | None] = lambda device: None  # None: the driver's
    capturing: Callable[[torch.device], bool] = lambda device: False  # whether torch's queue is being recorded
    records: bool = False  # whether such a recording can be replayed
    empty_cache: Callable[[], None] = lambda: None  # returns unused memory of torch's cache to the driver
    automatic: bool = False  # without a budget, state moves to the device if it fits


def ram(groups: Path = Path("/proc/self/cgroup"), root: Path = Path("/sys/fs/cgroup")) -> int:
    """Bytes of RAM of the machine, or less if the control groups of this process allow less, as in containers. Reads both
    versions of control groups; ignores limits that cannot be read."""
    limits = [limit for limit, _ in _limits(groups, root)]
    return min([os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE"), *limits])


def ram_free(groups: Path = Path("/proc/self/cgroup"), root: Path = Path("/sys/fs/cgroup"), of: Path = Path("/proc/meminfo")) -> int:
    """Bytes that this process can still allocate without swapping: what the machine has available, or less as limited for
    `ram`."""
    found = re.search(r"^MemAvailable:\s*([0-9]+) kB", of.read_text(encoding="ascii"), re.M)
    free = int(found[1]) * 1024 if found else os.sysconf("SC_AVPHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    return max(0, min([free, *(limit - used for limit, used in _limits(groups, root))]))


def _limits(groups: Path, root: Path) -> Iterator[tuple[int, int]]:
    """For each control group of this process with a limit: the limit, and the bytes in use except file pages that nobody has
    read for long, which the system can drop; 0 if unknown."""
    with suppress(OSError):
        for line in groups.read_text(encoding="utf-8").splitlines():
            _, controllers, path = line.split(":", 2)
            if controllers and "memory" not in controllers.split(","):
                continue
            base = root / "memory" if controllers else root
            limit, usage = ("limit_in_bytes", "usage_in_bytes") if controllers else ("max", "current")
            dropped = re.compile(f"^{'total_' if controllers else ''}inactive_file ([0-9]+)$", re.M)
            group = base / path.lstrip("/")
            for folder in (group, *group.parents):  # the limits of parent groups apply, too
                with suppress(OSError, ValueError):  # "max", or no such group, as in a container
                    most, used = int((folder / f"memory.{limit}").read_text(encoding="ascii")), 0
                    with suppress(OSError, ValueError):
                        used = int((folder / f"memory.{usage}").read_text(encoding="ascii"))
                        found = dropped.search((folder / "memory.stat").read_text(encoding="ascii"))
                        used -= int(found[1]) if found else 0
                    yield most, used
                if folder == base:
                    break


def _allocator(device: torch.device) -> Allocator:
    cache = torch_memory.cache_of(device)
    return Allocator(cache.allocate, cache.release, cache.note_use)


def _xpu_lends() -> bool:
    """True if torch's cache can track foreign queues that use its memory. With an older torch, state is in the driver's
    memory."""
    return hasattr(torch.xpu, "get_stream_from_external") and hasattr(torch.xpu, "mem_get_info")


def _xpu_free(device: torch.device) -> int:
    """Bytes that the driver could give, less those that torch's cache has returned since its peak and will take back; -1:
    unknown."""
    try:
        free = int(torch.xpu.mem_get_info(device)[0])
    except (AttributeError, RuntimeError):  # an older torch, or a driver that does not report it
        return -1
    return max(free - max(torch.xpu.max_memory_reserved(device) - torch.xpu.memory_reserved(device), 0), 0)


KINDS: dict[str, Kind] = {
    "cpu": Kind("cpu", lambda _: 0, lambda _: ram()),
    "cuda": Kind(
        "cuda",
        # A cudaStream_t; 0 means the legacy default stream.
        lambda device: int(torch.cuda.current_stream(device).cuda_stream),
        lambda device: int(torch.cuda.get_device_properties(device).total_memory),
        arithmetics=(EXACT, "fast"),
        target=lambda device, arithmetic: f"{arithmetic}:{device.index}",
        free=lambda device: torch_memory.cache_of(device).free(),
        room=lambda device: torch_memory.cache_of(device).room(),
        allocator=_allocator,
        capturing=torch_memory.capturing,
        records=True,
        empty_cache=lambda: torch.cuda.empty_cache(),
        automatic=True,
    ),
    "xpu": Kind(
        "sycl",
        # A sycl::queue*. Torch's queues are in order and live as long as torch.
        lambda device: int(torch.xpu.current_stream(device).sycl_queue),
        lambda device: int(torch.xpu.get_device_properties(device).total_memory),
        free=lambda device: torch_memory.cache_of(device).free() if _xpu_lends() else _xpu_free(device),
        room=lambda device: torch_memory.cache_of(device).room() if _xpu_lends() else _xpu_free(device),
        allocator=lambda device: _allocator(device) if _xpu_lends() else None,
        capturing=torch_memory.capturing,
        empty_cache=lambda: torch.xpu.empty_cache(),
    ),
}


class Place(NamedTuple):
    """The device of an optimizer's parameters, and who steps them."""

    device: torch.device
    reads: str  # .device of the tensors that the core steps
    mirrored: bool = False  # the CPU steps copies of them (`engine.mirrors`)

    @property
    def kind(self) -> Kind:
        return KINDS["cpu" if self.mirrored else self.device.type]

    @property
    def name(self) -> str:
        """The name used in errors."""
        return f"{self.device} (by the CPU)" if self.mirrored and has_kernels(self.device) else str(self.device)

    @property
    def on_host(self) -> bool:
        """True if the CPU steps the parameters, from host memory."""
        return self.kind.backend == "cpu"

    def by_host(self) -> Place:
        """The same device, with the CPU stepping copies of the parameters."""
        return Place(self.device, HOST.reads, mirrored=True)

    def queue(self) -> int:
        """The queue for the next step; 0 for the CPU."""
        return self.kind.queue(self.device)

    def memory(self) -> int:
        return self.kind.memory(self.device)

    def free(self) -> int:
        """Bytes that nothing else needs now; -1: unknown. Does not wait."""
        return self.kind.free(self.device)

    def room(self) -> int:
        """Bytes that nothing else needs at any time during a step; -1: unknown. Does not wait."""
        return self.kind.room(self.device)

    def capturing(self) -> bool:
        """True if a step would be recorded for replay instead of executed."""
        return has_kernels(self.device) and KINDS[self.device.type].capturing(self.device)

    def core_arguments(self, arithmetic: str) -> tuple[str, int, str, str, Allocator | None]:
        """The arguments of a core: the backend, the queue, `.device` of its tensors, the target and the allocator. Raises like
        `require_backend` and `target`."""
        if self.device.type == "cpu" and arithmetic == EXACT:
            return "cpu", 0, self.reads, "", None
        target = self.target(arithmetic)
        self.require_backend()
        return self.kind.backend, self.queue(), self.reads, target, self.kind.allocator(self.device)

    def target(self, arithmetic: str) -> str:
        """The backend's name for the device. Raises ValueError if the device lacks this arithmetic."""
        if arithmetic not in self.kind.arithmetics:
            wanted = " or ".join(map(repr, self.kind.arithmetics))
            raise ValueError(f"arithmetic: got {arithmetic!r} for parameters on {self.device}, wanted {wanted}")
        return self.kind.target(self.device, arithmetic)

    def require_backend(self) -> None:
        """Raises NotImplementedError, with the details from `lowtide.backends()`, if nothing can compute there."""
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
    """Raises NotImplementedError about the class `name`, which computes on the parameters' device, if nothing can compute
    there."""
    if place.mirrored:
        raise NotImplementedError(f"{name}: got parameters on {place.device}, wanted them on {' or '.join(KINDS)}")


def device_of(tensor: torch.Tensor) -> torch.device:
    """The device that a tensor's memory belongs to."""
    return tensor.device


def has_kernels(device: torch.device) -> bool:
    """True if Lowtide has a backend for this kind of device. It has none for AMD GPUs, which torch calls "cuda", too."""
    return device.type in KINDS and not (device.type == "cuda" and torch.version.hip)


def place_of(tensor: torch.Tensor, where: str) -> Place:
    """The place of a local tensor. Raises ValueError, beginning with `where`, for a tensor on "meta" or on a device without a
    module in torch."""
    device = device_of(tensor)
    if has_kernels(device):
        return place_on(device)._replace(reads=str(tensor.device))
    try:
        torch.get_device_module(device)
    except RuntimeError:
        wanted = f"one on {' or '.join(KINDS)}, or on another torch accelerator"
        raise ValueError(f"{where}: got a tensor on {device}, wanted {wanted}") from None
    return place_on(device)


def place_on(device: torch.device) -> Place:
    """The place of tensors on this device, which need not exist here."""
    if has_kernels(device):
        return HOST if device.type == "cpu" else Place(device, str(device))
    return Place(device, HOST.reads, mirrored=True)


def check_parameter(param: torch.Tensor, where: str, anywhere: bool = False) -> None:
    """Raises for a local tensor that cannot be stepped: a wrapper of other tensors, a device without a backend (unless
    `anywhere`), an unsupported layout or element type."""
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
    """True for the common case that needs no closer look: a trainable, dense, ordinary parameter on the CPU."""
    plain = type(param) in _PLAIN and param.requires_grad and param.dtype in PARAMETER_DTYPES
    return plain and param.layout == torch.strided and not param.is_nested and device_of(param).type == "cpu"


def may_stand_aside(param: torch.Tensor) -> bool:
    """True if an optimizer accepts this parameter although it cannot be stepped: it is frozen or has no memory yet."""
    return isinstance(param, torch.nn.Parameter) and (param.is_meta or not param.requires_grad)


def new_zero(like: torch.Tensor) -> torch.Tensor:
    """A zero-dimensional zero with the device and type of `like`."""
    return like.new_zeros(())


def new_bytes(place: Place, count: int) -> torch.Tensor:
    """uint8 [count] of zeros on the device."""
    return torch.zeros(count, dtype=torch.uint8, device=place.reads)


def look_up(table: torch.Tensor, index: torch.Tensor, out: torch.Tensor) -> None:
    """Sets out[i] = table[index[i]], in the order of torch's current stream. table: on the host or the device. index: integers
    of any type, contiguous like `out`, which may be the same tensor."""
    there = table.to(index.device)
    torch.index_select(there, 0, index.reshape(-1).int(), out=out.view(-1))


def stream_of(tensor: torch.Tensor) -> Callable[[], AbstractContextManager[object]]:
    """Returns a maker of contexts, for any thread, in which torch orders work for the tensor's device on the stream that is
    current now."""
    if tensor.device.type == "cpu":
        return nullcontext
    module = torch.get_device_module(tensor.device)
    stream = module.current_stream(tensor.device)
    return lambda: module.stream(stream)


def stand_in(place: Place) -> torch.Tensor:
    """An empty tensor that represents, in a core there, a parameter that cannot be stepped."""
    return torch.empty(0, device=place.reads)
