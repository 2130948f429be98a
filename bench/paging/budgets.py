"""Row "budgets": steps with state in RAM, under a budget that holds it, half on disk, and all on disk, beside the raw
rate of the disk, in rounds of one process."""

from __future__ import annotations

import statistics
import subprocess
import time

import torch
from paging.programs import raw_disk

import lowtide

BLOCK = 1 << 20  # as ScratchFile cuts its requests
SLOTS = 4  # of the ring


def optimizer(param: torch.nn.Parameter, state: str, memory: lowtide.Memory | None) -> lowtide.AdamW:
    return lowtide.AdamW([param], lr=1e-4, state=state, memory=memory, nonfinite="propagate")


def timed(step: object) -> float:
    start = time.perf_counter()
    step()  # type: ignore[operator]
    return time.perf_counter() - start


def measure(
    elements: int, state: str, disk: str, chunk: int, rounds: int, disk_rate: int | None
) -> dict[str, float]:
    """`disk_rate`: bytes/s each way that the disk is limited to."""
    param = torch.nn.Parameter(torch.randn(elements // 1024, 1024) * 0.02)
    param.grad = torch.randn_like(param) * 1e-3
    plain = optimizer(param, state, None)
    total = plain.report()["state_bytes"]
    room = lowtide.Memory(host=2 * int(total), disk=disk)
    half = lowtide.Memory(host=int(total) // 2 + 3 * chunk, disk=disk, chunk=chunk)
    none = lowtide.Memory(host=4 * chunk, disk=disk, chunk=chunk)
    lines = {
        "ram": plain,
        "budget that holds it": optimizer(param, state, room),
        "half on disk": optimizer(param, state, half),
        "all on disk": optimizer(param, state, none),
    }
    for line in lines.values():
        line.step()
    times: dict[str, list[float]] = {name: [] for name in (*lines, "raw disk")}
    on_disk = int(lines["all on disk"].report()["disk_bytes"])
    command = [raw_disk(), disk, on_disk // BLOCK * BLOCK, BLOCK, SLOTS * chunk // BLOCK, 3 * chunk // BLOCK]
    with subprocess.Popen(list(map(str, command)), stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as raw:
        assert raw.stdin is not None
        assert raw.stdout is not None
        for _ in range(rounds):
            for name, line in lines.items():
                times[name].append(timed(line.step))
            raw.stdin.write("\n")
            raw.stdin.flush()
            times["raw disk"].append(float(raw.stdout.readline()))
        raw.stdin.close()
    figures = {f"{name}, s": statistics.median(series) for name, series in times.items()}
    ratios = [b / a for a, b in zip(times["ram"], times["budget that holds it"], strict=True)]
    bound = [max(r, c) for r, c in zip(times["raw disk"], times["ram"], strict=True)]
    figures["budget that holds it / ram"] = statistics.median(ratios)
    figures["raw disk / all on disk (rate reached)"] = statistics.median(
        r / s for r, s in zip(times["raw disk"], times["all on disk"], strict=True)
    )
    figures["all on disk / max(compute, raw disk)"] = statistics.median(
        s / b for s, b in zip(times["all on disk"], bound, strict=True)
    )
    for name in ("half on disk", "all on disk"):
        report = lines[name].report()
        moved = (report["read_bytes"] + report["written_bytes"]) / (rounds + 1)
        figures[f"{name}: bytes moved / planned"] = moved / report["moved_per_step"]
        figures[f"{name}: MB moved per step"] = moved / 1e6
        figures[f"{name}: RAM, MB"] = report["allocated_bytes"] / 1e6
    if disk_rate:
        least = max(on_disk / disk_rate, figures["ram, s"])
        figures["all on disk / max(compute, bytes at the disk's limit)"] = figures["all on disk, s"] / least
    figures["raw disk, GB/s"] = 2e-9 * (on_disk // BLOCK * BLOCK) / figures["raw disk, s"]
    return figures


def show(state: str, elements: int, chunk: int, figures: dict[str, float]) -> None:
    print(f"AdamW {state}, {elements} elements, chunks of {chunk >> 10} KiB")
    for name, value in figures.items():
        print(f"  {name:52s} {value:10.4f}")
