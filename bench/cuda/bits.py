"""The same bits wherever state lives: parameters and state on the CPU, resident on the GPU, and streaming, byte by byte."""

from __future__ import annotations

from typing import Any

import torch

from cuda import contenders
from cuda.device import Gpu
from cuda.rows import Rows

SHAPES = [(1,), (255,), (256,), (257,), (1_000_003,), (33, 1000), (64, 4096), (3, 5, 7)]
STATES = ("dynamic8", "bf16", "fp32")
TYPES = (torch.float32, torch.bfloat16, torch.float16)
STEPS = 5


def start(device: torch.device, dtype: torch.dtype) -> list[torch.nn.Parameter]:
    source = torch.Generator().manual_seed(3)
    return [torch.nn.Parameter(torch.randn(shape, generator=source).to(dtype).to(device)) for shape in SHAPES]


def run(gpu: Gpu, params: list[torch.nn.Parameter], state: str, memory: Any) -> list[torch.Tensor]:
    """Parameters and state after some steps, as bytes on the CPU."""
    optimizer = contenders.lowtide_adamw(gpu, params, state, memory=memory)
    source = torch.Generator().manual_seed(4)
    for _ in range(STEPS):
        for param in params:
            param.grad = torch.randn(param.shape, generator=source).to(param.dtype).to(param.device)
        optimizer.step()
    entries = optimizer.state_dict()["state"]
    values = [param.detach() for param in params]
    for number in sorted(entries):
        values += [value for _, value in sorted(entries[number].items()) if isinstance(value, torch.Tensor)]
    return [value.detach().cpu().contiguous().reshape(-1).view(torch.uint8).clone() for value in values]


def tiers(gpu: Gpu, rows: Rows) -> None:
    compared = differing = 0
    places = {"resident": None, "streaming": contenders.budget(gpu, device="1MiB", path="copy"),
              "zero-copy": contenders.budget(gpu, device="1MiB", path="zero_copy"),
              "hybrid": contenders.budget(gpu, device="1MiB", path="hybrid")}  # fmt: skip
    per_place = dict.fromkeys(places, 0)
    for dtype in TYPES:
        for state in STATES:
            wanted = run(gpu, start(torch.device("cpu"), dtype), state, None)
            for place, memory in places.items():
                got = run(gpu, start(gpu.device, dtype), state, memory)
                if len(got) != len(wanted) or any(len(a) != len(b) for a, b in zip(got, wanted, strict=True)):
                    raise RuntimeError(f"{place}, {state}, {dtype}: got state of another shape than on the CPU")
                wrong = sum(int((a != b).sum()) for a, b in zip(got, wanted, strict=True))
                compared += sum(map(len, wanted))
                per_place[place] += wrong
                differing += wrong
    rows.add("resident and streaming against the CPU: differing bytes", differing, "bytes", "same_bits",
             compared=compared, **per_place)  # fmt: skip


CASES = {"bits.tiers": tiers}
