"""Torch's cache of the memory of a GPU (torch.cuda, torch.xpu): the source of Lowtide's device memory, and the basis for estimating
how much more fits."""

from __future__ import annotations

import functools
import threading
from typing import Any

import torch

from lowtide.report.log import logger

OutOfMemory: type[BaseException] = getattr(torch, "OutOfMemoryError", torch.cuda.OutOfMemoryError)


_OLD = 16  # steps


class Cache:
    """The cache of one device, shared by all optimizers there."""

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._torch = torch.get_device_module(device)
        self._lock = threading.RLock()  # garbage collection during allocate() may call release()
        self._blocks: dict[int, torch.Tensor] = {}  # Lowtide's, by address
        self._held = 0  # bytes of these
        self._peak = 0  # torch's peak, when last read
        self._others = 0  # the largest number of bytes not held by Lowtide, as the peak has shown
        self._segments: tuple[int, ...] | None = None  # the cache's, when _pools was counted
        self._pools = 0
        self._driver = -1  # free bytes reported by the driver, the age of that answer in steps, and the cache's size then
        self._age = 0
        self._kept: tuple[int, ...] | None = None

    # The interface of a source of device memory to the core.

    def allocate(self, size: int) -> int:
        """Allocates `size` bytes aligned to 256; returns 0 if out of memory."""
        self._note_peak(self._stats())
        try:
            block = _new_block(size, self._device)
        except OutOfMemory:
            return 0
        except RuntimeError as error:  # the caller only accepts "no memory"
            logger.warning("torch could not allocate %d bytes on %s: %s", size, self._device, error)
            return 0
        with self._lock:
            self._blocks[block.data_ptr()] = block
            self._held += block.nbytes
        return block.data_ptr()

    def note_use(self, address: int, queue: int) -> None:
        """Makes the cache keep a freed block until the work queued on that stream so far is done; no torch stream waits for it.
        Only tensors can record this, hence blocks are tensors."""
        stream: torch.Stream
        if self._device.type == "xpu":
            stream = torch.xpu.get_stream_from_external(queue, self._device)
        elif queue:
            stream = torch.cuda.ExternalStream(queue, device=self._device)  # type: ignore[no-untyped-call]
        else:
            stream = torch.cuda.default_stream(self._device)  # torch would make ExternalStream(0) a new stream
        self._blocks[address].record_stream(stream)

    def release(self, address: int) -> None:
        """Frees a block, to be handed out again behind the work queued on the current stream."""
        self._note_peak(self._stats())
        with self._lock:
            self._held -= self._blocks.pop(address).nbytes

    # Bytes that nothing else needs; -1: unknown, or not known now.

    def free(self) -> int:
        """Bytes free now."""
        self._kept = None
        return self._beside(self._stats(), 0)

    def room(self) -> int:
        """Bytes free even at a step's peak: between backward and the optimizer's step activations are gone, but they come back.

        Torch's peak includes state and does not change when state moves: others need the peak minus the state held at that
        time."""
        stats = self._stats()
        self._note_peak(stats)
        return self._beside(stats, self._others + self._held)

    def _note_peak(self, stats: dict[str, Any] | None) -> None:
        """Call before state moves and before the value is used: since the last call, Lowtide has held the same amount."""
        if stats is None:
            return
        peak = _bytes(stats, "allocated", "peak")
        with self._lock:
            if peak != self._peak:
                before = self._others if peak > self._peak else 0  # a lower peak means that it was reset
                self._others = max(before, peak - self._held)
                self._peak = peak

    def _beside(self, stats: dict[str, Any] | None, needed: int) -> int:
        """Bytes free beside `needed` bytes, or beside the bytes in use now if those are more."""
        if capturing(self._device):  # a recorded graph must not depend on it
            return -1
        free = self._free_of_driver(stats)
        if stats is None or free < 0:
            return free
        # A fragment is a free part of a segment in use: it serves small tensors, not chunks of state.
        in_use = _bytes(stats, "active") + _bytes(stats, "inactive_split")
        return max(free + _bytes(stats, "reserved") - self._unused_pools(stats) - max(in_use, needed), 0)

    def _free_of_driver(self, stats: dict[str, Any] | None) -> int:
        """The bytes that the driver has free; -1: unknown. If many processes share a device, the driver takes milliseconds to
        answer, so a step reuses an earlier answer while the cache neither grows nor shrinks. It notices what other processes
        take once the answer is old."""
        kept = None if stats is None else _segments_of(stats)
        self._age += 1
        if kept is None or kept != self._kept or self._age >= _OLD:
            try:
                free, _ = self._torch.mem_get_info(self._device)
            except RuntimeError:  # a driver that does not report it; or the device is lost, as the step will report
                return -1
            self._driver, self._kept, self._age = int(free), kept, 0
        return self._driver

    def _stats(self) -> dict[str, Any] | None:
        """Torch's statistics; None if it has allocated nothing yet, or uses a custom allocator. (memory_reserved() would sort
        and flatten all of them each time.)"""
        try:
            return self._torch.memory_stats_as_nested_dict(self._device) or None
        except RuntimeError:
            return None

    def _unused_pools(self, stats: dict[str, Any]) -> int:
        """Bytes of idle segments that belong to graphs or to the user's pools, which nothing else may use. Counting takes long,
        so it is repeated only when the cache's segments have changed."""
        if (now := _segments_of(stats)) != self._segments:
            self._segments = now
            self._pools = sum(
                segment["total_size"]
                for segment in self._snapshot()
                if segment["device"] == self._device.index
                and tuple(segment["segment_pool_id"]) != (0, 0)
                and not segment["active_size"]
            )
        return self._pools

    def _snapshot(self) -> list[dict[str, Any]]:
        """All segments of the cache; none if torch does not tell, or leaves memory to cudaMallocAsync or to a custom allocator."""
        try:
            return self._torch.memory_snapshot()  # type: ignore[no-any-return]
        except (AttributeError, RuntimeError):
            return []


def _new_block(size: int, device: torch.device) -> torch.Tensor:
    """Uninitialized: torch.empty() would fill it under torch.use_deterministic_algorithms(), on the current stream."""
    storage = torch.UntypedStorage(size, device=device)  # type: ignore[no-untyped-call]
    return torch.empty(0, dtype=torch.uint8, device=device).set_(storage)


def _segments_of(stats: dict[str, Any]) -> tuple[int, ...]:
    """Figures that change when the cache grows or shrinks: segments allocated from the driver so far, and freed (torch.xpu does not
    count them), and their bytes."""
    segments = stats["segment"]["all"] if "segment" in stats else {"allocated": 0, "freed": 0}
    return segments["allocated"], segments["freed"], _bytes(stats, "reserved")


def _bytes(stats: dict[str, Any], kind: str, when: str = "current") -> int:
    """Bytes in a statistic; 0 if torch has no such one, as torch.xpu has none of free parts of segments in use."""
    return int(stats[f"{kind}_bytes"]["all"][when]) if f"{kind}_bytes" in stats else 0


def capturing(device: torch.device) -> bool:
    """True if torch's queue is being recorded."""
    module = torch.get_device_module(device)
    if not hasattr(module, "is_current_stream_capturing"):  # torch.xpu before 2.15, which records nothing
        return False
    if module.current_device() == device.index:
        return bool(module.is_current_stream_capturing())
    with module.device(device):
        return bool(module.is_current_stream_capturing())


cache_of = functools.cache(Cache)
