"""RamTorch's streamer of weights, on the CPU, with a Lowtide optimizer gives the bits of a model in memory."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from support import bits
from torch import nn

import lowtide

ramtorch = pytest.importorskip("ramtorch")
WIDTH, CHUNKS, STEPS = 128, 4, 4


@pytest.mark.parametrize("keep", [False, True, "checkpoint"])
@pytest.mark.parametrize(("kind", "options"), [
    (torch.float32, {}),
    (torch.bfloat16, {"master": "residual16"}),
    (torch.float32, {"memory": {"host": "96KiB"}}),
])  # fmt: skip
def test_ramtorch_streams_what_lowtide_steps(
    kind: torch.dtype, options: dict[str, Any], keep: bool | str, tmp_path: Path, seed: int, figure: Callable[[str], None]
) -> None:
    if "memory" in options:
        options = {"memory": {**options["memory"], "disk": str(tmp_path)}}
    data = torch.randn(STEPS, 2, 8, WIDTH)

    def chunks() -> list[nn.Module]:
        torch.manual_seed(seed)
        return [nn.Sequential(nn.Linear(WIDTH, 4 * WIDTH), nn.SiLU(), nn.Linear(4 * WIDTH, WIDTH)).to(kind) for _ in range(CHUNKS)]

    def loss(out: torch.Tensor, wanted: torch.Tensor) -> torch.Tensor:
        return nn.functional.mse_loss(out.float(), wanted)

    plain = nn.Sequential(*chunks())
    opt = lowtide.AdamW(plain.parameters(), lr=1e-3, max_grad_norm=0.5, **{k: v for k, v in options.items() if k != "memory"})
    for x, wanted in data:
        loss(plain(x.to(kind)), wanted).backward()
        opt.step()
        opt.zero_grad()
    model = ramtorch.OffloadModel(chunks(), device="cpu", keep_activations=keep)
    try:
        opt = lowtide.AdamW(model.parameters(), lr=1e-3, max_grad_norm=0.5, **options)
        for x, wanted in data:
            model.step(x.to(kind), targets=wanted, loss_fn=loss)
            model.flush_grads()
            opt.step()
        wrong = sum(bits(a) != bits(b) for a, b in zip(model.parameters(), plain.parameters(), strict=True))
        assert wrong == 0
        figure(f"RamTorch {ramtorch.__version__}, {kind}, {[*options]}, keep_activations={keep}: {wrong} of {2 * 2 * CHUNKS} tensors differ after {STEPS} steps")
    finally:
        model.close()
