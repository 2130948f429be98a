"""How far Schedule-Free's weights end from those that float32 state makes of the same gradients.

z and the average x of all z are sums without a time after which they forget. Errors of state stay in them, most of all in
parameters whose gradients have stopped: nothing brings these back.
"""

from __future__ import annotations

from typing import Any

import torch

from quality.fidelity import LIVE, LR, ROW, Sizes, live_and_silent, scales
from quality.variants import FLOAT32_SCHEDULE_FREE, Variant

BETAS = (0.9, 0.999)
LIVING = (1.0, 1.0)  # mean and standard deviation of live gradients


def measure(variant: Variant, sizes: Sizes) -> dict[str, Any]:
    """Root mean square and largest distance of silent parameters, in learning rates."""
    source = torch.Generator().manual_seed(5)
    scale = scales(sizes.rows * 2, 2, source)
    params = [torch.nn.Parameter(torch.zeros(scale.shape)) for _ in range(2)]
    optimizers = [
        of.make([param], lr=LR, betas=BETAS, eps=1e-8, weight_decay=0.0)
        for of, param in zip((variant, FLOAT32_SCHEDULE_FREE), params, strict=True)
    ]
    for step in range(sizes.rest_before + sizes.rest_to):
        grad = live_and_silent(scale, LIVING, step >= sizes.rest_before, source)
        for param, optimizer in zip(params, optimizers, strict=True):
            param.grad = grad.clone()
            optimizer.step()
    mine, exact = (_z_and_x(param, optimizer) for param, optimizer in zip(params, optimizers, strict=True))
    found: dict[str, Any] = {"variant": variant.id}
    for name in ("z", "x"):
        far = (mine[name] - exact[name]).reshape(-1, ROW // LIVE, LIVE)[:, :, 1:] / LR
        found[name] = {"rms": float(far.square().mean().sqrt()), "largest": float(far.abs().max())}
    return found


def _z_and_x(param: torch.nn.Parameter, optimizer: Any) -> dict[str, torch.Tensor]:
    """From y = (1 - beta1) z + beta1 x, in float64."""
    y = param.detach().double()
    optimizer.eval()
    x = param.detach().double()
    return {"z": y + (y - x) * BETAS[0] / (1 - BETAS[0]), "x": x}
