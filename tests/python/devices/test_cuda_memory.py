"""How much of torch's CUDA memory counts as free. Torch's figures, explained in its documentation of memory_stats() and
memory_snapshot(), are invented here, so no device is needed."""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable
from typing import Any

import pytest
import torch
from lowtide.devices import torch_memory

GIB = 1 << 30
DEVICE = torch.device("cuda", 0)


class Torch:
    """A device of 80 GiB and torch's cache, with segments of one size."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.allocated = self.peak = self.split = self.waiting = 0
        self.reserved = 0  # in ordinary segments
        self.pools: list[dict[str, Any]] = []
        self.segments = self.snapshots = self.asked = self.beside = 0
        self.capturing = False
        stand_ins = {
            "mem_get_info": self.mem_get_info,
            "memory_stats_as_nested_dict": lambda _: self.stats(),
            "memory_snapshot": self.snapshot,
            "ExternalStream": lambda queue, device: ("stream", queue, device),
            "default_stream": lambda device: ("default stream", device),
        }
        for name, stand_in in stand_ins.items():
            monkeypatch.setattr(torch.cuda, name, stand_in)
        monkeypatch.setattr(torch_memory, "capturing", lambda _: self.capturing)
        monkeypatch.setattr(torch_memory, "_new_block", lambda size, _: Block(self, size))
        self.blocks = 0
        self.recorded: list[tuple[int, Any]] = []

    def kept(self) -> int:
        return self.reserved + sum(pool["total_size"] for pool in self.pools)

    def mem_get_info(self, _: torch.device) -> tuple[int, int]:
        self.asked += 1
        return 80 * GIB - self.kept() - self.beside, 80 * GIB

    def stats(self) -> dict[str, Any]:
        self.peak = max(self.peak, self.allocated)
        return {
            "allocated_bytes": {"all": {"current": self.allocated, "peak": self.peak}},
            "active_bytes": {"all": {"current": self.allocated + self.waiting}},
            "inactive_split_bytes": {"all": {"current": self.split}},
            "reserved_bytes": {"all": {"current": self.kept()}},
            "segment": {"all": {"allocated": self.segments, "freed": 0}},
        }

    def snapshot(self) -> list[dict[str, Any]]:
        self.snapshots += 1
        ordinary = {"device": 0, "total_size": self.reserved, "active_size": 0, "segment_pool_id": (0, 0)}
        return [ordinary, *self.pools]

    def use(self, size: int) -> None:
        self.allocated += size
        self.reserved = max(self.reserved, self.allocated)
        self.stats()


class Block:
    def __init__(self, cuda: Torch, size: int) -> None:
        cuda.use(size)
        cuda.blocks += 1
        self._cuda, self._address, self.nbytes = cuda, 512 * cuda.blocks, size

    def data_ptr(self) -> int:
        return self._address

    def record_stream(self, stream: Any) -> None:
        self._cuda.recorded.append((self._address, stream))

    def __del__(self) -> None:
        self._cuda.allocated -= self.nbytes


@pytest.fixture
def cuda(monkeypatch: pytest.MonkeyPatch) -> Torch:
    return Torch(monkeypatch)


def step(cuda: Torch, cache: torch_memory.Cache, activations: int) -> int:
    """The room that the optimizer finds after a backward pass with this many bytes of activations."""
    cuda.use(activations)
    cuda.allocated -= activations
    return cache.room()


def test_activations_come_again(cuda: Torch, figure: Callable[[str], None]) -> None:
    cache = torch_memory.Cache(DEVICE)
    cuda.use(20 * GIB)  # parameters and gradients
    assert step(cuda, cache, 30 * GIB) == 30 * GIB, "what nothing needed at the peak"
    assert cache.free() == 60 * GIB, "now, between backward and the step, there is more"
    state = cache.allocate(25 * GIB)
    for _ in range(3):
        assert step(cuda, cache, 30 * GIB) == 5 * GIB
    cache.release(state)  # state gives way; torch's peak stays
    assert step(cuda, cache, 30 * GIB) == 30 * GIB
    state = cache.allocate(25 * GIB)
    assert step(cuda, cache, 35 * GIB) == 0
    cache.release(state)
    assert step(cuda, cache, 30 * GIB) == 25 * GIB, "one large batch counts until a reset"
    cuda.peak = 0  # torch.cuda.reset_peak_memory_stats()
    assert step(cuda, cache, 10 * GIB) == 50 * GIB
    figure("room at the peak, with state and without, before and after a reset")


def test_state_that_comes_after_the_peak_has_its_room_once(cuda: Torch, figure: Callable[[str], None]) -> None:
    cache = torch_memory.Cache(DEVICE)
    cuda.use(20 * GIB)
    assert step(cuda, cache, 30 * GIB) == 30 * GIB
    cache.allocate(20 * GIB)  # the state of one optimizer; another steps behind the same backward pass
    assert cache.room() == 10 * GIB
    cache.allocate(10 * GIB)
    assert cache.room() == 0
    assert step(cuda, cache, 30 * GIB) == 0
    figure("two optimizers, 20 and 10 GiB of state beside 50 GiB of others' on 80 GiB")


def test_buckets_take_no_more_than_the_room(cuda: Torch, figure: Callable[[str], None]) -> None:
    cache = torch_memory.Cache(DEVICE)
    cuda.use(20 * GIB)
    cuda.use(30 * GIB)
    cuda.allocated -= 30 * GIB
    held = 0
    for _ in range(218):  # step_in_backward: each brings state, and no forward pass is between them
        size = min(GIB, cache.room())
        if size:
            cache.allocate(size)
            held += size
    assert held == 30 * GIB
    assert step(cuda, cache, 30 * GIB) == 0 and cuda.peak == 80 * GIB
    figure("218 buckets of 1 GiB take 30 GiB beside 50; the second iteration's peak is 80 of 80 GiB")


def test_the_peak_is_that_beside_the_state_of_its_time(cuda: Torch) -> None:
    cache = torch_memory.Cache(DEVICE)
    cuda.use(20 * GIB)
    cuda.use(30 * GIB)  # a forward pass, and then slots for a while: they were not there at the peak
    cuda.allocated -= 30 * GIB
    slots = cache.allocate(5 * GIB)
    cache.release(slots)
    assert cache.room() == 30 * GIB
    slots = cache.allocate(5 * GIB)
    cuda.use(30 * GIB)
    cuda.allocated -= 30 * GIB
    cache.release(slots)
    assert cache.room() == 30 * GIB, "55 GiB, 5 of them slots"


def test_threads_share_a_cache(cuda: Torch) -> None:
    cache = torch_memory.Cache(DEVICE)
    cuda.use(GIB)
    for _ in range(5000):
        cache.allocate(512)
    errors: list[BaseException] = []
    stop = threading.Event()

    def allocate() -> None:
        try:
            while not stop.is_set():
                for address in [cache.allocate(512) for _ in range(50)]:
                    cache.release(address)
        except BaseException as error:
            errors.append(error)

    other = threading.Thread(target=allocate)
    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    try:
        other.start()
        for _ in range(50):
            cache.room()
    finally:
        stop.set()
        other.join()
        sys.setswitchinterval(before)
    assert not errors
    cuda.use(GIB)
    assert cache.room() == 80 * GIB - cuda.allocated


@pytest.mark.parametrize("missing", ["memory_snapshot", "memory_stats_as_nested_dict"])
def test_other_allocators_have_fewer_figures(cuda: Torch, monkeypatch: pytest.MonkeyPatch, missing: str) -> None:
    """Torch raises with backend:cudaMallocAsync and with users' allocators."""
    words = {"memory_snapshot": "is not meaningful", "memory_stats_as_nested_dict": "does not yet support getDeviceStats"}

    def refuse(*_: Any) -> Any:
        raise RuntimeError(f"CUDAPluggableAllocator {words[missing]}")

    monkeypatch.setattr(torch.cuda, missing, refuse)
    cache = torch_memory.Cache(DEVICE)
    cuda.use(20 * GIB)
    cuda.segments = 1
    cache.allocate(10 * GIB)
    assert cache.free() == cache.room() == 50 * GIB


