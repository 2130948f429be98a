"""State on the device: steps compared with the device's own copy bandwidth, and with other optimizers."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import torch

from bench.common import contenders as rivals
from bench.cuda import contenders, shapes
from bench.cuda.device import Gpu
from bench.cuda.rows import Rows
from bench.cuda.timing import Step, in_turns

SCALES = 2 * 2 * 4 / 256  # bytes per element to read and write scales of two moments, in blocks of 256
TYPES = {"bf16": torch.bfloat16, "fp32": torch.float32}
# The formats, roundings and options to measure. By default (beta2 = 0.999), second moments of 8 and 16 bits, and all states in
# float8, are rounded stochastically.
STEPS: tuple[tuple[str, str, dict[str, Any]], ...] = (
    ("dynamic8", "exact", {}),
    ("dynamic8", "fast", {"arithmetic": "fast"}),
    ("dynamic8", "exact, nearest", {"rounding": "nearest"}),
    ("dynamic8", "fast, nearest", {"rounding": "nearest", "arithmetic": "fast"}),
    ("dynamic8", "exact, all stochastic", {"rounding": "stochastic"}),
    ("dynamic8", "exact + check", {"nonfinite": "skip"}),
    ("float8", "exact", {}),
    ("fp32", "exact", {}),
    ("fp32", "fast", {"arithmetic": "fast"}),
    ("fp32", "exact + check", {"nonfinite": "skip"}),
    ("bf16", "exact", {}),
    ("bf16", "exact, nearest", {"rounding": "nearest"}),
)
# The figures for bf16 parameters, by format and label.
FIGURES = {("dynamic8", "exact"): "resident_default", ("dynamic8", "exact, nearest"): "resident_nearest", ("fp32", "exact"): "resident_fp32"}
ALL_FITS = "80%"  # a budget that keeps all state on the device from the first step on


def bytes_each(dtype: torch.dtype, state: str) -> float:
    """Bytes per element that a step of AdamW reads and writes: parameter twice, gradient once, two moments twice."""
    of_states = {"dynamic8": 4 * 1 + SCALES, "float8": 4 * 1 + SCALES, "bf16": 4 * 2, "fp32": 4 * 4}
    return 3 * dtype.itemsize + of_states[state]


def copy_step(gpu: Gpu, count: int) -> Step:
    """A copy on the device that reads `count` bytes and writes as many."""
    source = torch.ones(count, dtype=torch.uint8, device=gpu.device)
    target = torch.empty_like(source)
    return Step(lambda: target.copy_(source))


def bandwidth(gpu: Gpu, rows: Rows) -> None:
    half = gpu.size(2 << 30, 1 << 20)
    for name, dtype in TYPES.items():
        count = gpu.elements(1_000_000_000, 300_000, 2 * dtype.itemsize + 12)
        params = gpu.parameters(shapes.one(count), dtype)
        count = params[0].numel()
        for state, label, options in STEPS:
            judged = FIGURES.get((state, label)) if name == "bf16" else None

            def measure(name: str = name, dtype: Any = dtype, params: Any = params, count: int = count,
                        state: str = state, label: str = label, options: Any = options,
                        judged: str | None = judged) -> None:  # fmt: skip
                memory = contenders.budget(gpu, device=ALL_FITS)
                optimizer = contenders.lowtide_adamw(gpu, params, state, memory=memory, **options)
                contenders.settle(gpu, optimizer)
                found = in_turns(gpu, {"step": Step(optimizer.step), "copy": copy_step(gpu, half)}, seconds=2)
                contenders.still_resident(gpu, optimizer)
                moved = count * (bytes_each(dtype, state) + (dtype.itemsize if "check" in label else 0))
                rate, limit = moved / found["step"].median(), 2 * half / found["copy"].median()
                rows.add(f"AdamW {state}, {name} p and g, {label}: bandwidth / copy", rate / limit, "x", judged,
                         elements=count, gb_per_s=rate * 1e-9, copy_gb_per_s=limit * 1e-9,
                         **found["step"].data())  # fmt: skip

            rows.attempt(f"AdamW {state}, {name}, {label}", measure, judged)
        del params, measure  # measure refers to them, too
        gpu.free()


def budget(gpu: Gpu, rows: Rows) -> None:
    """A budget in which everything fits must not cost more than none."""
    count = gpu.elements(1_000_000_000, 300_000, 12)
    params = gpu.parameters(llama(gpu, shapes.LLAMA_7B, count), torch.bfloat16)
    made = {"none": contenders.lowtide_adamw(gpu, params)}
    for device in ("50%", "auto"):
        memory = contenders.budget(gpu, device=None if gpu.rehearsed else device)
        made[device] = contenders.lowtide_adamw(gpu, params, memory=memory)
    steps = {name: Step(contenders.settle(gpu, optimizer).step) for name, optimizer in made.items()}
    for which in ("event", "wall"):
        found = in_turns(gpu, steps, seconds=12, rounds=60, idle=which == "wall")
        for optimizer in made.values():
            contenders.still_resident(gpu, optimizer)
        for device in ("50%", "auto"):
            rows.add(f"all fits: Memory(device={device!r}) / none, {which} time",
                     found[device].median(which) / found["none"].median(which), "x",
                     "fits_overhead" if (device, which) == ("50%", "event") else None,
                     **found[device].data())  # fmt: skip


def llama(gpu: Gpu, model: shapes.Llama, elements: int) -> shapes.Shapes:
    """The tensors of a model; in a rehearsal, some of a tiny one."""
    return shapes.LLAMA_100M.shapes(1)[1:7] if gpu.rehearsed else model.fitting(elements)


def compare(gpu: Gpu, rows: Rows, where: str, params: Any, others: dict[str, Callable[..., Any]],
            figures: dict[str, str]) -> None:  # fmt: skip
    """Compares each of `others` with 8-bit Lowtide, in turn over the same parameters. figures: ids by label."""
    elements = sum(param.numel() for param in params)
    memory = contenders.budget(gpu, device=ALL_FITS)
    lowtide = contenders.settle(gpu, contenders.lowtide_adamw(gpu, params, memory=memory))
    steps = {"lowtide": Step(lowtide.step)}
    for label, make in others.items():

        def add(label: str = label, make: Any = make) -> None:
            optimizer = make(params, lr=contenders.LR)
            optimizer.step()  # fails here if it cannot run, not during the measurement
            steps[label] = Step(optimizer.step)

        rows.attempt(f"{where}: {label}", add, figures.get(label))
    found = in_turns(gpu, steps, seconds=25)
    contenders.still_resident(gpu, lowtide)
    own = found["lowtide"]
    rows.add(f"{where}: Lowtide AdamW dynamic8", elements / own.median() * 1e-9, "Gelt/s", **own.data())
    for label, series in found.items():
        if label != "lowtide":
            rows.add(f"{where}: {label} / Lowtide", series.median() / own.median(), "x", figures.get(label),
                     **series.data())


def peers(gpu: Gpu, rows: Rows, where: str, shape: Callable[[int], shapes.Shapes], types: tuple[str, ...], elements: int,
          figures: dict[str, dict[str, str]]) -> None:  # fmt: skip
    for name in types:
        dtype = TYPES[name]
        params = gpu.parameters(shape(gpu.elements(elements, 300_000, 4 * dtype.itemsize + 12)), dtype)
        others = {
            "bitsandbytes AdamW8bit": rivals.bitsandbytes,
            "torch AdamW(fused)": rivals.torch_fused,
            # Without the error that it keeps beside bfloat16 weights by default, because the others keep none.
            "FlashOptim FlashAdamW": partial(rivals.flashoptim, master_weight_bits=None),
        }
        compare(gpu, rows, f"{where}, {len(params)} tensors, {name}", params, others, figures.get(name, {}))
        del params, others
        gpu.free()


def peers_7b(gpu: Gpu, rows: Rows) -> None:
    """In bf16, torch's state is bf16, too: 14 bytes against 10. So its figure is for fp32 parameters."""
    figures = {"bf16": {"bitsandbytes AdamW8bit": "bnb_resident"}, "fp32": {"torch AdamW(fused)": "torch_resident"}}
    peers(gpu, rows, "7B shape", lambda n: llama(gpu, shapes.LLAMA_7B, n), ("bf16", "fp32"), 1_500_000_000, figures)
    peers(gpu, rows, "LLaMA 3 8B shape", lambda n: llama(gpu, shapes.LLAMA_8B, n), ("bf16",), 1_750_000_000, {})


CASES = {
    "resident.bandwidth": bandwidth,
    "resident.budget": budget,
    "resident.peers_7b": peers_7b,
}
