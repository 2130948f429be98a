#!/usr/bin/env python3
"""Trains a small LLaMA on several workers behind a slow network, with 32, 16 and 1 bit per gradient element.

    sudo .venv/bin/python examples/train_ddp_sign.py                    # 4 workers at 1 Gb/s: about 15 minutes on 2 cores
    .venv/bin/python examples/train_ddp_sign.py --rate none --steps 50  # without root: no limit, processes on localhost

All methods start from the same weights and see the same text in the same order. Times are of training steps, without
validation. Results go to `out/ddp_sign`: a table, and `report.json` with losses over steps and seconds.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import socket
import statistics
import subprocess
import sys
from contextlib import nullcontext
from dataclasses import asdict
from pathlib import Path
from typing import Any

from llama.common import ExampleError, require_packages, write_json
from llama.config import Config
from llama.memory import cpu_name

PACKAGES = ("torch", "numpy", "transformers", "tokenizers", "lowtide")


def settings(args: argparse.Namespace) -> Config:
    """A model whose gradients take long to send but not to compute: a large vocabulary and few layers."""
    return Config(
        out=str(args.out), steps=args.steps, seed=args.seed, lr=args.lr, warmup=max(1, args.steps // 20),
        weight_decay=args.weight_decay, batch=args.batch, context=args.context, width=args.width, layers=args.layers,
        heads=4, vocab=args.vocab, eval_every=max(1, args.steps // 20), eval_windows=args.eval_windows, threads=1,
        data=args.data,
    )  # fmt: skip


def train(config: Config, method: str, workers: int, rate: str | None, folder: Path) -> dict[str, Any]:
    """The first worker's report on one method."""
    from cluster.network import Network

    request, answer = folder / f"{method}.request.json", folder / f"{method}.json"
    answer.unlink(missing_ok=True)
    write_json(request, {"config": asdict(config), "method": method, "answer": str(answer.resolve())})
    root = Path(__file__).resolve().parent
    env = {
        "PYTHONPATH": os.pathsep.join(filter(None, [str(root), os.environ.get("PYTHONPATH")])),
        "HF_HUB_OFFLINE": "1", "OMP_NUM_THREADS": "1", "OMP_WAIT_POLICY": "passive",
    }  # fmt: skip
    command = [sys.executable, "-W", "ignore", "-m", "cluster.worker", str(request.resolve())]
    started: list[subprocess.Popen[str]] = []
    with Network(workers, rate) if rate else nullcontext() as network:
        try:
            if network:
                started += [network.start(rank, command, env) for rank in range(workers)]
            else:
                started += _on_localhost(command, env, workers)
            problems = [process.communicate()[1] for process in started]
        finally:  # also when this process must end
            for process in started:
                process.kill()
    for rank, process in enumerate(started):
        if process.returncode:
            raise ExampleError(f"{method}: worker {rank} ended with {process.returncode}:\n{problems[rank][-2000:]}")
    return json.loads(answer.read_text())


def _on_localhost(command: list[str], env: dict[str, str], workers: int) -> list[subprocess.Popen[str]]:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = str(free.getsockname()[1])
    rendezvous = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port, "WORLD_SIZE": str(workers), "GLOO_SOCKET_IFNAME": "lo"}
    return [
        subprocess.Popen(command, env={**os.environ, **env, **rendezvous, "RANK": str(rank)}, text=True,
                         stdout=subprocess.PIPE, stderr=subprocess.PIPE)
        for rank in range(workers)
    ]  # fmt: skip


def seconds_to(run: dict[str, Any], loss: float) -> float | None:
    """Training time until validation first reached `loss`, interpolated linearly between validations."""
    last: tuple[float, float] | None = None
    for _, seconds, value in run["validation"]:
        if value <= loss:
            if last is None or last[1] <= value:
                return seconds
            share = (last[1] - loss) / (last[1] - value)
            return last[0] + share * (seconds - last[0])
        last = (seconds, value)
    return None


