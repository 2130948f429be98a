"""Muon (kellerjordan.github.io/posts/muon) with momentum in any codec, and beside it AdamW in float32.

Matrices of the layers go by Muon, as torch.optim.Muon computes it, and embeddings, the head and vectors by torch's AdamW.
Muon's learning rate is scaled to moves of AdamW's size (arXiv 2502.16982, 0.2 sqrt(max(rows, columns))).
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Literal

import torch
from torch.optim._muon import DEFAULT_A, DEFAULT_B, DEFAULT_C, DEFAULT_NS_STEPS, EPS, _adjust_lr, _zeropower_via_newtonschulz

from quality.model import BYTES, Size
from quality.studied import Codec

MOMENTUM = 0.95
ADJUST = "match_rms_adamw"
COEFFICIENTS = (DEFAULT_A, DEFAULT_B, DEFAULT_C)
Kind = Codec | Literal["torch", "lowtide"]  # momentum in this codec; in float32; in dynamic8


class Muon(torch.optim.Optimizer):
    """As torch.optim.Muon, Nesterov's momentum included, but for how the momentum is kept between steps."""

    def __init__(self, params: Iterable[torch.Tensor], codec: Codec, lr: float, weight_decay: float, seed: int = 0) -> None:
        super().__init__(params, {"lr": lr, "weight_decay": weight_decay})
        self._codec, self._seed, self._steps = codec, seed, 0

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:  # type: ignore[override]
        self._steps += 1
        for group in self.param_groups:
            for n, param in enumerate(group["params"]):
                if param.grad is None:
                    continue
                state = self.state[param]
                kept = state.get("kept")
                momentum = torch.zeros_like(param) if kept is None else self._codec.decode(kept, param.shape).clone()
                momentum.lerp_(param.grad, 1 - MOMENTUM)
                direction = _zeropower_via_newtonschulz(
                    param.grad.lerp(momentum, MOMENTUM), COEFFICIENTS, DEFAULT_NS_STEPS, EPS
                )
                param.mul_(1 - group["lr"] * group["weight_decay"])
                param.add_(direction, alpha=-_adjust_lr(group["lr"], ADJUST, param.shape))
                key = hash((self._seed, self._steps, n)) & 0x7FFF_FFFF_FFFF_FFFF
                state["kept"] = self._codec.encode(momentum, key, signed=True)


def matrices_by(kind: Kind, params: list[torch.Tensor], **hyper: Any) -> torch.optim.Optimizer:
    if kind == "torch":
        return torch.optim.Muon(params, momentum=MOMENTUM, adjust_lr_fn=ADJUST, **hyper)
    if kind == "lowtide":
        from lowtide import Muon as Ours

        return Ours(params, momentum=MOMENTUM, adjust_lr_fn=ADJUST, state="dynamic8", **hyper)
    return Muon(params, kind, **hyper)


def is_hidden(param: torch.Tensor) -> bool:
    """Matrices of the layers; embeddings and the head have a row for each byte or pair."""
    return param.dim() == 2 and param.shape[0] not in (BYTES, Size.pairs)


class Pair(torch.optim.Optimizer):
    """Matrices of the layers by one optimizer, all else by AdamW: `param_groups` are those of both."""

    def __init__(
        self, kind: Kind, params: Iterable[torch.Tensor], lr: float, betas: tuple[float, float], eps: float, weight_decay: float
    ) -> None:
        params = list(params)
        super().__init__(params, {})
        hidden = [param for param in params if is_hidden(param)]
        others = [param for param in params if not is_hidden(param)]
        self._parts = [matrices_by(kind, hidden, lr=lr, weight_decay=weight_decay)] if hidden else []
        if others:
            self._parts.append(torch.optim.AdamW(others, lr=lr, betas=betas, eps=eps, weight_decay=weight_decay, fused=True))
        self.param_groups = [group for part in self._parts for group in part.param_groups]

    def step(self, closure: Any = None) -> None:  # type: ignore[override]
        for part in self._parts:
            part.step()