def test_steps_ask_the_driver_where_something_may_have_changed(cuda: Torch, figure: Callable[[str], None]) -> None:
    cache = torch_memory.Cache(DEVICE)
    assert step(cuda, cache, 10 * GIB) == 70 * GIB
    for _ in range(torch_memory._OLD - 1):
        assert step(cuda, cache, 10 * GIB) == 70 * GIB
    assert cuda.asked == 1
    cuda.reserved -= GIB  # given back to the driver, and taken by somebody else
    cuda.beside = GIB
    assert step(cuda, cache, 9 * GIB) == 69 * GIB and cuda.asked == 2
    cuda.segments += 1
    cuda.beside += GIB
    assert step(cuda, cache, 9 * GIB) == 68 * GIB and cuda.asked == 3
    cuda.beside += GIB
    rooms = [step(cuda, cache, 9 * GIB) for _ in range(torch_memory._OLD)]
    assert rooms == [68 * GIB] * (torch_memory._OLD - 1) + [67 * GIB] and cuda.asked == 4
    cuda.beside += GIB
    assert cache.free() == 76 * GIB and step(cuda, cache, 9 * GIB) == 66 * GIB, "who asks for now is told of now"
    figure(f"the driver is asked every {torch_memory._OLD} steps")


def test_blocks_are_never_filled() -> None:
    """A kernel on the current stream, which nobody waits for, would fill them. Tested on the CPU, where torch fills by the same
    rule."""
    before = torch.get_deterministic_debug_mode()
    torch.set_deterministic_debug_mode("error")
    try:
        filled = torch.empty(1 << 20, dtype=torch.uint8)
        block = torch_memory._new_block(1 << 20, torch.device("cpu"))
    finally:
        torch.set_deterministic_debug_mode(before)
    assert filled.min() == 255 and block.min() < 255
    assert block.nbytes == 1 << 20 and block.data_ptr() == block.untyped_storage().data_ptr()


