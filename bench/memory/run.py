#!/usr/bin/env python3
"""Trains a LLaMA of 217 million parameters with paged and unpaged optimizers, and counts memory where it is.

    .venv/bin/python bench/memory/run.py                                  all that is not there yet, then the report
    .venv/bin/python bench/memory/run.py --train_steps 5 --variants compat.AdamW,compat.PagedAdamW
    .venv/bin/python bench/memory/run.py --device cuda                    or xpu
    .venv/bin/python bench/memory/run.py --report                         no run, only the report of what is there

Each run has a process of its own, and its result is stored as it is found: stop it, and it goes on from there,
unless the revision, the build or the text has changed.
docs/benchmarks/method.md says how the figures are read.
"""

from __future__ import annotations

import sys
from pathlib import Path

sys.path[0] = str(Path(__file__).resolve().parents[1])
sys.path.append(str(Path(__file__).resolve().parents[2] / "examples"))

import argparse  # noqa: E402
import os  # noqa: E402
from collections.abc import Sequence  # noqa: E402
from dataclasses import asdict  # noqa: E402
from datetime import date  # noqa: E402
from functools import partial  # noqa: E402

from common import machine  # noqa: E402
from common.options import chosen  # noqa: E402
from llama import paged  # noqa: E402
from llama.errors import ExampleError  # noqa: E402
from memory import report  # noqa: E402
from memory.runs import collect, text_of  # noqa: E402
from memory.variants import VARIANTS  # noqa: E402

ROOT = Path(__file__).resolve().parents[2]
OUT = ROOT / "build" / "bench" / "memory"
DATA = ROOT / "examples" / "data" / "instructions.json"
PACKAGES = ["torch", "transformers", "numpy", "lowtide"]


def main(arguments: Sequence[str] | None = None) -> int:
    """Returns the exit status: 1 if paging changed a loss or a weight, or saved less than it must (report.must_save)."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    paged.add_arguments(parser)
    parser.set_defaults(train_steps=12)
    parser.add_argument("--data", default=str(DATA), help="instructions in Alpaca's form, or text")
    names = "names, separated by commas (default: all)"
    parser.add_argument("--variants", default="", type=partial(chosen, VARIANTS), help=names)
    parser.add_argument("--report", action="store_true", help="run nothing, report what is there")
    parser.add_argument("--out", type=Path, default=OUT, help="folder of results and of memory.{json,md,png}")
    args = parser.parse_args(arguments)
    os.environ.setdefault("HF_HUB_OFFLINE", "1")  # the model has random weights
    os.environ.setdefault("OMP_WAIT_POLICY", "passive")  # threads that spin take a busy machine's cores from each other
    try:
        job, text = paged.job_of(args), text_of(args.data)
        variants = [] if args.report else args.variants
        runs = collect(job, text, variants, args.out, args.disk, partial(print, file=sys.stderr, flush=True))
    except (ExampleError, ValueError, OSError) as error:
        print(f"bench/memory: {error}", file=sys.stderr)
        return 2
    day = max((run["date"] for run in runs), default=date.today().isoformat())  # when the last of them ran
    result = {"date": day, "machine": machine.describe(PACKAGES), "job": asdict(job),
              "text_bytes": len(text), "runs": runs}  # fmt: skip
    good = report.write(result, args.out)
    if result["runs"]:
        try:
            from memory import plot
        except ImportError as error:
            print(f"no plot: {error}")
        else:
            plot.draw(result, args.out / "memory.png")
    return 0 if good else 1


if __name__ == "__main__":
    sys.exit(main())
