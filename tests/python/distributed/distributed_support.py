"""Processes that run jobs together over gloo. They start once, because importing torch takes longer than the jobs."""

from __future__ import annotations

import atexit
import functools
import gc
import importlib
import inspect
import os
import tempfile
import traceback
from collections.abc import Callable
from datetime import timedelta
from multiprocessing.connection import Connection
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any, TypeAlias, TypeVar

import torch
import torch.distributed as dist
import torch.multiprocessing as mp

T = TypeVar("T")
Call: TypeAlias = tuple[Callable[..., Any], tuple[Any, ...], dict[str, Any]]

MOST = 4
# torch imports the last one when it makes the first optimizer.
PRELOADED = [
    "lowtide.distributed", "torch.distributed.checkpoint.state_dict", "torch.distributed.fsdp", "torch._dynamo",
]  # fmt: skip
TIMEOUT = 120  # seconds that a job may take; a rank that waits for another in vain fails before


MOST_LOOPS = 6  # of process groups that are gone: then processes are started anew
MOST_TRIES = 3  # to form a process group: gloo's own connections fail once in some ten thousand on a busy machine


def _join(rank: int, world: int, store: Path) -> None:
    os.environ.update(RANK=str(rank), WORLD_SIZE=str(world), LOCAL_RANK=str(rank))
    dist.init_process_group(
        "gloo", init_method=f"file://{store}", rank=rank, world_size=world, timeout=timedelta(seconds=20)
    )


def _leave() -> None:
    if dist.is_initialized():
        dist.destroy_process_group()


def _loops() -> int:
    """Threads left by gloo's process groups. Torch and frameworks keep some groups for good, and the thread of a group whose
    other ranks are gone keeps a core busy."""

    def name(task: Path) -> str:
        try:
            return (task / "comm").read_text()
        except OSError:  # the thread ended after it was listed
            return ""

    return sum(name(task).startswith("gloo") for task in Path("/proc/self/task").iterdir())


def _answer(function: Callable[..., Any], *args: Any, **kwargs: Any) -> tuple[bool, Any]:
    try:
        return True, function(*args, **kwargs)
    except BaseException:
        return False, traceback.format_exc()


def _serve(rank: int, pipe: Connection) -> None:
    """Runs calls from the pipe, and sends back whether each returned, and what. A job ends with its process group."""
    os.environ["GLOO_SOCKET_IFNAME"] = "lo"
    os.environ["CUDA_VISIBLE_DEVICES"] = ""  # jobs are about the CPU: frameworks would take GPUs, and may find fewer than ranks
    torch.set_num_threads(1)
    gc.freeze()  # what was preloaded is for good
    while True:
        try:
            function, args, kwargs = pipe.recv()
        except EOFError:
            os._exit(0)  # torch takes seconds to clean up
        answer = _answer(function, *args, **kwargs)
        if function is not _join or not answer[0]:
            _leave()
        pipe.send(answer)


class Ranks:
    """`count` processes. A job runs on the first `world` of them, in its own process group."""

    def __init__(self, count: int = MOST) -> None:
        self._count = count
        self._folder = tempfile.TemporaryDirectory()
        self._groups = 0
        self._pipes: list[Connection] = []
        self._processes: list[BaseProcess] = []

    def _start(self) -> None:
        context = mp.get_context("forkserver")
        context.set_forkserver_preload(PRELOADED)
        for rank in range(self._count):
            here, there = context.Pipe()
            process = context.Process(target=_serve, args=(rank, there), daemon=True)
            process.start()
            there.close()
            self._pipes.append(here)
            self._processes.append(process)

    def run(self, world: int, function: Callable[..., Any], *args: Any, **kwargs: Any) -> list[Any]:
        """Runs `function` of an importable module. Returns results by rank, or raises with the ranks' tracebacks."""
        if not self._pipes:
            self._start()
        for _ in range(MOST_TRIES):
            self._groups += 1
            store = Path(self._folder.name) / str(self._groups)
            _, failures = self._call([(_join, (rank, world, store), {}) for rank in range(world)])
            if not failures:
                break
            self._call([(_leave, (), {})] * world)  # some ranks may have joined
        assert not failures, "\n".join(failures)
        answers, failures = self._call([(function, args, kwargs)] * world)
        if max(self._call([(_loops, (), {})] * self._count)[0]) > MOST_LOOPS:
            self._stop()
        assert not failures, "\n".join(failures)
        return answers

    def _call(self, calls: list[Call]) -> tuple[list[Any], list[str]]:
        """Returns each rank's result, and the tracebacks of ranks that raise."""
        for pipe, call in zip(self._pipes, calls):
            pipe.send(call)
        answers, failures = [], []
        for rank, pipe in enumerate(self._pipes[: len(calls)]):
            if not pipe.poll(TIMEOUT):
                self._stop()
                raise AssertionError(f"rank {rank} of {len(calls)} did not answer within {TIMEOUT} s")
            good, answer = pipe.recv()
            answers.append(answer)
            if not good:
                failures.append(f"rank {rank} of {len(calls)}:\n{answer}")
        return answers, failures

    def _stop(self) -> None:
        for pipe, process in zip(self._pipes, self._processes, strict=True):
            pipe.close()
            process.kill()
            process.join()
        self._pipes, self._processes = [], []

    def close(self) -> None:
        self._stop()
        self._folder.cleanup()


@functools.cache
def shared_ranks() -> Ranks:
    """The ranks of this test run, started with the first call."""
    ranks = Ranks()
    atexit.register(ranks.close)
    return ranks


def on_ranks(count: int | None = None) -> Callable[[Callable[..., str | None]], Callable[..., None]]:
    """Calls the test on each of `count` ranks, or of as many as its argument `world` or `layout` says, with pytest's arguments.
    Rank 0 returns the figure, if any."""

    def made(job: Callable[..., str | None]) -> Callable[..., None]:
        def test(figure: Callable[[str], None], **given: Any) -> None:
            world = count or given.get("world") or given["layout"].world
            told = shared_ranks().run(world, _call_job, job.__module__, job.__name__, given)[0]
            if told:
                figure(told)

        figure = inspect.Parameter("figure", inspect.Parameter.KEYWORD_ONLY)
        test.__name__, test.__module__, test.__doc__ = job.__name__, job.__module__, job.__doc__
        test.__signature__ = inspect.Signature([*inspect.signature(job).parameters.values(), figure])  # type: ignore[attr-defined]
        test.job = job  # type: ignore[attr-defined]
        return test

    return made


def _call_job(module: str, name: str, given: dict[str, Any]) -> str | None:
    told: str | None = getattr(importlib.import_module(module), name).job(**given)
    return told


def of_all(value: T) -> list[T]:
    """Gathers each rank's value on all ranks."""
    every: list[Any] = [None] * dist.get_world_size()
    dist.all_gather_object(every, value)
    return every


def alike(value: T) -> T:
    """Returns the value, which all ranks must share."""
    every = of_all(value)
    assert all(one == value for one in every), f"ranks differ: {every!r:.2000}"
    return value


def differing(a: dict[str, bytes], b: dict[str, bytes]) -> list[str]:
    assert a.keys() == b.keys(), sorted(a.keys() ^ b.keys())
    return [name for name in a if a[name] != b[name]]


def same(one: dict[str, bytes], other: dict[str, bytes], what: object = "") -> int:
    """Compares bytes, none of which may differ, and returns their number."""
    assert differing(one, other) == [], what
    return size(one)


def size(found: dict[str, bytes]) -> int:
    return sum(map(len, found.values()))
