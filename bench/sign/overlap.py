#!/usr/bin/env python3
"""Measures what a hook gains by voting on buckets while backward continues: times backward with `SignVote` on a limited
network, in turn with and without overlap.

    .venv/bin/python bench/sign/overlap.py [--workers 4] [--rate 1gbit] [--width 1000] [--layers 10] [--batch 16] [--rounds 9]
        [--dilate]

Workers and --dilate work as in network.py. A figure is the median over rounds of the slowest worker.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import sys
import time
from pathlib import Path

sys.path[0] = str(Path(__file__).resolve().parents[1])
sys.path.append(str(Path(__file__).resolve().parents[2] / "examples"))
sys.path.append(str(Path(__file__).resolve().parent))

import dilation  # noqa: E402
from cluster.network import Network, answers  # noqa: E402
from common import machine  # noqa: E402

MUST = 0.8  # times the time without overlap, with 4 workers, 1 Gb/s


def work(width: int, layers: int, batch: int, rounds: int) -> None:
    """One worker: prints seconds of backward, by hook, as JSON."""
    import torch
    import torch.distributed as dist
    from lowtide.distributed import SignVote
    from torch.nn.parallel import DistributedDataParallel

    dist.init_process_group("gloo")
    torch.manual_seed(0)
    models: dict[str, DistributedDataParallel] = {}
    for name, overlap in (("waits", False), ("overlaps", True)):
        model = torch.nn.Sequential(*(torch.nn.Linear(width, width) for _ in range(layers)))
        models[name] = DistributedDataParallel(model, bucket_cap_mb=8 * width * width / 2**20)
        SignVote(models[name], overlap=overlap).register(models[name])
    alone = torch.nn.Sequential(*(torch.nn.Linear(width, width) for _ in range(layers)))
    found: dict[str, list[float]] = {name: [] for name in [*models, "alone"]}
    for turn in range(rounds + 3):  # torch rebuilds its buckets after the first
        for name, model in {**models, "alone": alone}.items():
            loss = model(torch.randn(batch, width)).square().mean()
            dist.barrier()
            begin = time.perf_counter()
            loss.backward()
            seconds = time.perf_counter() - begin
            if turn >= 3:
                found[name].append(seconds)
            model.zero_grad()
    print(json.dumps(found), flush=True)
    os._exit(0)  # does not wait for gloo's threads


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--workers", type=int, default=4)
    parser.add_argument("--rate", default="1gbit")
    for name, default in (("width", 1000), ("layers", 10), ("batch", 16), ("rounds", 9)):
        parser.add_argument(f"--{name}", type=int, default=default)
    parser.add_argument("--dilate", action="store_true", help="slow links as much as workers that share cores")
    parser.add_argument("--worker", action="store_true", help=argparse.SUPPRESS)
    args = parser.parse_args()
    shape = (args.width, args.layers, args.batch, args.rounds)
    if args.worker:
        return work(*shape)
    options = [f"--{name}={value}" for name, value in zip(("width", "layers", "batch", "rounds"), shape, strict=True)]
    by = dilation.factor(args.workers) if args.dilate else 1
    with Network(args.workers, dilation.slowed(args.rate, by)) as network:
        command = [sys.executable, str(Path(__file__).resolve()), "--worker", *options]
        commands = [dilation.pinned(command, rank) if by > 1 else command for rank in range(args.workers)]
        started = [network.start(rank, each, {"OMP_NUM_THREADS": "1"}) for rank, each in enumerate(commands)]
        found = answers(started, 600)
    ms = {
        name: statistics.median(max(one[name][r] for one in found) for r in range(args.rounds)) * 1e3 for name in found[0]
    }
    print(machine.describe(["torch", "lowtide"]))
    where = dilation.words(args.rate, by)
    print(f"{args.workers} workers, {where}, {args.layers} x {args.width}^2 elements, batch {args.batch}; ms of backward:")
    print("  ".join(f"{name} {value:.1f}" for name, value in ms.items()))
    print(f"overlaps / waits {ms['overlaps'] / ms['waits']:.2f} (must: {MUST} or less)")


if __name__ == "__main__":
    main()
