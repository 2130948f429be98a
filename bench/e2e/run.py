#!/usr/bin/env python3
"""Trains a model with Lowtide's optimizers and those of other packages: whole steps, each optimizer in a process of its own, in
turns.

    .venv/bin/python bench/e2e/run.py                                    all that run here, llama-26M on the CPU
    .venv/bin/python bench/e2e/run.py --model Qwen3-0.6B --device cuda --dtype bf16
    .venv/bin/python bench/e2e/run.py --model 512x8x1376x8x256           hidden x layers x inner x heads x vocabulary
    .venv/bin/python bench/e2e/run.py --model DIR                        a folder of transformers, with its weights and tokenizer
    .venv/bin/python bench/e2e/run.py --optimizers lowtide,torch --list  names, and what cannot run here
    .venv/bin/python bench/e2e/run.py --packages DIR                     DIR/NAME holds a package: pip install --target DIR/NAME NAME

A finished turn is stored at once, so a stopped run goes on. docs/benchmarks/method.md says how to read the figures.
"""

from __future__ import annotations

import sys
from pathlib import Path

if __name__ == "__main__":
    sys.path[0] = str(Path(__file__).resolve().parents[1])

import argparse  # noqa: E402
import json  # noqa: E402
import os  # noqa: E402
import random  # noqa: E402
import subprocess  # noqa: E402
import tempfile  # noqa: E402
from collections.abc import Sequence  # noqa: E402
from dataclasses import asdict, fields  # noqa: E402
from typing import Any  # noqa: E402

import torch  # noqa: E402
from common import machine  # noqa: E402
from common.store import Store  # noqa: E402
from e2e import report  # noqa: E402
from e2e.contenders import ALL, OWN, Job, cannot  # noqa: E402
from e2e.training import check_model  # noqa: E402

HERE = Path(__file__).resolve()
OUT = HERE.parents[2] / "build" / "bench" / "e2e"
MALLOC = "MALLOC_MMAP_THRESHOLD_"  # of glibc: 65536 returns freed memory at once, so that peaks are exact, and steps are slower
HELP = {
    "model": "a shape by name, five sizes, or a folder",
    "seq": "tokens of a sequence",
    "dtype": "of weights and gradients",
    "checkpointing": "compute activations again in backward",
    "clip": "the most norm of the gradients; 0 clips nothing",
    "threads": "of the CPU; 0: as many as torch takes",
    "warmup": "steps before the timed ones",
    "steps": "timed steps of a turn",
    "budget": "of memory beside the parameters, for state elsewhere",
    "stream_budget": "device memory of lowtide-stream",
    "disk": "folder for scratch files",
}
LEAST = {"batch": 1, "seq": 2, "warmup": 1, "steps": 1, "turns": 1, "threads": 0, "clip": 0, "lr": 0, "weight_decay": 0}
CHOICES = {"dtype": ("fp32", "bf16"), "device": ("cpu", "cuda", "xpu")}


class Absent(Exception):
    """Why an optimizer was not measured."""


def options(job: Job) -> list[str]:
    """The options of a job that are not the default."""
    given = [(field.name, getattr(job, field.name)) for field in fields(job) if getattr(job, field.name) != field.default]
    return [word for name, value in given for word in (f"--{name.replace('_', '-')}", *([] if value is True else [str(value)]))]


def turn(job: Job, name: str, packages: Path | None, limit: float) -> dict[str, Any]:
    """The figures of one process. Raises Absent if it has none."""
    environment = {**os.environ, **({"OMP_NUM_THREADS": str(job.threads)} if job.threads else {})}
    folder = (packages / ALL[name].package).resolve() if packages else None
    if folder and folder.is_dir():
        for key, value in (("PYTHONPATH", folder), ("PATH", folder / "bin")):
            environment[key] = f"{value}:{environment.get(key, '')}".rstrip(":")
    with tempfile.TemporaryDirectory() as scratch:
        out = Path(scratch, "figures.json")
        command = [sys.executable, HERE.with_name("training.py"), json.dumps(asdict(job)), name, out]
        try:
            done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=limit)
        except subprocess.TimeoutExpired:
            raise Absent(f"a turn took more than {limit:g} s (--limit)") from None
        found = json.loads(out.read_text()) if out.exists() else {"absent": f"its process ended with status {done.returncode}"}
    if "absent" in found:
        print(done.stderr, file=sys.stderr)
        raise Absent(found["absent"])
    return {**found, "command": " ".join(["python bench/e2e/run.py --optimizers", name, *options(job)])}


