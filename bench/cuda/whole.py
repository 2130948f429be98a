"""Whole training steps of models with random weights, by bench/e2e: each optimizer in a process of its own."""

from __future__ import annotations

import sys
from functools import partial
from pathlib import Path
from typing import Any

from bench.cuda.device import Gpu
from bench.cuda.rows import Absent, Rows

BATCH, LENGTH = 8, 512
LIMIT_S = 90.0  # for a process
FIGURE, COMPARED = "whole", ("lowtide", "bitsandbytes")
OPTIMIZERS = ("lowtide", "bitsandbytes", "torch", "torch-masters")  # the last two keep bf16 and fp32 state
DETAILS = ("optimizer_share", "device_peak_bytes", "ram_peak_bytes", "state_bytes", "loss", "command")


def training(gpu: Gpu, rows: Rows, model: str, names: tuple[str, ...], **options: Any) -> None:
    """Tokens a second with each optimizer, and the default's relative to bitsandbytes'."""
    sys.path.insert(0, str(Path(__file__).resolve().parents[1]))  # bench/e2e is a program
    from e2e import run
    from e2e.contenders import Job

    job = Job(model=model, device="cuda", dtype="bf16", batch=BATCH, seq=LENGTH, lr=1e-5, steps=8, **options)
    if gpu.rehearsed:
        job, names = Job(model="32x1x64x2x256", batch=1, seq=16, warmup=1, steps=1), names[:1]
    speeds = {}
    for name in names:

        def measure(name: str = name) -> None:
            try:
                found = run.turn(job, name, None, LIMIT_S)
            except run.Absent as reason:
                raise Absent(str(reason)) from None
            speeds[name] = found["tokens_per_s"]
            rows.add(f"{model}: {name}", speeds[name], "tokens/s", **{key: found[key] for key in DETAILS})

        rows.attempt(f"{model}: {name}", measure, FIGURE if name in COMPARED else None)
    for name in [each for each in speeds if each != "lowtide"] if "lowtide" in speeds else ():
        figure = FIGURE if name in COMPARED else None
        rows.add(f"{model}: lowtide / {name}", speeds["lowtide"] / speeds[name], "", figure)


CASES = {
    "whole.1b": partial(training, model="2048x18x5632x16x32000", names=OPTIMIZERS),
    "whole.7b": partial(training, model="Llama-2-7B", names=OPTIMIZERS[:2], checkpointing=True),
}
