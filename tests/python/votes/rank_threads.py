"""Ranks of votes as threads of one process, which take turns: a collective between them copies memory, and costs next to
nothing. Lowtide's collective over a process group becomes one over the threads; what stands on it is as it is."""

from __future__ import annotations

import ctypes
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from typing import Any, TypeVar

import pytest
import torch
import torch.distributed as dist
from lowtide.devices.places import Place
from lowtide.distributed import collective, groups, hooks

TIMEOUT = 60  # seconds that a rank waits for the others

Result = TypeVar("Result")


class Inline:
    """Runs an executor's work at once: only one thread at a time uses the queues here."""

    def __init__(self, *_: Any, **__: Any) -> None:
        pass

    def submit(self, function: Callable[..., Any], *args: Any) -> Future[Any]:
        done: Future[Any] = Future()
        done.set_result(function(*args))
        return done


class RankThreads:
    """`size` ranks. moved: the kind of device whose memory the group moves itself, as NCCL would; None: no kind."""

    def __init__(self, patches: pytest.MonkeyPatch, size: int, moved: str | None = None) -> None:
        self.size, self.moved = size, moved
        self._turn, self._met = threading.Lock(), threading.Barrier(size)
        self._given: list[Any] = [None] * size
        self._local = threading.local()
        patches.setattr(dist, "get_rank", lambda group=None: self._local.rank)
        patches.setattr(dist, "get_world_size", lambda group=None: size)
        patches.setattr(dist, "is_initialized", lambda: True)
        patches.setattr(collective, "Transport", lambda group: Between(self, self._local.rank))
        patches.setattr(collective, "new_group", lambda group, timeout: group)
        patches.setattr(hooks, "ThreadPoolExecutor", Inline)

    def run(self, job: Callable[..., Result], *args: Any) -> list[Result]:
        """The job's results, by rank; raises the error of the first rank that failed."""
        found: list[Any] = [None] * self.size
        failures: list[tuple[bool, BaseException]] = []

        def rank_of(rank: int) -> None:
            self._local.rank = rank
            with self._turn:
                try:
                    found[rank] = job(*args)
                except BaseException as error:
                    failures.append((isinstance(error, threading.BrokenBarrierError), error))
                    self._met.abort()

        threads = [threading.Thread(target=rank_of, args=(rank,)) for rank in range(self.size)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        if failures:
            raise min(failures, key=lambda failure: failure[0])[1]
        return found

    def meet(self, rank: int, given: Any, take: Callable[[Sequence[Any]], Result]) -> Result:
        """Applies `take` to all ranks' `given`, which stay until every rank has its result."""
        self._given[rank] = given
        self._wait()
        taken = take(self._given)
        self._wait()
        return taken

    def _wait(self) -> None:
        self._turn.release()
        try:
            self._met.wait(TIMEOUT)
        finally:
            self._turn.acquire()


class Between(groups.Transport):
    """One rank's transport."""

    def __init__(self, ranks: RankThreads, rank: int) -> None:
        self.group = None
        self.rank, self.size = rank, ranks.size
        self.device = torch.device("cpu")
        self._ranks = ranks
        self._movers = {ranks.moved} if ranks.moved else set()
        self.moved_bytes = 0  # of tensors of the device

    def all_to_all(self, send: int, receive: int, each: int) -> None:
        def take(every: Sequence[int]) -> None:
            for rank, address in enumerate(every):
                ctypes.memmove(receive + rank * each, address + self.rank * each, each)

        self._ranks.meet(self.rank, send, take)

    def all_gather(self, send: int, receive: int, each: int) -> None:
        def take(every: Sequence[int]) -> None:
            for rank, address in enumerate(every):
                ctypes.memmove(receive + rank * each, address, each)

        self._ranks.meet(self.rank, send, take)

    def sum(self, values: torch.Tensor) -> torch.Tensor:
        return self._ranks.meet(self.rank, values, lambda every: torch.stack(list(every)).sum(0))

    def exchange(self, send: torch.Tensor, receive: torch.Tensor) -> None:
        assert send.shape == receive.shape == (self.size, send.shape[1]) and send.is_contiguous()
        self.moved_bytes += (self.size - 1) * send.shape[1]
        self._ranks.meet(self.rank, send, lambda every: receive.copy_(torch.stack([one[self.rank] for one in every])))

    def collect(self, mine: torch.Tensor, every: torch.Tensor) -> None:
        assert every.shape == (self.size, mine.numel()) and mine.is_contiguous()
        self.moved_bytes += (self.size - 1) * mine.numel()
        self._ranks.meet(self.rank, mine, lambda given: every.copy_(torch.stack(list(given))))

    def moves(self, place: Place) -> bool:
        return place.device.type == self._ranks.moved
