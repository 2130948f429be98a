"""The norm and the check of gradients beside a plain read of them, and clip + step + zero_grad beside torch's.

    python bench/step/clipping.py [Mi elements]
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from pathlib import Path

import torch

import lowtide

sys.path.insert(0, str(Path(__file__).parents[1]))
from step import ceiling  # noqa: E402

ROUNDS = 15


def fastest(calls: dict[str, Callable[[], object]], before: Callable[[], None]) -> dict[str, float]:
    """Seconds of each call, in turns, so that what else the machine does meets all of them."""
    times: dict[str, list[float]] = {name: [] for name in calls}
    for _ in range(ROUNDS):
        for name, call in calls.items():
            before()
            start = time.perf_counter()
            call()
            times[name].append(time.perf_counter() - start)
    return {name: min(all_of) for name, all_of in times.items()}


def measure(dtype: torch.dtype, elements: int) -> tuple[dict[str, float], dict[str, float]]:
    source = torch.Generator().manual_seed(7)
    param = torch.nn.Parameter(torch.randn(elements, generator=source).mul_(0.02).to(dtype))
    grad = torch.randn(elements, generator=source).mul_(0.01).to(dtype)
    param.grad = grad
    ours = lowtide.AdamW([param])
    theirs = torch.optim.AdamW([param], fused=True)
    ours.step()
    theirs.step()
    memory = ceiling.Buffers(param.data, grad, huge=False)
    width = dtype.itemsize

    def sequence(opt: torch.optim.Optimizer, clip: Callable[[], object]) -> Callable[[], None]:
        def call() -> None:
            clip()
            opt.step()
            opt.zero_grad()

        return call

    def restore() -> None:
        param.grad = grad

    def torchs() -> object:
        return torch.nn.utils.clip_grad_norm_([param], 1e9, foreach=True)  # multiplies by 1: gradients stay

    reads = {
        "plain read": lambda: memory.run((0, width, 0, 0)),
        "check": ours.engine.core.check,
        "norm": lambda: ours.clip_grad_norm_(1.0),
        "torch's clipping": torchs,
    }
    sequences = {
        "torch": sequence(theirs, torchs),
        "lowtide": sequence(ours, lambda: ours.clip_grad_norm_(1.0)),
    }
    found = fastest(reads, restore), fastest(sequences, restore)
    memory.close()
    return found


def main() -> None:
    elements = int(sys.argv[1] if len(sys.argv) > 1 else 64) << 20
    print(f"{elements >> 20} Mi elements, {torch.get_num_threads()} threads, dynamic8 AdamW, the fastest of {ROUNDS} rounds")
    for dtype in (torch.float32, torch.bfloat16, torch.float16):
        reads, sequences = measure(dtype, elements)
        plain, size = reads["plain read"], elements * dtype.itemsize
        words = [f"{name} {size / seconds / 1e9:.1f} GB/s ({plain / seconds:.2f})" for name, seconds in reads.items()]
        print(f"{str(dtype).removeprefix('torch.')}: " + ", ".join(words))
        ratio = sequences["torch"] / sequences["lowtide"]
        print(f"    clip + step + zero_grad: torch {sequences['torch'] * 1e3:.1f} ms, "
              f"lowtide {sequences['lowtide'] * 1e3:.1f} ms: {ratio:.2f} x torch")  # fmt: skip


if __name__ == "__main__":
    main()