def stored(store: Store, names: Sequence[str], turns: int) -> list[dict[str, Any]]:
    """The turns that are there. Raises ValueError if machines differ."""
    rows = [found for name in names for k in range(turns) if (found := store.get(f"{name}-{k}"))]
    for row in rows:
        if (got := row["made"]["machine"]) != (wanted := rows[0]["made"]["machine"]):
            differ = "; ".join(f"{key} {got[key]} and {wanted[key]}" for key in wanted if got[key] != wanted[key])
            raise ValueError(f"{store.folder}: got turns of different machines ({differ}), whose speeds cannot be compared: "
                             "choose another --out")  # fmt: skip
    return rows


def measure(args: argparse.Namespace, job: Job) -> int:
    described = machine.describe(["torch", "lowtide", "transformers"], job.device)
    here = machine.identity(described)
    conditions: dict[str, Any] = {"job": asdict(job), MALLOC: os.environ.get(MALLOC)}
    if (folder := Path(job.model)).is_dir():  # with other files, stored turns are of another model
        conditions["files"] = [[file.name, file.stat().st_size, file.stat().st_mtime_ns] for file in sorted(folder.iterdir())]
    store = Store(args.out, conditions, {**machine.origin(described), "machine": here})
    absent = {name: reason for name in args.optimizers if (reason := cannot(name, job))}
    before = stored(store, args.optimizers, args.turns)
    if not args.report:
        if before and before[0]["made"]["machine"] != here:
            raise ValueError(f"{store.folder}: got turns of {before[0]['made']['machine']}, wanted those of this machine, {here}, "
                             "as speeds of different machines cannot be compared: choose another --out")  # fmt: skip
        for k in range(args.turns):
            for name in random.Random(k).sample(args.optimizers, len(args.optimizers)):
                if name in absent:
                    continue
                try:
                    store.make_all([(f"{name}-{k}", lambda name=name: turn(job, name, args.packages, args.limit))])
                except Absent as error:
                    absent[name] = str(error)
                    print(f"{name}: not measured: {error}", file=sys.stderr, flush=True)
    rows = stored(store, args.optimizers, args.turns)
    result = report.collect(job, described, rows, absent, [name for name in args.optimizers if name not in absent])
    report.write(result, args.out)
    failed = [name for name in absent if name in OWN and not cannot(name, job)]
    return 1 if failed or (job.device == "cpu" and result["other_bits"]) else 0


def main(arguments: Sequence[str] | None = None) -> int:
    """The exit status: 1 if an optimizer of Lowtide failed, or one had other bits than its twin."""
    parser = argparse.ArgumentParser(description="Trains with optimizers of many packages: whole steps, in turns.")
    for field in fields(Job):
        name = f"--{field.name.replace('_', '-')}"
        kind = {"action": "store_true"} if field.default is False else {
            "type": type(field.default) if field.default is not None else str, "default": field.default, "choices": CHOICES.get(field.name)
        }  # fmt: skip
        parser.add_argument(name, help=f"{HELP.get(field.name, '')} (default: {field.default})", **kind)
    parser.add_argument("--optimizers", help="names, separated by commas (default: all)")
    parser.add_argument("--turns", type=int, default=3, help="processes of each optimizer")
    parser.add_argument("--packages", type=Path, metavar="DIR", help="folder with packages, each in a folder of its name")
    parser.add_argument("--limit", type=float, default=900, help="seconds of a turn")
    parser.add_argument("--report", action="store_true", help="run nothing, report what is there")
    parser.add_argument("--list", action="store_true", help="show the optimizers, and stop")
    parser.add_argument("--out", type=Path, default=OUT, help="folder of turns and of e2e.{json,md,png}")
    args = parser.parse_args(arguments)
    job = Job(**{field.name: getattr(args, field.name) for field in fields(Job)})
    for name, least in LEAST.items():
        if not getattr(args, name) >= least:
            parser.error(f"--{name.replace('_', '-')}: got {getattr(args, name)}, wanted {least} or more")
    for name in ("packages", "disk"):
        if (folder := getattr(args, name)) and not args.report and not Path(folder).is_dir():
            parser.error(f"--{name}: got {folder}, wanted a folder that exists")
    args.optimizers = [*dict.fromkeys(args.optimizers.split(","))] if args.optimizers else [*ALL]
    if unknown := [name for name in args.optimizers if name not in ALL]:
        parser.error(f"--optimizers: got {', '.join(unknown)}, wanted some of {', '.join(ALL)}")
    if args.list:
        for name in args.optimizers:
            print(f"{name:24s} {ALL[name].label}{f' ({reason})' if (reason := cannot(name, job)) else ''}")
        return 0
    try:
        check_model(job)
        if job.device != "cpu" and not args.report and not getattr(torch, job.device).is_available():
            raise ValueError(f"--device: got {job.device}, but torch sees none here")
        return measure(args, job)
    except (ImportError, OSError, ValueError) as error:
        print(f"bench-e2e: {error}", file=sys.stderr)
        return 2


if __name__ == "__main__":
    sys.exit(main())
