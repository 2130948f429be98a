#!/usr/bin/env python3
"""Memory of stepping a LLaMA of 220 million parameters on a device: bfloat16 weights and gradients, AdamW's state on the
device, paged to pinned host memory, or managed.

    .venv/bin/python bench/paging/memory.py [--target gpu|cpu] [--budget 4MiB] [--steps 3]

"device" counts all that was allocated there: weights, gradients, state and buffers. "resident" is the peak of the whole
process, which for the CPU's OpenCL device is what its driver holds too. Needs the SYCL runtime; docs/benchmarks/method.md.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
from pathlib import Path
from typing import Any

sys.path[0] = str(Path(__file__).resolve().parents[1])

from common import machine, results  # noqa: E402
from paging import programs  # noqa: E402

import lowtide  # noqa: E402

FIELDS = ("weights", "device_state", "host_state", "managed_state", "moved_per_step", "rss_before", "rss_peak")
# bitsandbytes' published figures for a LLaMA of this size with its paged AdamW on an XPU (pull request 1898), in MB.
PUBLISHED = {"unpaged": 2524, "paged": 861}
WANTED = 0.659


def measure(program: Path, target: str, state: str, budget: int, managed: bool, steps: int) -> dict[str, Any]:
    command = [program, target, state, budget, int(managed), steps]
    done = subprocess.run(list(map(str, command)), check=True, capture_output=True, text=True)
    kind, *numbers, seconds, digest = done.stdout.split()
    row: dict[str, Any] = {"target": kind, **{name: int(number) for name, number in zip(FIELDS, numbers, strict=True)}}
    return {**row, "device": row["weights"] + row["device_state"], "seconds": float(seconds), "parameters": digest}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--target", default="best", choices=("best", "gpu", "cpu"), help="best: a GPU if there is one")
    parser.add_argument("--budget", default="4MiB", help="device memory for paged state")
    parser.add_argument("--steps", type=int, default=3)
    parser.add_argument("--states", default="fp32,dynamic8")
    parser.add_argument("--programs", type=Path, default=None, help="folder of compiled programs (default: CMake's)")
    parser.add_argument("--out", type=Path, default=programs.OUT)
    args = parser.parse_args()
    budget = lowtide.Memory(host=args.budget).budget().host
    program = programs.linked("device_memory", args.programs, beside_plugin=True)
    rows: dict[str, dict[str, Any]] = {}
    for state in args.states.split(","):
        for name, limit, managed in (("on the device", -1, False), ("paged", budget, False), ("managed", -1, True)):
            row = rows[f"{state}, {name}"] = measure(program, args.target, state, limit, managed, args.steps)
            unpaged = rows[f"{state}, on the device"]
            row["saved"] = 1 - row["device"] / unpaged["device"]
            row["same_parameters"] = row["parameters"] == unpaged["parameters"]
    target = next(iter(rows.values()))["target"]
    print(f"AdamW, 219.7 M bfloat16 parameters, SYCL {target} device, {args.steps} steps; MB")
    print(f"{'':26s}{'device':>8s}{'saved':>8s}{'state there':>13s}{'host':>8s}{'managed':>9s}{'moved':>8s}{'resident':>10s}"
          f"{'s/step':>8s}  parameters")  # fmt: skip
    for name, row in rows.items():
        mb = {key: value / 1e6 for key, value in row.items() if isinstance(value, int)}
        print(f"{name:26s}{mb['device']:8.0f}{100 * row['saved']:7.1f}%{mb['device_state']:13.1f}{mb['host_state']:8.0f}"
              f"{mb['managed_state']:9.0f}{mb['moved_per_step']:8.0f}{mb['rss_peak'] - mb['rss_before']:10.0f}"
              f"{row['seconds']:8.2f}  {'same bits' if row['same_parameters'] else 'DIFFER'}")  # fmt: skip
    print(f"bitsandbytes, paged, 32-bit state, XPU (published): {PUBLISHED['unpaged']} → {PUBLISHED['paged']} MB, saved 65.9 %")
    reached = "fp32, paged" not in rows or rows["fp32, paged"]["saved"] >= WANTED
    print(f"wanted of fp32 state, paged: at least {100 * WANTED:.1f} % saved: {'yes' if reached else 'NO'}")
    args.out.mkdir(parents=True, exist_ok=True)
    path = args.out / "device_memory.json"
    results.write(path, {"machine": machine.describe(["torch", "lowtide"]), "target": target, "rows": rows})
    print(path)


if __name__ == "__main__":
    main()