def report(runs: dict[str, Any], config: Config, workers: int, rate: str | None) -> dict[str, Any]:
    """One row per method. Others are compared with the first."""
    base = runs[next(iter(runs))]
    target = base["validation"][-1][2] * 1.01  # 1 % above where the first ends
    rows = {}
    for name, run in runs.items():
        sent = run["history"]["sent"]
        needed = seconds_to(run, target)
        rows[name] = {
            "title": run["title"],
            "validation_loss": run["validation"][-1][2],
            "step_ms": 1e3 * statistics.median(run["history"]["seconds"]),
            "seconds_to_target": needed,
            "speed_up": (seconds_to(base, target) or 0) / needed if needed else None,
            "sent_bytes_per_step": statistics.median(sent) if sent else None,
            "state_bytes": run["state_bytes"],
        }
    return {"config": asdict(config), "workers": workers, "rate": rate, "parameters": base["parameters"], "target": target,
            "cpu": cpu_name(), "rows": rows, "runs": runs}  # fmt: skip


def show(found: dict[str, Any]) -> None:
    print(f"{found['parameters'] / 1e6:.1f} M parameters, {found['workers']} workers, {found['rate'] or 'no limit'}")
    columns = ("validation loss", "ms a step", f"s to {found['target']:.3f}", "times faster", "MB sent a step")
    print(f"{'':30s}" + "".join(f"{column:>17s}" for column in columns))
    for row in found["rows"].values():
        needed, faster, sent = row["seconds_to_target"], row["speed_up"], row["sent_bytes_per_step"]
        cells = (f"{row['validation_loss']:.4f}", f"{row['step_ms']:.0f}", f"{needed:.1f}" if needed is not None else "not reached",
                 f"{faster:.1f}" if faster else "", f"{sent / 1e6:.2f}" if sent else "not counted")  # fmt: skip
        print(f"{row['title']:30s}" + "".join(f"{cell:>17s}" for cell in cells))


def main() -> int:
    """Entry point. Returns 0 when done, 2 for an error that the user can fix."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0], formatter_class=argparse.ArgumentDefaultsHelpFormatter)
    parser.add_argument("--workers", type=int, default=4)
    parser.add_argument("--rate", default="1gbit", help="of each worker's link, as tc has it (gbit, not gbps); none: localhost, no limit")
    parser.add_argument("--methods", default="fp32,bf16,sign_vote,error_feedback,lion", help="some of these; the first is the reference")
    parser.add_argument("--steps", type=int, default=600)
    parser.add_argument("--lr", type=float, default=5e-4)
    parser.add_argument("--weight-decay", type=float, default=0.1)
    parser.add_argument("--batch", type=int, default=1, help="windows per worker and step")
    parser.add_argument("--context", type=int, default=32, help="tokens per window")
    parser.add_argument("--width", type=int, default=256)
    parser.add_argument("--layers", type=int, default=2)
    parser.add_argument("--vocab", type=int, default=16384)
    parser.add_argument("--eval-windows", type=int, default=256)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--data", default=None, help="text file, folder, or Alpaca JSON (None: Python's standard library)")
    parser.add_argument("--out", type=Path, default=Path("out/ddp_sign"))
    args = parser.parse_args()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))  # runs the blocks that clean up
    try:
        require_packages(PACKAGES)
        from cluster.methods import METHODS
        from cluster.network import Network
        from llama.text import load_corpus, prepare
        from lowtide.cli.waiting import Waiting

        rate = None if args.rate == "none" else args.rate
        names = args.methods.split(",")
        if unknown := [name for name in names if name not in METHODS]:
            raise ExampleError(f"--methods: got {', '.join(unknown)}, wanted some of {', '.join(METHODS)}")
        if args.workers < 1:
            raise ExampleError(f"--workers: got {args.workers}, wanted at least 1")
        if rate and (why := Network.missing()):
            raise ExampleError(f"--rate {rate}: {why}; --rate none trains without a limit")
        config = settings(args)
        args.out.mkdir(parents=True, exist_ok=True)
        runs = {}
        with Waiting("train_ddp_sign") as wait:
            wait("making tokens")
            prepare(config, load_corpus(config))
            for name in names:
                wait(f"{METHODS[name].title}: {config.steps} steps")
                runs[name] = train(config, name, args.workers, rate, args.out)
        found = report(runs, config, args.workers, rate)
        write_json(args.out / "report.json", found)
        show(found)
        print(f"written: {args.out / 'report.json'}")
    except ExampleError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main())
