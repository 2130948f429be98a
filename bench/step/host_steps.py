#!/usr/bin/env python3
"""Measures what a step by the CPU costs for parameters on a device, beside the same step of parameters on the CPU: CPU time without the
copies, which a device's own engines make, and seconds beside the plan's.

    .venv/bin/python bench/step/host_steps.py [--elements 64e6] [--rounds 9] [--out FILE]

The device is the tests' (tests/python/devices/toy_device.cpp): torch's PrivateUse1 on memory of the CPU, without streams, whose copies the CPU
makes. They are timed by themselves in every round, for the same tensors, and taken off. Contenders take turns.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

sys.path[0] = str(Path(__file__).resolve().parents[1])
sys.path.append(str(Path(__file__).resolve().parents[2] / "tests" / "python" / "devices"))

import lowtide  # noqa: E402
import torch  # noqa: E402
from common import machine, results  # noqa: E402

MOST, PREDICTED = 1.1, 0.15  # of a step of parameters on the CPU; off by so much at most
COLUMNS = 4096


def timed(work: Callable[[], object]) -> tuple[float, float]:
    """Seconds, and seconds of the process's CPU time."""
    cpu, begin = time.process_time(), time.perf_counter()
    work()
    return time.perf_counter() - begin, time.process_time() - cpu


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--elements", type=float, default=64e6)
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--out", type=Path, default=Path("out/bench/host-steps.json"))
    args = parser.parse_args()
    import toy_device

    toy_device.load(Path(tempfile.mkdtemp()))
    rows, each = 256, 256 * COLUMNS
    count = max(round(args.elements / each), 1)
    print(machine.describe(["torch", "lowtide"]))
    found = []
    for dtype in (torch.bfloat16, torch.float32):
        for state in ("dynamic8", "fp32"):
            here = [torch.nn.Parameter(torch.randn(rows, COLUMNS).to(dtype)) for _ in range(count)]
            there = [torch.nn.Parameter(param.detach().to("toy")) for param in here]
            for one, other in zip(here, there, strict=True):
                one.grad = torch.randn_like(one)
                other.grad = one.grad.to("toy")
            resident, host = (lowtide.AdamW(params, lr=1e-3, state=state) for params in (here, there))
            copies = [[torch.empty_like(param) for param in here] for _ in range(2)]

            def copy(there: list[torch.nn.Parameter] = there, copies: list[list[torch.Tensor]] = copies) -> None:
                """As a step does it: all gradients, all weights, all weights back."""
                for param, mirror in zip(there, copies[0], strict=True):
                    assert param.grad is not None
                    mirror.copy_(param.grad)
                for param, mirror in zip(there, copies[1], strict=True):
                    mirror.copy_(param.detach())
                for param, mirror in zip(there, copies[1], strict=True):
                    param.detach().copy_(mirror)

            works = {"resident": resident.step, "host": host.step, "copies": copy}
            taken: dict[str, list[tuple[float, float]]] = {name: [] for name in works}
            for turn in range(args.rounds + 2):
                for name, work in works.items():
                    one = timed(work)
                    if turn >= 2:
                        taken[name].append(one)
            cpu = [(h[1] - c[1]) / r[1] for h, c, r in zip(taken["host"], taken["copies"], taken["resident"], strict=True)]
            # The plan is told the rate of the CPU's steps and that of copies one after the other.
            seconds = {name: statistics.median(one[0] for one in times) for name, times in taken.items()}
            moved = sum(3 * param.numel() * param.element_size() for param in here)
            rates = lowtide.Rates(step=resident.report()["state_bytes"] / seconds["resident"], link=moved / seconds["copies"])
            plan = lowtide.plan(there, state=state, memory=lowtide.Memory(step="host"), on="privateuseone", rates=rates)
            assert isinstance(plan, lowtide.DeviceForecast)
            row = {
                "dtype": str(dtype), "state": state, "elements": count * each, "ms": {name: 1e3 * value for name, value in seconds.items()},
                "cpu_ratio": statistics.median(cpu), "planned_ms": 1e3 * plan.seconds, "planned_ratio": plan.seconds / seconds["host"],
            }  # fmt: skip
            found.append(row)
            print(
                f"{row['dtype']:<15} {state:<9} ms: " + ", ".join(f"{name} {value:.1f}" for name, value in row["ms"].items())
                + f"; CPU time without copies / resident {row['cpu_ratio']:.3f} (must: {MOST} or less); planned / measured "
                f"{row['planned_ratio']:.3f} (must: within {PREDICTED:.0%})", flush=True,
            )  # fmt: skip
    args.out.parent.mkdir(parents=True, exist_ok=True)
    results.write(args.out, {"machine": machine.describe(["torch", "lowtide"]), "rows": found})


if __name__ == "__main__":
    main()
