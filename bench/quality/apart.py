"""How far weights end from those that float32 state makes of the same gradients.

Gradients stop after a while for all but one element in 32; what they did until then stays in the weights. Schedule-Free's z and the average x
of all z are sums without a time after which they forget, and so are the errors of state in them. What grows after gradients
have stopped is the rounding of a state that has nothing more to learn. (AdamW has one kind of weights.)
"""

from __future__ import annotations

from typing import Any

import torch

from quality.fidelity import LIVE, LR, ROW, Sizes, live_and_silent, scales
from quality.variants import Variant

BETA1 = 0.9
LIVING = (1.0, 1.0)  # mean and standard deviation of live gradients
MOMENTS = ("stopped", "end")  # where it is measured: as gradients stop, and `rest_to` steps later


def measure(variant: Variant, float32: Variant, beta2: float, sizes: Sizes) -> dict[str, Any]:
    """Root mean square and largest distance of silent parameters from those of `float32`, a variant of the same rule, in
    learning rates."""
    source = torch.Generator().manual_seed(5)
    scale = scales(sizes.rows * 2, 2, source)
    params = [torch.nn.Parameter(torch.zeros(scale.shape)) for _ in range(2)]
    optimizers = [
        of.make([param], lr=LR, betas=(BETA1, beta2), eps=1e-8, weight_decay=0.0)
        for of, param in zip((variant, float32), params, strict=True)
    ]
    found: dict[str, Any] = {"variant": variant.id, "beta2": beta2}
    last = sizes.rest_before + sizes.rest_to
    for step in range(1, last + 1):
        grad = live_and_silent(scale, LIVING, step > sizes.rest_before, source)
        for param, optimizer in zip(params, optimizers, strict=True):
            param.grad = grad.clone()
            optimizer.step()
        if step in (sizes.rest_before, last):
            mine, exact = (_weights(param, optimizer) for param, optimizer in zip(params, optimizers, strict=True))
            found[MOMENTS[step == last]] = {name: _distance(mine[name] - exact[name]) for name in mine}
    return found


def _distance(apart: torch.Tensor) -> dict[str, float]:
    silent = apart.reshape(-1, ROW // LIVE, LIVE)[:, :, 1:] / LR
    return {"rms": float(silent.square().mean().sqrt()), "largest": float(silent.abs().max())}


def _weights(param: torch.nn.Parameter, optimizer: Any) -> dict[str, torch.Tensor]:
    """In float64; z of Schedule-Free from y = (1 - beta1) z + beta1 x, whose weights are back at y then."""
    now = param.detach().double()
    if not hasattr(optimizer, "eval"):
        return {"weights": now}
    optimizer.eval()
    x = param.detach().double()
    optimizer.train()
    return {"z": now + (now - x) * BETA1 / (1 - BETA1), "x": x}
