"""The link between host and device: copy engines by chunk size, one way and both at once, and the cost of pinning memory."""

from __future__ import annotations

import mmap
import subprocess
import time
from typing import Any

import torch

from bench.cuda import contenders, shapes
from bench.cuda.device import Gpu
from bench.cuda.rows import Rows
from bench.cuda.timing import Step, in_turns

MIB = 1 << 20
CHUNKS = (1, 4, 8, 16, 32, 64)  # MiB
USUAL_CHUNK = 16 * MIB  # of paged state, for comparison in other measurements


class Link:
    """Copies `count` bytes through the copy engines, in chunks, with one stream per direction."""

    def __init__(self, gpu: Gpu, count: int) -> None:
        self.gpu, self.count = gpu, count
        self.host = {way: gpu.pinned(count) for way in ("in", "out")}
        self.device = {way: torch.ones(count, dtype=torch.uint8, device=gpu.device) for way in ("in", "out")}
        self.streams = {way: gpu.cuda.Stream() for way in ("in", "out")}

    def copy(self, ways: tuple[str, ...], chunk: int) -> None:
        """Queues the copies behind the current stream, which waits until they end."""
        current = self.gpu.cuda.current_stream()
        for way in ways:
            self.streams[way].wait_stream(current)
        for at in range(0, self.count, chunk):
            for way in ways:
                here, there = self.host[way][at : at + chunk], self.device[way][at : at + chunk]
                with self.gpu.cuda.stream(self.streams[way]):
                    (there if way == "in" else here).copy_(here if way == "in" else there, non_blocking=True)
        for way in ways:
            current.wait_stream(self.streams[way])

    def steps(self, chunk: int = USUAL_CHUNK) -> dict[str, Step]:
        return {
            "in": Step(lambda: self.copy(("in",), chunk)),
            "out": Step(lambda: self.copy(("out",), chunk)),
            "both": Step(lambda: self.copy(("in", "out"), chunk)),
        }


def bus(gpu: Gpu) -> str:
    """The generation and width of the link now, from the driver. An idle link goes to sleep."""
    try:
        done = subprocess.run(
            ["nvidia-smi", "--query-gpu=pcie.link.gen.current,pcie.link.width.current", "--format=csv,noheader"],
            capture_output=True, text=True, timeout=20, check=True,
        )  # fmt: skip
        return done.stdout.strip().splitlines()[0]
    except (OSError, subprocess.SubprocessError, IndexError) as error:
        return f"unknown: {type(error).__name__}"


def copy_engines(gpu: Gpu, rows: Rows) -> None:
    count = gpu.size(512 * MIB, MIB)
    link = Link(gpu, count)
    base: dict[str, float] = {}
    for mib in reversed(CHUNKS):
        chunk = gpu.size(mib * MIB, max(1, mib * MIB // 1024))
        found = in_turns(gpu, link.steps(chunk), seconds=4)
        for way, series in found.items():
            rate = count / series.median() * 1e-9
            base.setdefault(way, rate)  # for the largest chunks
            rows.add(f"copy engines, {way}, chunks of {mib} MiB", rate, "GB/s each way",
                     to_largest_chunk=rate / base[way], **series.data())  # fmt: skip
    rows.add("both ways at once / one way alone, 64 MiB", base["both"] / min(base["in"], base["out"]), "x")
    link.copy(("in", "out"), USUAL_CHUNK)
    rows.add("link under load", 1, "", bus=bus(gpu))
    gpu.cuda.synchronize()


def pin(gpu: Gpu, rows: Rows) -> None:
    """Compares torch's pinned memory with own huge pages, registered in pieces of at most 1 GiB."""
    count = gpu.size(4 << 30, 4 * MIB)
    start = time.perf_counter()
    by_torch: Any = gpu.pinned(count)
    torch_s = time.perf_counter() - start
    del by_torch
    pages = mmap.mmap(-1, count, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    pages.madvise(mmap.MADV_HUGEPAGE)
    start = time.perf_counter()
    memory = torch.frombuffer(pages, dtype=torch.uint8)
    memory.fill_(1)  # with all threads of torch
    touched_s = time.perf_counter() - start
    piece, runtime, done = min(count, 1 << 30), gpu.cuda.cudart(), []
    try:
        for at in range(0, count, piece):
            error = int(runtime.cudaHostRegister(memory.data_ptr() + at, piece, 0))
            if error != 0:
                raise RuntimeError(f"cudaHostRegister of {piece} bytes: error {error}")
            done.append(at)
        own_s = time.perf_counter() - start
    finally:
        for at in done:
            runtime.cudaHostUnregister(memory.data_ptr() + at)
    gib = count / (1 << 30)
    rows.add("pinning: torch pin_memory", torch_s / gib, "s/GiB")
    rows.add("pinning: touch huge pages, then register", own_s / gib, "s/GiB", touched_s=touched_s / gib)
    rows.add("pinning: torch / huge pages", torch_s / own_s, "x")


def zero_copy(gpu: Gpu, rows: Rows) -> None:
    """Kernels that access host memory directly, as far as a step of the library does, with all state on the host."""
    count = gpu.elements(400_000_000, 200_000, 4, 4)
    params = gpu.parameters(shapes.equal(count, 4), torch.bfloat16)
    count = sum(param.numel() for param in params)
    moved = round(count * 2 * (1 + 4 / 256))  # bytes each way: codes and scales of two moments
    link = Link(gpu, moved)
    for transfer in ("copy", "zero_copy", "hybrid"):

        def measure(transfer: str = transfer) -> None:
            memory = contenders.budget(gpu, device="128MiB", transfer=transfer)
            optimizer = contenders.lowtide_adamw(gpu, params, memory=memory)
            found = in_turns(gpu, {"step": Step(optimizer.step), "link": link.steps()["both"]}, seconds=6, idle=True)
            step = found["step"].median("wall")
            rows.add(f"state on the host, {transfer}: rate / copy engines", found["link"].median("wall") / step,
                     "x", gb_per_s=moved / step * 1e-9, **found["step"].data())  # fmt: skip

        rows.attempt(f"transfer {transfer}", measure)


CASES = {"link.copy_engines": copy_engines, "link.pin": pin, "link.zero_copy": zero_copy}
