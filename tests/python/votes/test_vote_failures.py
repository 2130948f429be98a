"""Workers that die while others vote: nobody hangs, and whoever has taken as many steps has the same parameters."""

from __future__ import annotations

import os
import random
import signal
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch.multiprocessing as mp
import vote_failure_jobs
from distributed_support import shared_ranks

SLACK = 10.0  # seconds beyond the timeout, for a machine that does other things


class Workers:
    def __init__(self, kind: str, store: Path, world: int, timeout: float) -> None:
        context = mp.get_context("forkserver")
        self.pipes, self.processes = [], []
        self.told: list[list[Any]] = [[] for _ in range(world)]
        for rank in range(world):
            here, there = context.Pipe()
            args = (rank, world, str(store), kind, timeout, there)
            process = context.Process(target=vote_failure_jobs.train, args=args, daemon=True)
            process.start()
            there.close()
            self.pipes.append(here)
            self.processes.append(process)

    def listen(self, rank: int, seconds: float, messages: int = 2**31) -> bool:
        """Reads a worker's messages until there are so many; returns whether it has ended (or died)."""
        until = time.monotonic() + seconds
        try:
            while len(self.told[rank]) < messages and self.pipes[rank].poll(max(0.0, until - time.monotonic())):
                self.told[rank].append(self.pipes[rank].recv())
        except (EOFError, OSError):
            return True
        return False

    def end(self) -> None:
        for pipe, process in zip(self.pipes, self.processes, strict=True):
            pipe.close()
            process.kill()
            process.join()


def lose_one(
    kind: str, store: Path, world: int, timeout: float, how: signal.Signals, rng: random.Random
) -> tuple[list[list[Any]], int, float]:
    """The workers' accounts, the lost ones, and the seconds until the last of the others had ended."""
    workers = Workers(kind, store, world, timeout)
    try:
        victim = rng.randrange(world)
        # In its first steps DistributedDataParallel has collectives of its own.
        workers.listen(victim, 60, messages=1 + rng.randrange(3, 10))
        time.sleep(rng.uniform(0.0, 0.02))
        os.kill(workers.processes[victim].pid, how)
        begun = time.monotonic()
        for rank in range(world):
            if rank != victim:
                left = begun + timeout + SLACK - time.monotonic()
                assert workers.listen(rank, left), f"rank {rank} hangs after {workers.told[rank][-1]}"
        seconds = time.monotonic() - begun
        workers.listen(victim, 0)
        return workers.told, victim, seconds
    finally:
        workers.end()


@pytest.mark.parametrize(
    ("kind", "losses", "world", "timeout", "how"),
    [
        ("lion", 8, 5, 5.0, signal.SIGKILL),
        ("signum", 6, 3, 5.0, signal.SIGKILL),
        ("hook", 6, 3, 5.0, signal.SIGKILL),
        ("lion", 1, 3, 3.0, signal.SIGSTOP),
        ("hook", 1, 3, 3.0, signal.SIGSTOP),
    ],
)
@pytest.mark.share
def test_a_lost_worker(
    kind: str, losses: int, world: int, timeout: float, how: signal.Signals, tmp_path: Path, seed: int,
    figure: Callable[[str], None],
) -> None:  # fmt: skip
    shared_ranks()  # has the server of processes import what they need
    rng = random.Random(seed)
    longest, steps, endings, apart = 0.0, 0, 0, 0
    for trial in range(losses):
        told, victim, seconds = lose_one(kind, tmp_path / str(trial), world, timeout, how, rng)
        longest = max(longest, seconds)
        by_step: dict[int, set[int]] = {}
        taken = []
        for rank, said in enumerate(told):
            for message in said:
                if message[0] == "step":
                    by_step.setdefault(message[1], set()).add(message[2])
            if rank == victim:
                continue
            taken.append(sum(message[0] == "step" for message in said))
            what, name, text, _ = said[-1]
            assert what == "error" and name == ("RuntimeError" if kind == "hook" else "ConnectionError"), said[-1]
            assert "not all workers took part" in text and "vote" in text, text
            endings += 1
        assert all(len(found) == 1 for found in by_step.values()), by_step
        assert max(taken) - min(taken) <= 1
        steps += len(by_step)
        apart += max(taken) - min(taken)
    assert steps
    figure(
        f"{kind}, {how.name}: {losses} losses of one of {world} workers, all {endings} others ended with "
        f"an error, the last after {longest:.1f} s (timeout {timeout:g} s); {steps} steps with the same "
        f"parameters everywhere; in {apart} trials some had taken a step more"
    )
