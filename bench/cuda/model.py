"""The share of the copy rate that a step can be expected to reach: tools/step_model.py has counted, for compute
capability 9.0, the slots that each pipe takes for an element, and the machine tells what it has while the step's
bytes move.
"""

from __future__ import annotations

import json
import sys
from functools import cache
from pathlib import Path
from typing import Any

from bench.cuda.device import Gpu

ROOT = Path(__file__).resolve().parents[2]
sys.path.append(str(ROOT / "tools"))

CAPABILITY = 9  # major
LATENCIES = 0.8  # of the ceiling is left by latencies, where the model has not simulated them


@cache
def counted() -> dict[tuple[str, str], dict[str, Any]]:
    """The newest figures that are kept, by configuration and arithmetic."""
    kept = sorted((ROOT / "docs" / "benchmarks").glob("cuda-steps-*.json"))
    return {(step["name"], step["arithmetic"]): step for step in json.loads(kept[-1].read_text())} if kept else {}


def expected(gpu: Gpu, rule: str, state: str, dtype: str, options: dict[str, Any], copied: float) -> float | None:
    """At most 1; None for steps that were not counted, and for other GPUs. `copied`: bytes/s of the device's copy."""
    from sass.pipes import MACHINES, Machine

    name = f"{rule.lower()}, {state}, {dtype},{dtype}"
    if rounding := options.get("rounding"):
        name += f", {rounding}"
    step = counted().get((name, options.get("arithmetic", "exact")))
    machine = MACHINES[0]
    if not gpu.rehearsed:
        found = gpu.cuda.get_device_properties(gpu.device)
        if found.major != CAPABILITY:
            return None
        machine = Machine(found.name, found.multi_processor_count, machine.clock, copied)
    if not step:
        return None
    ceiling = min(1.0, machine.slots_of(step["bytes"]) / max(step["slots"].values()))
    return float(step.get("scheduled") or LATENCIES * ceiling)