def test_blocks_know_the_streams_that_use_them(cuda: Torch) -> None:
    cache = torch_memory.Cache(DEVICE)
    one, other = cache.allocate(GIB), cache.allocate(GIB)
    cache.note_use(other, 77)
    cache.note_use(other, 0)  # torch would make ExternalStream(0) a new stream
    assert cuda.recorded == [(other, ("stream", 77, DEVICE)), (other, ("default stream", DEVICE))]
    assert cuda.allocated == 2 * GIB
    cache.release(other)
    cache.release(one)
    assert cuda.allocated == 0


def test_what_torch_keeps_is_not_all_free(cuda: Torch, figure: Callable[[str], None]) -> None:
    cache = torch_memory.Cache(DEVICE)
    cuda.use(10 * GIB)
    cuda.reserved = 40 * GIB
    cuda.segments = 1
    assert cache.free() == 70 * GIB
    cuda.split = 4 * GIB
    assert cache.free() == 66 * GIB, "fragments"
    cuda.waiting = 2 * GIB
    assert cache.free() == 64 * GIB, "memory that another stream still uses"
    # Segments of graphs: one is idle between replays, the free part of the other is a fragment already.
    for total, active in ((8 * GIB, 0), (6 * GIB, 3 * GIB)):
        cuda.pools.append({"device": 0, "total_size": total, "active_size": active, "segment_pool_id": (0, 1)})
    cuda.allocated += 3 * GIB
    cuda.split += 3 * GIB
    cuda.segments = 2
    assert cache.free() == (80 - 10 - 4 - 2 - 8 - 6) * GIB, "pools of graphs"
    before = cuda.snapshots
    for _ in range(10):
        cache.free()
    assert cuda.snapshots == before, "looked at again only where the cache has other segments"
    cuda.capturing = True
    assert cache.free() == cache.room() == -1
    figure(f"fragments, pending memory and pools are left out; {cuda.snapshots} snapshots")
