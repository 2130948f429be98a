"""The same bits wherever state lives: on the CPU, resident on the GPU and streaming, byte by byte."""

from __future__ import annotations

from typing import Any

import torch

from bench.cuda import contenders
from bench.cuda.device import Gpu
from bench.cuda.rows import Rows

SHAPES = [(1,), (255,), (256,), (257,), (1_000_003,), (33, 1000), (64, 4096), (3, 5, 7)]
LARGE = (2048, 4096)  # more state than DEVICE in every format
DEVICE = "8MiB"
STATES = ("dynamic8", "float8", "bf16", "fp32")
TYPES = (torch.float32, torch.bfloat16, torch.float16)
STEPS = 5
PLACES = {"resident": {"device": "1GiB"}, "copy": {"device": DEVICE, "transfer": "copy"},
          "zero_copy": {"device": DEVICE, "transfer": "zero_copy"},
          "hybrid": {"device": DEVICE, "transfer": "hybrid"}}  # fmt: skip


def values(shapes: list[tuple[int, ...]], seed: int) -> list[torch.Tensor]:
    source = torch.Generator().manual_seed(seed)
    return [torch.randn(shape, generator=source) for shape in shapes]


def run(gpu: Gpu, start: list[torch.Tensor], grads: list[list[torch.Tensor]], device: torch.device, dtype: torch.dtype,
        state: str, memory: Any) -> tuple[list[torch.Tensor], int]:  # fmt: skip
    """Parameters and state after some steps, as bytes on the CPU, and the bytes of state that moved in each step."""
    params = [torch.nn.Parameter(value.to(device, dtype, copy=True)) for value in start]
    optimizer = contenders.lowtide_adamw(gpu, params, state, memory=memory)
    for step in grads:
        for param, grad in zip(params, step, strict=True):
            param.grad = grad.to(device, dtype)
        optimizer.step()
    moved = optimizer.report().get("moved_per_step", 0)
    entries = optimizer.state_dict()["state"]
    tensors = [param.detach() for param in params]
    for number in sorted(entries):
        tensors += [value for _, value in sorted(entries[number].items()) if isinstance(value, torch.Tensor)]
    return [value.detach().cpu().contiguous().reshape(-1).view(torch.uint8) for value in tensors], moved


def tiers(gpu: Gpu, rows: Rows) -> None:
    shapes = [(257,), (32, 4096)] if gpu.rehearsed else [*SHAPES, LARGE]
    start, grads = values(shapes, 3), [values(shapes, 4 + step) for step in range(gpu.size(STEPS, 2))]
    wanted = {
        (dtype, state): run(gpu, start, grads, torch.device("cpu"), dtype, state, None)[0]
        for dtype in TYPES
        for state in STATES
    }
    compared = differing = 0
    complete = True
    for place, given in PLACES.items():
        totals = {"bytes": 0, "wrong": 0}

        def measure(given: Any = given, place: str = place, totals: dict[str, int] = totals) -> None:
            for (dtype, state), right in wanted.items():
                got, moved = run(gpu, start, grads, gpu.device, dtype, state, contenders.budget(gpu, **given))
                if not gpu.rehearsed and (moved == 0) != (place == "resident"):
                    raise RuntimeError(f"{state}, {dtype}: got {moved} bytes moved in each step of {place}")
                if [len(value) for value in got] != [len(value) for value in right]:
                    raise RuntimeError(f"{state}, {dtype}: got state of other sizes than on the CPU")
                totals["wrong"] += sum(int((a != b).sum()) for a, b in zip(got, right, strict=True))
                totals["bytes"] += sum(map(len, right))
            rows.add(f"{place} against the CPU: differing bytes", totals["wrong"], "bytes", compared=totals["bytes"])

        rows.attempt(f"{place} against the CPU", measure)
        complete &= "absent" not in rows.rows[-1]
        compared += totals["bytes"]
        differing += totals["wrong"]
    if complete or differing:
        rows.add(
            "resident and streaming against the CPU: differing bytes",
            differing,
            "bytes",
            "same_bits",
            compared=compared,
        )
    else:
        rows.absent("resident and streaming against the CPU", "not all places could be compared", "same_bits")


CASES = {"bits.tiers": tiers}
