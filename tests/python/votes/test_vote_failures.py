"""When workers die in a vote, nobody hangs, and survivors with equally many steps have the same parameters."""

from __future__ import annotations

import os
import random
import signal
import time
import zlib
from collections.abc import Callable
from datetime import timedelta
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from distributed_support import shared_ranks
from lowtide.distributed import DistributedLion, SignVote, Signum
from vote_jobs import by_bucket


def train(rank: int, world: int, store: str, kind: str, timeout: float, pipe: Connection) -> None:
    """Sends "ready", for each step its number and a hash of the parameters after it, and at the end the error."""
    os.environ["GLOO_SOCKET_IFNAME"] = "lo"
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"file://{store}", rank=rank, world_size=world, timeout=timedelta(seconds=60))
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(30, 40), torch.nn.ReLU(), torch.nn.Linear(40, 30))
    forward: Any = model
    opt: torch.optim.Optimizer
    if kind == "hook":
        forward = torch.nn.parallel.DistributedDataParallel(model, bucket_cap_mb=0.002)
        by_bucket(SignVote(forward, timeout=timeout)).register(forward)
        opt = torch.optim.SGD(model.parameters(), lr=1e-3)
    else:
        opt = {"lion": DistributedLion, "signum": Signum}[kind](model.parameters(), lr=1e-3, vote={"timeout": timeout})
    pipe.send(("ready",))
    number = 0
    try:
        while True:
            opt.zero_grad()
            forward(torch.randn(4, 30)).square().mean().backward()
            opt.step()
            number += 1
            found = b"".join(param.detach().numpy().tobytes() for param in model.parameters())
            pipe.send(("step", number, zlib.crc32(found)))
    except Exception as error:
        pipe.send(("error", type(error).__name__, str(error), time.monotonic()))
    os._exit(0)  # a dead group's destructor would wait


SLACK = 10.0  # seconds beyond the timeout, for a busy machine


class Workers:
    def __init__(self, kind: str, store: Path, world: int, timeout: float) -> None:
        context = mp.get_context("forkserver")
        self.pipes, self.processes = [], []
        self.told: list[list[Any]] = [[] for _ in range(world)]
        for rank in range(world):
            here, there = context.Pipe()
            args = (rank, world, str(store), kind, timeout, there)
            process = context.Process(target=train, args=args, daemon=True)
            process.start()
            there.close()
            self.pipes.append(here)
            self.processes.append(process)

    def listen(self, rank: int, seconds: float, messages: int = 2**31) -> bool:
        """Reads that many messages of a worker; returns whether the worker has ended (or died)."""
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
    shared_ranks()  # makes the server of processes import the ranks' modules
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
