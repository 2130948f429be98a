"""Kernels side by side: the package's plug-in, then each in the folder LOWTIDE_VARIANTS, in a separate process.

All processes import torch and compute the right results on the CPU at the same time. Then each has the device to itself in
turn, and reports the share of a copy's bandwidth that each step reaches, and how many bytes differ from the CPU. A process that
fails only costs a row. `variants.py [--rehearse]` is the program of such a process.
"""

from __future__ import annotations

import hashlib
import json
import os
import select
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

if __name__ == "__main__":  # instead of this folder
    sys.path[0] = str(Path(__file__).resolve().parents[2])

import torch  # noqa: E402

from bench.cuda import bits, contenders, emulated, shapes  # noqa: E402
from bench.cuda.device import Gpu  # noqa: E402
from bench.cuda.resident import ALL_FITS, copy_step  # noqa: E402
from bench.cuda.rows import Absent, Rows, told  # noqa: E402
from bench.cuda.timing import Step, in_turns  # noqa: E402

ELEMENTS = 500_000_000
ROUNDS = 15
START_S, TURN_S = 60.0, 25.0  # limits until a process is ready, and for its turn
BF16 = torch.bfloat16
SHAPES = [(257,), (100_003,), (64, 4096), (300, 1001)]
# Steps, with the bytes that each reads and writes per element of bf16 parameters and gradients.
STEPS: dict[str, tuple[float, dict[str, Any]]] = {
    "default": (10.0625, {"state": "dynamic8"}),
    "nearest": (10.0625, {"state": "dynamic8", "rounding": "nearest"}),
    "fp32": (22.0, {"state": "fp32"}),
    "bf16": (14.0, {"state": "bf16"}),
    "Lion": (8.03125, {"rule": "Lion", "state": "dynamic8"}),
    "SGD": (6.0, {"rule": "SGD", "momentum": 0.0, "state": "dynamic8"}),
}
JUDGED = {"default": "resident_default", "nearest": "resident_nearest", "fp32": "resident_fp32"}  # for the package's plug-in
READY, GO = "ready", "go"
SHIPPED = "the package's"


def plugins() -> dict[str, str | None]:
    """Plug-in files by name, the package's first."""
    folder = os.environ.get("LOWTIDE_VARIANTS", "")
    found = sorted(Path(folder).glob("*.so")) if folder else []
    return {SHIPPED: None, **{path.stem: str(path.resolve()) for path in found}}


def note() -> Path:
    """The file that notes the fastest variant for later cases."""
    return Path(os.environ.get("LOWTIDE_SCRATCH", "build")) / "best-variant"


def best() -> str:
    if not note().is_file() or not (path := note().read_text()):
        raise Absent("no variant is faster than the package's plug-in and has its bits")
    return path


# The process of one plug-in.


def run(gpu: Gpu, seconds: float = 1.0) -> None:
    """Prints "ready", waits for a line on stdin, then prints a line of JSON for each step."""
    shapes_ = SHAPES[:1] if gpu.rehearsed else SHAPES
    start, grads = bits.values(shapes_, 3), [bits.values(shapes_, 4 + step) for step in range(2)]
    right = {name: bits.run(gpu, start, grads, bits.on_cpu, BF16, memory=None, **given)[0] for name, (_, given) in STEPS.items()}
    gpu.cuda.synchronize()
    print(READY, flush=True)
    if sys.stdin.readline().strip() != GO:
        return
    half = gpu.size(1 << 30, 1 << 18)
    params = gpu.parameters(shapes.one(gpu.size(ELEMENTS, 20_000)), BF16)
    count = sum(param.numel() for param in params)
    for name, (each, given) in STEPS.items():
        row: dict[str, Any] = {"step": name}
        try:
            got, _ = bits.run(gpu, start, grads, gpu.tensor, BF16, memory=contenders.budget(gpu, device="1GiB"), **given)
            row |= {"differing": bits.differing(got, right[name]),
                    "hash": hashlib.sha256(b"".join(value.numpy().tobytes() for value in got)).hexdigest()[:16]}  # fmt: skip
            optimizer = contenders.lowtide_optimizer(gpu, params, memory=contenders.budget(gpu, device=ALL_FITS), **given)
            contenders.settle(gpu, optimizer)
            found = in_turns(gpu, {"step": Step(optimizer.step), "copy": copy_step(gpu, half)}, seconds, ROUNDS, warm_up=2)
            contenders.still_resident(gpu, optimizer)
            rate, copied = count * each / found["step"].median(), 2 * half / found["copy"].median()
            row |= {"share": rate / copied, "copy_gb_per_s": copied * 1e-9, **found["step"].data()}
            del optimizer, found
        except Exception as error:  # a variant may raise anything
            row["failed"] = told(error)
        print(json.dumps(row), flush=True)


