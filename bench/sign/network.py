#!/usr/bin/env python3
"""Measures a step's communication over a real, limited network: bytes by the interfaces' counters, and time.

    .venv/bin/python bench/sign/network.py [--workers 2,4,8] [--rates 1gbit,none] [--elements 10000000] [--rounds 9] [--dilate]

Every worker is a process in its own network namespace (root, iproute2). Contenders take turns within every round:

    fp32, bf16, int8     torch.distributed.all_reduce of that type (gloo), nothing else: no packing, no update
    sign                 float32 gradients -> bits, vote, float32 parameters moved by the result
    lion                 the whole lowtide.DistributedLion(state="dynamic8").step()

--dilate: workers that share cores compute at a fraction of their speed, so links get the same fraction of their rate
(dilation.py). A row is the median over rounds of the slowest worker. docs/benchmarks/method.md says how figures are taken and
read.
"""

from __future__ import annotations

import argparse
import statistics
import sys
from pathlib import Path

sys.path[0] = str(Path(__file__).resolve().parents[1])
sys.path.append(str(Path(__file__).resolve().parents[2] / "examples"))
sys.path.append(str(Path(__file__).resolve().parent))

import dilation  # noqa: E402
from cluster.network import Network, answers  # noqa: E402
from common import machine, results  # noqa: E402

WORKER = Path(__file__).with_name("network_worker.py")
MUST = {"fp32": 20, "bf16": 10, "int8": 5}  # times our time, with 4 workers, 1 Gb/s, 10 M
RATIO_AT = (4, "1gbit", 10_000_000)


def measure(workers: int, rate: str | None, elements: int, rounds: int, by: int) -> dict[str, dict[str, float]]:
    """By contender: ms, and bytes sent by the worker that sent most. by: factor by which everything is slowed."""
    with Network(workers, dilation.slowed(rate, by)) as network:
        command = [sys.executable, str(WORKER), str(elements), str(rounds)]
        commands = [dilation.pinned(command, rank) if by > 1 else command for rank in range(workers)]
        started = [network.start(rank, each, {"OMP_NUM_THREADS": "1"}) for rank, each in enumerate(commands)]
        found = answers(started, 1800)
    table = {}
    for name in found[0]:
        slowest = [max(one[name]["seconds"][r] for one in found) for r in range(rounds)]
        sent = [max(one[name]["sent"][r] for one in found) for r in range(rounds)]
        table[name] = {"ms": statistics.median(slowest) * 1e3, "sent": statistics.median(sent)}
        if "phases" in found[0][name]:
            table[name]["phases_ms"] = {
                phase: round(1e3 * statistics.median(v), 2) for phase, v in found[0][name]["phases"].items()
            }
    return table


def show(
    workers: int, rate: str | None, elements: int, by: int, table: dict[str, dict[str, float]]
) -> list[dict[str, object]]:
    """Prints the table of one network. Returns the rows that have a target."""
    print(f"\n{workers} workers, {dilation.words(rate, by)}, {elements / 1e6:g} M elements", flush=True)
    bits = elements / 8
    for name, row in table.items():
        line = f"  {name:<16} {row['ms']:9.2f} ms  {row['sent'] / 1e6:9.3f} MB sent  ({row['sent'] / bits:6.2f} x n/8)"
        if name != "sign":
            line += f"  {row['ms'] / table['sign']['ms']:6.1f} x sign"
        if phases := row.get("phases_ms"):
            line += "  " + ", ".join(f"{k} {v}" for k, v in phases.items())
        print(line)
    rows: list[dict[str, object]] = []
    most = 2 * bits * (workers - 1) / workers * 1.03 + 65536
    sent = table["sign"]["sent"]
    rows.append({"what": f"bytes sent, W = {workers}, {rate}", "must": f"<= {most:.0f}", "got": sent, "ok": sent <= most})
    if (workers, rate, elements) == RATIO_AT:
        for name, must in MUST.items():
            got = table[name]["ms"] / table["sign"]["ms"]
            dilated = f", dilated {by} times" if by > 1 else ""
            rows.append({"what": f"{name} all-reduce / ours{dilated}", "must": f">= {must}", "got": round(got, 1), "ok": got >= must})
    for row in rows:
        print(f"  {row['what']}: must {row['must']}, got {row['got']}: {'ok' if row['ok'] else 'MISSED'}")
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--workers", default="2,4,8")
    parser.add_argument("--rates", default="1gbit,none", help="in tc's form; none: no limit")
    parser.add_argument("--elements", type=int, default=10_000_000)
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--dilate", action="store_true", help="slow links as much as workers that share cores")
    parser.add_argument("--out", type=Path, default=Path("out/bench/sign-network.json"))
    args = parser.parse_args()
    if why := Network.missing():
        raise SystemExit(f"cannot make a network here: {why}")
    result: dict[str, object] = {"machine": machine.describe(["torch", "lowtide"]), "elements": args.elements}
    networks, rows = [], []
    for rate in (None if rate == "none" else rate for rate in args.rates.split(",")):
        for workers in map(int, args.workers.split(",")):
            by = dilation.factor(workers) if args.dilate else 1
            table = measure(workers, rate, args.elements, args.rounds, by)
            rows += show(workers, rate, args.elements, by, table)
            networks.append({"workers": workers, "rate": rate, "dilation": by, "contenders": table})
    result |= {"networks": networks, "rows": rows}
    args.out.parent.mkdir(parents=True, exist_ok=True)
    results.write(args.out, result)
    print(f"written: {args.out}")


if __name__ == "__main__":
    main()
