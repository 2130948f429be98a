"""Uncommon steps compared with the default step over as many elements: rules, formats, types and layouts whose kernels are less
unrolled, and gradients so small that exact arithmetic needs care.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from bench.cuda import contenders, shapes
from bench.cuda.device import Gpu
from bench.cuda.resident import ALL_FITS
from bench.cuda.rows import Rows
from bench.cuda.timing import Step, in_turns

ELEMENTS = 300_000_000
ODD = 1001  # elements per row, not a multiple of 16
TINY = (1e-12, 1e-22, 1e-30, 1e-40, 0.0)

Params = list[torch.nn.Parameter]


def even(gpu: Gpu, count: int, dtype: torch.dtype) -> Params:
    return gpu.parameters(shapes.equal(count, 4), dtype)


def odd_rows(gpu: Gpu, count: int, dtype: torch.dtype) -> Params:
    return gpu.parameters([(max(1, count // 4 // ODD), ODD)] * 4, dtype)


def misaligned(gpu: Gpu, count: int, dtype: torch.dtype) -> Params:
    """Views that begin one element behind a 16-byte boundary."""
    made = []
    for param in gpu.parameters([(count // 4 + 1,)] * 4, dtype):
        view = torch.nn.Parameter(param.detach()[1:])
        assert param.grad is not None
        view.grad = param.grad[1:]
        made.append(view)
    return made


BF16, FP16, FP32 = torch.bfloat16, torch.float16, torch.float32
STEPS: tuple[tuple[str, Callable[[Gpu, int, torch.dtype], Params], torch.dtype, dict[str, Any]], ...] = (
    ("rows of 1001", odd_rows, BF16, {}),
    ("misaligned views", misaligned, BF16, {}),
    ("fp16 parameters", even, FP16, {}),
    *((f"master={kind!r}", even, BF16, {"master": kind}) for kind in (None, "residual16", "residual8")),
    ("dynamic4", even, BF16, {"state": "dynamic4"}),
    ("amsgrad", even, BF16, {"amsgrad": True}),
    *((rule, even, BF16, {"rule": rule}) for rule in ("RMSprop", "Adagrad", "AdEMAMix", "LAMB", "LARS", "Lion", "SGD")),
    ("fp32 parameters", even, FP32, {}),
)  # fmt: skip


FIGURES = {"LAMB": "norms", "LARS": "norms", "rows of 1001": "odd_rows", "misaligned views": "odd_rows"}
BYTES = {"master='residual16'": 14.0625 / 10.0625}  # read and written per element / those of the default step


def optimizer(gpu: Gpu, params: Params, options: dict[str, Any]) -> Any:
    memory = contenders.budget(gpu, device=ALL_FITS)
    made = contenders.lowtide_optimizer(gpu, params, memory=memory, **{"state": "dynamic8", **options})
    return contenders.settle(gpu, made)


def steps(gpu: Gpu, rows: Rows) -> None:
    count = gpu.elements(ELEMENTS, 100_000, 40)
    usual = Step(optimizer(gpu, even(gpu, count, BF16), {}).step)
    for label, make, dtype, options in STEPS:

        def measure(label: str = label, make: Any = make, dtype: torch.dtype = dtype, options: Any = options) -> None:
            params = make(gpu, count, dtype)
            found = in_turns(
                gpu, {"usual": usual, "it": Step(optimizer(gpu, params, options).step)}, seconds=2, rounds=10
            )
            ratio = found["it"].median() / found["usual"].median()
            rows.add(f"{label}: time / the default step's", ratio, "x", FIGURES.get(label), elements=sum(map(torch.numel, params)), **found["it"].data())  # fmt: skip

            if label in BYTES:
                rows.add(f"{label}: that / what its bytes say", ratio / BYTES[label], "x", "bytes_say")

        rows.attempt(label, measure, FIGURES.get(label))
        gpu.free()


def tiny_gradients(gpu: Gpu, rows: Rows) -> None:
    count = gpu.elements(ELEMENTS, 100_000, 40)
    for state in ("dynamic8", "fp32"):
        usual = Step(optimizer(gpu, even(gpu, count, BF16), {"state": state}).step)
        for size in TINY:

            def measure(state: str = state, size: float = size, usual: Step = usual) -> None:
                params = even(gpu, count, BF16)
                for param in params:
                    assert param.grad is not None
                    param.grad.mul_(size / 0.01)
                found = in_turns(gpu, {"usual": usual, "it": Step(optimizer(gpu, params, {"state": state}).step)},
                                 seconds=2, rounds=10)  # fmt: skip
                rows.add(f"AdamW {state}, gradients of about {size:g}: time / the usual step's",
                         found["it"].median() / found["usual"].median(), "x", **found["it"].data())  # fmt: skip

            rows.attempt(f"AdamW {state}, gradients of about {size:g}", measure)
        gpu.free()


CASES = {"uncommon.steps": steps, "uncommon.tiny_gradients": tiny_gradients}
