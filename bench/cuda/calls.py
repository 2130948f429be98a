"""The host's part of a step: how long a call takes with many tensors, and a fork of a process with pinned state."""

from __future__ import annotations

import os
import statistics
import time
from typing import Any

import torch

from bench.common import contenders as rivals
from bench.cuda import contenders, shapes
from bench.cuda.device import Gpu, bytes_of
from bench.cuda.paged import DEVICE
from bench.cuda.resident import ALL_FITS
from bench.cuda.rows import Absent, Rows
from bench.cuda.timing import Step, in_turns

OWN = "Lowtide, default"
FORKS = 5
PINNED = 512 << 20


def calls(gpu: Gpu, rows: Rows) -> None:
    params = gpu.parameters(shapes.LLAMA_100M.shapes(gpu.size(32, 1))[: gpu.size(1000, 6)], torch.bfloat16)
    own = contenders.lowtide_adamw(gpu, params, memory=contenders.budget(gpu, device=ALL_FITS), nonfinite="skip")
    steps = {OWN: Step(contenders.settle(gpu, own).step)}
    others: dict[str, Any] = {
        "torch AdamW(fused)": rivals.torch_fused,
        "bitsandbytes AdamW8bit": rivals.bitsandbytes,
    }
    for label, make in others.items():

        def add(label: str = label, make: Any = make) -> None:
            optimizer = make(params, lr=contenders.LR)
            optimizer.step()
            steps[label] = Step(optimizer.step)

        rows.attempt(f"{len(params)} tensors: {label}", add)
    found = in_turns(gpu, steps, seconds=10, rounds=60, idle=True)
    for label, series in found.items():
        rows.add(f"{len(params)} tensors of {sum(map(torch.numel, params)) / 1e6:.0f} M parameters: {label}, call",
                 series.median("call") * 1e6, "us", "call" if label == OWN else None, **series.data())  # fmt: skip
    alone = in_turns(gpu, {OWN: steps[OWN]}, seconds=2, rounds=60, idle=True)[OWN]  # its data stay in the processor's caches
    rows.add(f"{len(params)} tensors: {OWN}, alone, call", alone.median("call") * 1e6, "us", **alone.data())
    rows.attempt(f"{len(params)} tensors: {OWN}, calls of CUDA", lambda: profile(gpu, rows, own))


def profile(gpu: Gpu, rows: Rows, optimizer: Any) -> None:
    """Which functions of CUDA's runtime and driver a step calls, how often and for how long."""
    if gpu.rehearsed:
        raise Absent("a rehearsal has no CUDA runtime")
    activities = torch.profiler.ProfilerActivity
    optimizer.step()
    gpu.cuda.synchronize()
    with torch.profiler.profile(activities=[activities.CPU, activities.CUDA]) as profiled:
        with torch.profiler.record_function(OWN):
            optimizer.step()
        gpu.cuda.synchronize()  # the profiler also makes this call at its end
    events = [event for event in profiled.events() if event.device_type == torch.autograd.DeviceType.CPU]
    span = next(event.time_range for event in events if event.name == OWN)
    found: dict[str, tuple[int, float]] = {}
    for event in events:
        if event.name.startswith("cu") and span.start <= event.time_range.start <= span.end:
            count, us = found.get(event.name, (0, 0.0))
            found[event.name] = count + 1, us + event.time_range.elapsed_us()
    told = ", ".join(f"{count} {name} ({us:.0f} us)" for name, (count, us) in sorted(found.items(), key=lambda one: -one[1][1]))
    rows.add(f"{OWN}, calls of CUDA in a step: {told}", sum(count for count, _ in found.values()), "", names=found)


def fork_seconds() -> float:
    """The time until the child exists. The child ends at once."""
    start = time.perf_counter()
    child = os.fork()
    if child == 0:
        os._exit(0)
    took = time.perf_counter() - start
    os.waitpid(child, 0)
    return took


def fork(gpu: Gpu, rows: Rows) -> None:
    """A DataLoader worker is a fork. The kernel copies pinned pages at once, unless they are excluded from it."""
    before = statistics.median(fork_seconds() for _ in range(FORKS))
    params = gpu.parameters(shapes.equal(gpu.size((PINNED + bytes_of(DEVICE)) // 2, 200_000), 4), torch.bfloat16)
    optimizer = contenders.lowtide_adamw(gpu, params, memory=contenders.budget(gpu, device=DEVICE))
    optimizer.step()
    gpu.cuda.synchronize()
    after = statistics.median(fork_seconds() for _ in range(FORKS))
    rows.add("fork with pinned state: what it takes more", (after - before) * 1e3, "ms", "fork",
             without_ms=before * 1e3, with_ms=after * 1e3,
             pinned_bytes=optimizer.report()["allocated_bytes"])  # fmt: skip
    optimizer.step()  # the parent's memory must be whole
    gpu.cuda.synchronize()


CASES = {"calls.tensors": calls, "calls.fork": fork}
