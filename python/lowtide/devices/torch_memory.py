"""Torch's cache of GPU memory (torch.cuda, torch.xpu): Lowtide takes device memory from it and estimates how much more fits."""

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
        self._lock = threading.RLock()  # allocate() may trigger garbage collection, which may call release()
        self._blocks: dict[int, torch.Tensor] = {}  # Lowtide's blocks, by address
        self._held = 0  # bytes of Lowtide's blocks
        self._peak = 0  # torch's peak, when last read
        self._others = 0  # the most bytes that others held, by torch's peak
        self._segments: tuple[int, ...] | None = None  # the cache's segments when _pools was counted
        self._pools = 0
        self._driver = -1  # the driver's last answer; its age in steps and the cache's size then follow
        self._age = 0
        self._kept: tuple[int, ...] | None = None

    # The interface that the core requires of a source of memory.

    def allocate(self, size: int) -> int:
        """Allocates `size` bytes aligned to 256; returns 0 if out of memory."""
        self._note_peak(self._stats())
        try:
            block = _new_block(size, self._device)
        except OutOfMemory:
            return 0
        except RuntimeError as error:  # the core understands only "no memory"
            logger.warning("torch could not allocate %d bytes on %s: %s", size, self._device, error)
            return 0
        with self._lock:
            self._blocks[block.data_ptr()] = block
            self._held += block.nbytes
        return block.data_ptr()

    def note_use(self, address: int, queue: int) -> None:
        """Makes the cache keep a freed block until the work queued so far on that stream is done. No torch stream waits for it.
        Blocks are tensors because only tensors can record this."""
        stream: torch.Stream
        if self._device.type == "xpu":
            stream = torch.xpu.get_stream_from_external(queue, self._device)
        elif queue:
            stream = torch.cuda.ExternalStream(queue, device=self._device)  # type: ignore[no-untyped-call]
        else:
            stream = torch.cuda.default_stream(self._device)  # ExternalStream(0) would be a new stream
        self._blocks[address].record_stream(stream)

    def release(self, address: int) -> None:
        """Frees a block. The cache may reuse it behind the work queued on the current stream."""
        self._note_peak(self._stats())
        with self._lock:
            self._held -= self._blocks.pop(address).nbytes


    def free(self) -> int:
        """Bytes that nothing else needs now; -1: unknown."""
        self._kept = None
        return self._beside(self._stats(), 0)

    def room(self) -> int:
        """Bytes free even at the peak of a step; -1: unknown. Activations are gone between backward and the optimizer's step,
        but come back. Torch's peak includes state and does not follow when state moves, so others need the peak minus the state
        held then."""
        stats = self._stats()
        self._note_peak(stats)
        return self._beside(stats, self._others + self._held)

    def _note_peak(self, stats: dict[str, Any] | None) -> None:
        """Updates the peak. Call it before state moves and before the peak is used, so that Lowtide's share was constant since
        the last call."""
        if stats is None:
            return
        peak = _bytes(stats, "allocated", "peak")
        with self._lock:
            if peak != self._peak:
                before = self._others if peak > self._peak else 0  # a lower peak has been reset
                self._others = max(before, peak - self._held)
                self._peak = peak

    def _beside(self, stats: dict[str, Any] | None, needed: int) -> int:
        """Bytes free beside `needed` bytes, or beside the bytes now in use if there are more."""
        if capturing(self._device):  # a recorded graph must not depend on it
            return -1
        free = self._free_of_driver(stats)
        if stats is None or free < 0:
            return free
        # A fragment, a free part of a segment in use, serves small tensors but not chunks of state.
        in_use = _bytes(stats, "active") + _bytes(stats, "inactive_split")
        return max(free + _bytes(stats, "reserved") - self._unused_pools(stats) - max(in_use, needed), 0)

    def _free_of_driver(self, stats: dict[str, Any] | None) -> int:
        """Bytes that the driver has free; -1: unknown. On a device shared by many processes the driver takes milliseconds to
        answer, so the last answer is reused while the cache keeps its size, for at most `_OLD` steps, because other processes
        also take memory."""
        kept = None if stats is None else _segments_of(stats)
        self._age += 1
        if kept is None or kept != self._kept or self._age >= _OLD:
            try:
                free, _ = self._torch.mem_get_info(self._device)
            except RuntimeError:  # not reported, or the device is lost, which the step will report
                return -1
            self._driver, self._kept, self._age = int(free), kept, 0
        return self._driver

    def _stats(self) -> dict[str, Any] | None:
        """Torch's statistics; None before its first allocation or with a custom allocator. (memory_reserved() would sort and
        flatten all of them each time.)"""
        try:
            return self._torch.memory_stats_as_nested_dict(self._device) or None
        except RuntimeError:
            return None

    def _unused_pools(self, stats: dict[str, Any]) -> int:
        """Bytes of idle segments that belong to graphs or to the user's pools, which nothing else may use. Counting is slow, so
        it happens only after the cache's segments have changed."""
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
        """All segments of the cache; none if torch does not report them, or uses cudaMallocAsync or a custom allocator."""
        try:
            return self._torch.memory_snapshot()  # type: ignore[no-any-return]
        except (AttributeError, RuntimeError):
            return []


def _new_block(size: int, device: torch.device) -> torch.Tensor:
    """An uninitialized block. Under torch.use_deterministic_algorithms(), torch.empty() would fill it, on the current
    stream."""
    storage = torch.UntypedStorage(size, device=device)  # type: ignore[no-untyped-call]
    return torch.empty(0, dtype=torch.uint8, device=device).set_(storage)


def _segments_of(stats: dict[str, Any]) -> tuple[int, ...]:
    """Figures that change when the cache grows or shrinks: how many segments were allocated and freed so far (torch.xpu does
    not count them), and their bytes."""
    segments = stats["segment"]["all"] if "segment" in stats else {"allocated": 0, "freed": 0}
    return segments["allocated"], segments["freed"], _bytes(stats, "reserved")


def _bytes(stats: dict[str, Any], kind: str, when: str = "current") -> int:
    """Bytes in a statistic; 0 if torch lacks it, as torch.xpu lacks free parts of segments in use."""
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
