#!/usr/bin/env python3
"""Traffic of a step when AdamW's float32 state exceeds a device: managed memory beside chunks, on the fake device.

    .venv/bin/python bench/paging/managed.py [--elements 16777216] [--params 8] [--steps 3] [--shares 0.1,0.5,1]

Managed memory has a simulated driver: pages of 2 MiB come to the device when a kernel touches them, and the page that was
touched longest ago makes room. Chunks have a budget of as many bytes. Steps are real, and every byte is counted; nothing
is timed. Writes managed.json and managed.png.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

sys.path[0] = str(Path(__file__).resolve().parents[1])

from common import machine, results  # noqa: E402
from paging import programs  # noqa: E402

SHARES = "0,0.1,0.2,0.3,0.4,0.5,0.6,0.7,0.8,0.9,0.95,1,1.05,1.1,1.2"
PROGRAM = "managed_traffic"


def measure(program: Path, elements: int, params: int, steps: int, shares: list[str]) -> list[dict[str, Any]]:
    command = list(map(str, (program, elements, params, steps, *shares)))
    done = subprocess.run(command, check=True, capture_output=True, text=True)
    return [json.loads(line) for line in done.stdout.splitlines()]


def show(rows: list[dict[str, Any]]) -> None:
    """A table on the terminal: MiB in and out, of the first step and of the last."""
    state = rows[0]["managed"]["state_bytes"]
    print(f"float32 state of AdamW, {state / 2**20:.1f} MiB; MiB to the device / to the host")
    print(f"{'fits':>6s} {'managed, first':>16s} {'managed, later':>16s} {'chunks, each':>16s} {'device, chunks':>15s}")
    for row in rows:
        cells = [f"{row[name]['in'][step] / 2**20:.1f} / {row[name]['out'][step] / 2**20:.1f}"
                 for name, step in (("managed", 0), ("managed", -1), ("streamed", -1))]  # fmt: skip
        print(f"{100 * row['share']:5.0f}% " + " ".join(f"{cell:>16s}" for cell in cells)
              + f" {row['streamed']['device_bytes'] / 2**20:15.1f}")  # fmt: skip


def draw(rows: list[dict[str, Any]], path: Path) -> None:
    import matplotlib

    matplotlib.use("Agg")  # draws to files; no display is needed or touched
    import matplotlib.pyplot as plt

    state = rows[0]["managed"]["state_bytes"]
    figure, axis = plt.subplots(figsize=(8, 4.6), layout="constrained")
    lines = (("managed", "managed memory: pages of 2 MiB, moved when touched", "#D55E00", "s"),
             ("streamed", "chunks (the default): what does not fit is streamed", "#0072B2", "o"))  # fmt: skip
    for name, label, colour, marker in lines:
        moved = [(row[name]["in"][-1] + row[name]["out"][-1]) / state for row in rows]
        axis.plot([100 * row["share"] for row in rows], moved, color=colour, marker=marker, ms=5, lw=1.8, label=label)
    axis.set_ylim(bottom=-0.05)
    axis.set_xlabel("memory of the device for state, % of the state (0: two pages, or two slots)")
    axis.set_ylabel("moved in a step, both ways / state")
    axis.set_title("State that does not fit: what every step moves", loc="left", fontweight="bold")
    axis.grid(alpha=0.25)
    axis.spines[["top", "right"]].set_visible(False)
    axis.legend(frameon=False, fontsize=9.5, loc="lower left")
    figure.savefig(path, dpi=130)
    plt.close(figure)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--elements", type=int, default=16 << 20, help="of all parameters; 8 bytes of state each")
    parser.add_argument("--params", type=int, default=8)
    parser.add_argument("--steps", type=int, default=3)
    parser.add_argument("--shares", default=SHARES, help="parts of the state that the device holds, separated by commas")
    parser.add_argument("--programs", type=Path, default=None, help="folder of compiled programs (default: CMake's)")
    parser.add_argument("--out", type=Path, default=programs.OUT)
    args = parser.parse_args()
    program = programs.linked(PROGRAM, args.programs)
    rows = measure(program, args.elements, args.params, args.steps, args.shares.split(","))
    show(rows)
    args.out.mkdir(parents=True, exist_ok=True)
    result = {"machine": machine.describe(["lowtide"]), "elements": args.elements, "steps": args.steps, "rows": rows}
    results.write(args.out / "managed.json", result)
    draw(rows, args.out / "managed.png")
    print(args.out / "managed.png")


if __name__ == "__main__":
    main()
