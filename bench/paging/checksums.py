"""Row "what checksums and generations cost": their time within a step whose state is all on disk, and the step without.

Judged by step with / without, what they cost: where the disk is what a step waits for, they run beneath its transfers.
Inside: seconds spent in chunk_checksum over the step's. Without: the same step with the calls left out. Uncached: the
same bytes once more, from memory that no cache holds, which bounds the time from above; a step checksums what was just
read or just computed. Generations are counted in the same calls: a number beside each chunk, seeding its checksum.
"""

from __future__ import annotations

import statistics
import subprocess
from pathlib import Path
from typing import Any

from paging.programs import linked

WANTED = 0.02  # of the step, at most


def measure(state: str, elements: int, chunk: int, rounds: int, disk: str, programs: Path | None) -> dict[str, Any]:
    command = [linked("checksum_cost", programs), disk, state, elements, 4 * chunk, chunk, rounds]
    done = subprocess.run(list(map(str, command)), check=True, capture_output=True, text=True)
    *lines, last = [line.split() for line in done.stdout.splitlines()]
    with_sums, inside, without = ([float(line[k]) for line in lines] for k in range(3))
    size, uncached = int(last[0]), float(last[1])
    step = statistics.median(with_sums)
    share = statistics.median(i / s for i, s in zip(inside, with_sums, strict=True))
    cost = statistics.median(with_sums) / statistics.median(without) - 1
    return {
        "state": state, "elements": elements, "chunk": chunk, "bytes": size, "step_seconds": step,
        "inside_share": share, "inside_GB_per_s": size / statistics.median(inside) / 1e9,
        "uncached_share": uncached / step,
        "cost": cost,
        "rounds": [with_sums, inside, without], "wanted": WANTED, "reached": cost <= WANTED,
    }  # fmt: skip


def show(row: dict[str, Any]) -> None:
    print(f"checksums and generations: AdamW {row['state']}, {row['elements']} elements, {row['bytes'] / 1e6:.0f} MB "
          f"checksummed in a step of {row['step_seconds']:.4f} s")  # fmt: skip
    print(f"  inside the step {100 * row['inside_share']:.2f} % of its time ({row['inside_GB_per_s']:.1f} GB/s); "
          f"uncached {100 * row['uncached_share']:.2f} %; a step takes {100 * row['cost']:+.2f} % longer; "
          f"wanted at most {100 * row['wanted']:.0f} %: {'yes' if row['reached'] else 'NO'}")  # fmt: skip
