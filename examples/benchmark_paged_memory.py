#!/usr/bin/env python3
"""Shows how much memory paged state saves: bitsandbytes' benchmark of that name, with Lowtide's versions of its optimizers.

    python examples/benchmark_paged_memory.py                                    # minutes on two cores
    python examples/benchmark_paged_memory.py --hidden_size 2048 --num_layers 16
    python examples/benchmark_paged_memory.py --device cuda                      # or xpu

Trains a LLaMA with random weights on random tokens, with AdamW, AdamW8bit, PagedAdamW and PagedAdamW8bit, each in a separate
process. On a CPU, fast memory is RAM, and paged state beyond --budget is on --disk. On a device, fast memory is the device's,
and paged state beyond --budget is in pinned host memory.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from llama import memory, paged
from llama.common import ExampleError, require_packages, write_json

PACKAGES = ("torch", "numpy", "transformers")
BASELINE = "AdamW"
CLASSES = (BASELINE, "AdamW8bit", "PagedAdamW", "PagedAdamW8bit")
ROWS = {
    "peak": "peak_bytes",
    "state in fast memory": "fast_state_bytes",
    "state elsewhere": "other_state_bytes",
    "weights and gradients": "",
}


def train(job: paged.Job, name: str, disk: str | None) -> paged.Run:
    """Trains with the class `name` on random tokens."""
    import torch

    from lowtide.compat import bitsandbytes as bnb  # was: import bitsandbytes as bnb

    def make(params: list[Any], memory: Any) -> Any:
        options = {"memory": memory} if name.startswith("Paged") else {}
        return getattr(bnb.optim, name)(params, lr=job.lr, **options)

    torch.manual_seed(0)
    batches = [torch.randint(job.vocab_size, (job.batch_size, job.seq_len + 1)) for _ in range(job.train_steps)]
    return paged.train(job, make, batches, disk)


def show(runs: dict[str, paged.Run]) -> None:
    """Prints a table in MiB, as bitsandbytes does."""
    print(f"{'':24s}" + "".join(f"{name:>20s}" for name in runs))
    for title, field in ROWS.items():
        sizes = [getattr(run, field) if field else run.weight_bytes + run.gradient_bytes for run in runs.values()]
        print(f"{title:24s}" + "".join(f"{size / 2**20:16.1f} MiB" for size in sizes))
    base = runs[BASELINE].peak_bytes
    saved = [base - run.peak_bytes for run in runs.values()]
    cells = (f"{size / 2**20:.1f} MiB ({100 * size / base:.1f} %)" for size in saved[1:])
    print(f"{'saved against AdamW':24s}{'':20s}" + "".join(f"{cell:>20s}" for cell in cells))


def main(arguments: Sequence[str] | None = None) -> int:
    """Returns the exit status: 1 if paging changed a loss or a weight."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    paged.add_arguments(parser)
    parser.add_argument("--out", default="out/paged_memory", help="folder for report.json")
    args = parser.parse_args(arguments)
    try:
        require_packages(PACKAGES)
        from lowtide.cli.waiting import Waiting

        with Waiting("benchmark_paged_memory") as wait:
            wait.for_torch()
            job = paged.job_of(args)
            wait.say(f"LLaMA, {job.num_layers} layers of {job.hidden_size}, {job.dtype}, {job.train_steps} steps of "
                     f"{job.batch_size} x {job.seq_len} tokens on {job.device}; {job.budget} of fast memory for paged state")  # fmt: skip
            runs = {}
            for name in CLASSES:
                wait(f"training with {name}")
                runs[name] = memory.alone(train, job, name, args.disk)
    except (ExampleError, ValueError, OSError) as error:
        print(f"benchmark_paged_memory: {error}", file=sys.stderr)
        return 2
    show(runs)
    pairs = [(runs[name.removeprefix("Paged")], run) for name, run in runs.items() if name.startswith("Paged")]
    same = all(a.losses == b.losses and a.weights == b.weights for a, b in pairs)
    print(f"losses and weights, paged and not: {'the same bits' if same else 'DIFFERENT'}")
    report = {name: {**asdict(run), "peak_bytes": run.peak_bytes} for name, run in runs.items()}
    write_json(Path(args.out) / "report.json", {"job": asdict(job), "runs": report})
    print(f"written: {args.out}/report.json")
    return 0 if same else 1


if __name__ == "__main__":
    sys.exit(main())
