"""The first seconds on a GPU: its attributes, and one step by each kind of kernel compared with the CPU. If a step fails or has
other bits, no later result means anything.
"""

from __future__ import annotations

from typing import Any

import torch

from bench.cuda import bits, contenders
from bench.cuda.device import Gpu
from bench.cuda.rows import Rows

ALIGNED = [(1_000_000,), (300, 4096)]
ODD = [(1_000_003,), (301, 1001)]  # row lengths that are not multiples of 16
STEPS: tuple[tuple[str, list[tuple[int, ...]], dict[str, Any]], ...] = (
    ("dynamic8, the default step", ALIGNED, {"state": "dynamic8", "nonfinite": "skip"}),
    ("float8", ALIGNED, {"state": "float8"}),
    ("fp32", ALIGNED, {"state": "fp32"}),
    ("dynamic8, rows of odd length", ODD, {"state": "dynamic8"}),
)
ATTRIBUTES = ("name", "multi_processor_count", "total_memory", "L2_cache_size", "major", "minor",
              "shared_memory_per_block_optin", "regs_per_multiprocessor")  # fmt: skip


def attributes(gpu: Gpu) -> dict[str, Any]:
    found: dict[str, Any] = {"torch": torch.__version__, "cuda": torch.version.cuda, "free": gpu.free()}
    if not gpu.rehearsed:
        properties = gpu.cuda.get_device_properties(gpu.device)
        found |= {name: getattr(properties, name) for name in ATTRIBUTES if hasattr(properties, name)}
    return found


def smoke(gpu: Gpu, rows: Rows) -> None:
    import lowtide

    told = attributes(gpu)
    print("\n".join(f"  {name}: {value}" for name, value in told.items()), flush=True)
    rows.add("attributes", 1, "", backends={k: v["detail"] for k, v in lowtide.backends().items()}, **told)
    for label, shapes, options in STEPS:

        def measure(label: str = label, shapes: Any = shapes, options: Any = options) -> None:
            small = [(257,), (33, 100)] if gpu.rehearsed else shapes
            start, grads = bits.values(small, 3), [bits.values(small, 4)]
            memory = contenders.budget(gpu, device="1GiB")
            right, _ = bits.run(gpu, start, grads, bits.on_cpu, torch.bfloat16, memory=None, **options)
            got, _ = bits.run(gpu, start, grads, gpu.tensor, torch.bfloat16, memory=memory, **options)
            rows.add(f"one step, {label}: differing bytes", bits.differing(got, right), "bytes", "smoke")

        rows.attempt(f"one step, {label}", measure, "smoke")


CASES = {"smoke": smoke}
