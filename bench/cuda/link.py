"""The link between host and device: copy engines by chunk size, one way and both at once."""

from __future__ import annotations

import subprocess

import torch

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


CASES = {"link.copy_engines": copy_engines}
