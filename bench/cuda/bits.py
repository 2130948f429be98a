"""Compares bits for every rule and format, for all mantissas, and wherever state lives: on the CPU, resident on the GPU and
streaming, byte by byte.
"""

from __future__ import annotations

from collections.abc import Callable
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
RULES = ("AdamW", "Adam", "NAdam", "Lion", "SGD", "RMSprop", "Adagrad", "AdEMAMix", "LAMB", "LARS")
FORMATS = ("dynamic8", "float8", "dynamic4", "bf16", "fp32")
RULE_SHAPES = [(257,), (100_003,), (64, 4096)]
# The most that a fast step of AdamW may differ, relative to the exact one: 14, and rounding (docs/project/cuda.md).
FAST_BOUND = 15 * 2**-24
Place = Callable[[torch.Tensor, torch.dtype], torch.Tensor]  # copies to the place
PLACES = {"resident": {"device": "1GiB"}, "copy": {"device": DEVICE, "transfer": "copy"},
          "zero_copy": {"device": DEVICE, "transfer": "zero_copy"},
          "hybrid": {"device": DEVICE, "transfer": "hybrid"}}  # fmt: skip


def values(shapes: list[tuple[int, ...]], seed: int) -> list[torch.Tensor]:
    source = torch.Generator().manual_seed(seed)
    return [torch.randn(shape, generator=source) for shape in shapes]


