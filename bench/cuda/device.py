"""The GPU of a measurement: its memory, its tensors, and how much fits. With `rehearse`, the CPU stands in.

Device memory comes only from torch's allocator. Only bitsandbytes' paged optimizers use managed memory; call `allow_managed`
first, because paging by the driver without room has hung whole machines.
"""

from __future__ import annotations

import gc
import os
import tempfile
from typing import Any

import torch

from bench.cuda import stand_in
from bench.cuda.rows import Absent

GIB = 1 << 30
MANAGED_SPARE = 8 * GIB  # must stay free beside all managed memory
MANAGED_CAP = 24 * GIB
DEVICE_SHARE = 0.75  # share of free memory that a measurement may use
HOST_SHARE = 0.6


def bytes_of(text: str) -> int:
    """Parses a size in lowtide's units ("64GiB", "100 GB") or with the letters of other tools ("100G", powers of 1024)."""
    from lowtide import _core

    text = text.strip()
    return _core.parse_bytes(text + "iB" if text[-1:] in ("K", "M", "G", "T") else text)


class Gpu:
    def __init__(self, rehearse: bool) -> None:
        self.rehearsed = rehearse
        self.on_device = not rehearse  # at least Lowtide's state
        if rehearse:  # tiny work, on a machine that may be busy with other tests
            torch.set_num_threads(1)
        self.cuda: Any = stand_in if rehearse else torch.cuda
        if not rehearse and not self.cuda.is_available():
            raise Absent("torch sees no GPU (torch.cuda.is_available() is False)")
        self.device = torch.device("cpu") if rehearse else torch.device("cuda", self.cuda.current_device())
        self.dropped: set[str] = set()  # options that a rehearsal lacked
        self._managed = 0
        self._ballast: list[torch.Tensor] = []
        self._scratch: tempfile.TemporaryDirectory[str] | None = None

    @property
    def name(self) -> str:
        return str(self.cuda.get_device_name())

    def hold(self, seconds: float) -> None:
        """Keeps the current stream busy for about so long: the device sleeps for clock cycles, at 2 GHz."""
        if hasattr(self.cuda, "_sleep"):  # not of a stand-in
            self.cuda._sleep(int(seconds * 2e9))

    def size(self, real: int, rehearsal: int) -> int:
        return rehearsal if self.rehearsed else real

    def free(self) -> int:
        """Bytes that torch could still allocate: the driver's free bytes after torch has emptied its cache."""
        gc.collect()
        self.cuda.empty_cache()
        return int(self.cuda.mem_get_info()[0])

    def host_free(self) -> int:
        with open("/proc/meminfo") as file:
            fields = {line.split(":")[0]: int(line.split()[1]) * 1024 for line in file}
        # A virtual machine may get more memory later. LOWTIDE_HOST_BYTES says how much it can have.
        told = os.environ.get("LOWTIDE_HOST_BYTES")
        return bytes_of(told) if told else fields["MemAvailable"]

    def elements(self, wanted: int, rehearsal: int, device_each: float, host_each: float = 0.0) -> int:
        """`wanted` elements, or as many as fit with so many bytes of each kind of memory per element."""
        if self.rehearsed:
            return rehearsal
        most = self.free() * DEVICE_SHARE / device_each
        if host_each:
            most = min(most, self.host_free() * HOST_SHARE / host_each)
        return min(wanted, int(most))

    def parameters(self, shapes: list[tuple[int, ...]], dtype: torch.dtype) -> list[torch.nn.Parameter]:
        """Makes parameters with gradients. They are not zero, because zeros move and compute faster."""
        source = torch.Generator(self.device).manual_seed(7)
        made = []
        for shape in shapes:
            param = torch.nn.Parameter(
                torch.empty(shape, dtype=dtype, device=self.device).normal_(0, 0.02, generator=source)
            )
            param.grad = torch.empty_like(param).normal_(0, 0.01, generator=source)
            made.append(param)
        return made

    def budget(self, size: str) -> str:
        """The size to pass to lowtide.Memory(device=)."""
        return size

    def tensor(self, value: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
        return value.to(self.device, dtype, copy=True)

    def adopt(self, model: torch.nn.Module) -> None:
        """Call this for a model that is trained on the device."""

    def follow(self, optimizer: Any) -> None:
        """Call this for each Lowtide optimizer."""

    def pinned(self, count: int) -> torch.Tensor:
        """`count` bytes of pinned host memory, written once. Use powers of two, to which torch rounds up."""
        return torch.empty(count, dtype=torch.uint8, pin_memory=not self.rehearsed).fill_(1)

    def allow_managed(self, count: int) -> None:
        """Raises Absent unless `count` more bytes of managed memory leave enough room for everything else."""
        total = self._managed + count
        if self._ballast:
            raise Absent("there is ballast on the device: no managed memory beside it")
        if total > MANAGED_CAP:
            raise Absent(f"got {total} bytes of managed memory, wanted at most {MANAGED_CAP}")
        if not self.rehearsed and total + MANAGED_SPARE > self.free():
            raise Absent(
                f"got {self.free()} bytes free, wanted {total} of managed memory and {MANAGED_SPARE} beside it"
            )
        self._managed = total

    def ballast(self, leave: int) -> None:
        """Fills the device with plain memory until only `leave` bytes are free."""
        if self._managed:
            raise Absent("managed memory was used in this process: no ballast beside it")
        count = max(0, self.free() - leave)
        self._ballast.append(torch.empty(count, dtype=torch.uint8, device=self.device))

    def drop_ballast(self) -> None:
        self._ballast.clear()
        self.free()
        self.cuda.reset_peak_memory_stats()  # otherwise the peak suggests that the ballast will come back

    def scratch(self) -> str:
        self._scratch = self._scratch or tempfile.TemporaryDirectory(
            prefix="lowtide-gpu-", dir=os.environ.get("LOWTIDE_SCRATCH")
        )
        return self._scratch.name