# The case, which starts the processes.


class Process:
    def __init__(self, gpu: Gpu, path: str | None) -> None:
        env = {**os.environ, **({"LOWTIDE_CUDA_PLUGIN": path} if path else {})}
        command = [sys.executable, __file__, *(["--rehearse"] if gpu.rehearsed else [])]
        self.complaints = tempfile.TemporaryFile()
        self.process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=self.complaints, env=env)
        self.rest = b""

    def line(self, until: float) -> str:
        """The next line of its output; "" if it has ended or does not answer in time."""
        assert self.process.stdout
        while b"\n" not in self.rest:
            if not select.select([self.process.stdout], [], [], max(0.0, until - time.monotonic()))[0]:
                return ""
            if not (read := os.read(self.process.stdout.fileno(), 1 << 16)):
                return ""
            self.rest += read
        line, _, self.rest = self.rest.partition(b"\n")
        return line.decode()

    def ready(self, until: float) -> bool:
        while line := self.line(until):
            if line == READY:
                return True
        return False

    def turn(self) -> list[dict[str, Any]]:
        assert self.process.stdin
        self.process.stdin.write(f"{GO}\n".encode())
        self.process.stdin.flush()
        until = time.monotonic() + TURN_S
        found: list[dict[str, Any]] = []
        while len(found) < len(STEPS) and (line := self.line(until)):
            if line.startswith("{"):
                found.append(json.loads(line))
        return found

    def end(self) -> str:
        """Ends the process, and returns the last line of its stderr."""
        self.process.kill()
        self.process.communicate()
        self.complaints.seek(0)
        complaints = self.complaints.read().decode(errors="replace").strip().splitlines()
        return complaints[-1] if complaints else f"exit status {self.process.returncode}"


def table(found: dict[str, dict[str, dict[str, Any]]]) -> str:
    lines = [" " * 24 + "".join(f"{name:>10s}" for name in STEPS)]
    for variant, steps in found.items():
        cells = ["-" if "share" not in (row := steps.get(name, {})) else f"{row['share']:.3f}{'!' if row['differing'] else ''}"
                 for name in STEPS]  # fmt: skip
        lines.append(f"{variant[:24]:24s}" + "".join(f"{cell:>10s}" for cell in cells))
    return "\n".join(lines) + "\n(share of a copy; !: other bits than the CPU's)"


def compare(gpu: Gpu, rows: Rows) -> None:
    note().unlink(missing_ok=True)
    chosen = plugins()
    processes = {name: Process(gpu, path) for name, path in chosen.items()}
    until = time.monotonic() + START_S
    ready = {name: process.ready(until) for name, process in processes.items()}  # all have started, and none uses the device
    found: dict[str, dict[str, dict[str, Any]]] = {}
    for name, process in processes.items():
        steps = {row["step"]: row for row in (process.turn() if ready[name] else ())}
        found[name] = steps
        why = process.end()
        for step in STEPS:
            row = steps.get(step, {"failed": why})
            label, figure = f"{name}, {step}: bandwidth / copy", JUDGED.get(step) if name == SHIPPED else None
            if "failed" in row:
                rows.absent(label, row["failed"], figure)
                continue
            same = row["hash"] == found[SHIPPED].get(step, {}).get("hash")
            rows.add(label, row["share"], "x", figure, plugin=chosen[name], as_shipped=same, **row)
        rows.add(f"{name}: differing bytes", sum(row.get("differing", 0) for row in steps.values()), "bytes",
                 "smoke" if name == SHIPPED else None, measured=list(steps))  # fmt: skip
    print(table(found), flush=True)
    right = {name: statistics.mean(row["share"] for row in steps.values()) for name, steps in found.items()
             if len(steps) == len(STEPS) and all("share" in row and not row["differing"] for row in steps.values())}  # fmt: skip
    fastest = max(right, key=lambda name: right[name], default=SHIPPED)
    if path := chosen[fastest]:
        note().write_text(path)
        rows.add(f"the fastest with the CPU's bits: {fastest}, mean", right[fastest], "x", plugin=path)


CASES = {"variants.steps": compare}

if __name__ == "__main__":
    run(emulated.opened() if "--rehearse" in sys.argv else Gpu(rehearse=False))