def on_cpu(value: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    return value.to(dtype, copy=True)


def run(gpu: Gpu, start: list[torch.Tensor], grads: list[list[torch.Tensor]], place: Place, dtype: torch.dtype,
        state: str, memory: Any, **options: Any) -> tuple[list[torch.Tensor], int]:  # fmt: skip
    """Parameters and state after some steps, as bytes on the CPU, and the bytes of state that each step moved."""
    params = [torch.nn.Parameter(place(value, dtype)) for value in start]
    optimizer = contenders.lowtide_optimizer(gpu, params, state=state, memory=memory, **options)
    for step in grads:
        for param, grad in zip(params, step, strict=True):
            param.grad = place(grad, dtype)
        optimizer.step()
    gpu.cuda.synchronize()
    moved = optimizer.report().get("moved_per_step", 0)
    entries = optimizer.state_dict()["state"]
    tensors = [param.detach() for param in params]
    for number in sorted(entries):
        tensors += [value for _, value in sorted(entries[number].items()) if isinstance(value, torch.Tensor)]
    return [value.detach().cpu().contiguous().reshape(-1).view(torch.uint8) for value in tensors], moved


def differing(got: list[torch.Tensor], right: list[torch.Tensor]) -> int:
    if [len(value) for value in got] != [len(value) for value in right]:
        raise RuntimeError("got state of other sizes than on the CPU")
    return sum(int((a != b).sum()) for a, b in zip(got, right, strict=True))


def rules(gpu: Gpu, rows: Rows) -> None:
    """Compares every rule with every format that it takes, resident, with the CPU."""
    shapes = [(257,), (3, 300)] if gpu.rehearsed else RULE_SHAPES
    start, grads = values(shapes, 3), [values(shapes, 4 + step) for step in range(gpu.size(3, 1))]
    wrong = compared = 0
    complete = True
    for rule in RULES:
        refused: list[str] = []
        totals = {"bytes": 0, "wrong": 0}

        def measure(rule: str = rule, refused: list[str] = refused, totals: dict[str, int] = totals) -> None:
            for state in FORMATS:
                given: dict[str, Any] = {"state": state, "rule": rule, "dtype": torch.bfloat16}
                try:
                    right, _ = run(gpu, start, grads, on_cpu, memory=None, **given)
                except ValueError:
                    refused.append(state)
                    continue
                got, _ = run(gpu, start, grads, gpu.tensor, memory=contenders.budget(gpu, device="1GiB"), **given)
                totals["wrong"] += differing(got, right)
                totals["bytes"] += sum(map(len, right))
            rows.add(f"{rule} against the CPU: differing bytes", totals["wrong"], "bytes", compared=totals["bytes"],
                     refused=refused)  # fmt: skip

        rows.attempt(f"{rule} against the CPU", measure)
        complete &= "absent" not in rows.rows[-1]
        wrong, compared = wrong + totals["wrong"], compared + totals["bytes"]
    if complete or wrong:
        rows.add("all rules against the CPU: differing bytes", wrong, "bytes", "same_bits", compared=compared)
    else:
        rows.absent("all rules against the CPU", "not all of them could be compared", "same_bits")


def mantissas(gpu: Gpu, rows: Rows) -> None:
    """Compares first steps from zeros, with gradients of all fp32 mantissas. Exact steps have the bits of the CPU. Fast steps,
    whose approximate divisions and roots only GPUs have, are within their bound."""
    exponents = gpu.size(4, 1)
    patterns = torch.arange(0, 1 << 23, gpu.size(1, 4099), dtype=torch.int32)
    grad = torch.cat([(patterns + ((127 - 3 * e) << 23)).view(torch.float32) for e in range(exponents)])
    places: list[tuple[Place, dict[str, Any]]] = [(on_cpu, {}), (gpu.tensor, {}), (gpu.tensor, {"arithmetic": "fast"})]
    found = []
    for place, options in places:
        param = torch.nn.Parameter(place(torch.zeros(grad.shape), torch.float32))
        param.grad = place(grad, torch.float32)
        contenders.lowtide_optimizer(gpu, [param], state="fp32", weight_decay=0.0, **options).step()
        gpu.cuda.synchronize()
        found.append(param.detach().cpu())
    exact, same, fast = found
    wrong = int((exact.view(torch.int32) != same.view(torch.int32)).sum())
    rows.add("all mantissas, exact: differing values", wrong, "", "mantissas", compared=len(grad))
    error = ((fast.double() - exact.double()) / exact.double()).abs().max()
    rows.add("all mantissas, fast: largest error / its bound", float(error) / FAST_BOUND, "x", "fast_error",
             differing=int((exact != fast).sum()), compared=len(grad))  # fmt: skip


def tiers(gpu: Gpu, rows: Rows) -> None:
    shapes = [(257,), (32, 4096)] if gpu.rehearsed else [*SHAPES, LARGE]
    start, grads = values(shapes, 3), [values(shapes, 4 + step) for step in range(gpu.size(STEPS, 2))]
    wanted = {
        (dtype, state): run(gpu, start, grads, on_cpu, dtype, state, None)[0]
        for dtype in TYPES
        for state in STATES
    }
    compared = wrong = 0
    complete = True
    for place, given in PLACES.items():
        totals = {"bytes": 0, "wrong": 0}

        def measure(given: Any = given, place: str = place, totals: dict[str, int] = totals) -> None:
            for (dtype, state), right in wanted.items():
                got, moved = run(gpu, start, grads, gpu.tensor, dtype, state, contenders.budget(gpu, **given))
                if gpu.on_device and (moved == 0) != (place == "resident"):
                    raise RuntimeError(f"{state}, {dtype}: got {moved} bytes moved in each step of {place}")
                totals["wrong"] += differing(got, right)
                totals["bytes"] += sum(map(len, right))
            rows.add(f"{place} against the CPU: differing bytes", totals["wrong"], "bytes", compared=totals["bytes"])

        rows.attempt(f"{place} against the CPU", measure)
        complete &= "absent" not in rows.rows[-1]
        compared += totals["bytes"]
        wrong += totals["wrong"]
    if complete or wrong:
        rows.add(
            "resident and streaming against the CPU: differing bytes", wrong, "bytes", "same_bits", compared=compared
        )
    else:
        rows.absent("resident and streaming against the CPU", "not all places could be compared", "same_bits")


CASES = {"bits.rules": rules, "bits.mantissas": mantissas, "bits.tiers": tiers}
