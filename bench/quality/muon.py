"""Muon (kellerjordan.github.io/posts/muon) from torch or Lowtide, or Lowtide's NorMuon, beside AdamW in float32.

Muon steps matrices of the layers, as torch.optim.Muon does; torch's AdamW steps embeddings, the head and vectors. Muon's
learning rate is scaled to moves of AdamW's size (arXiv 2502.16982, 0.2 sqrt(max(rows, columns))).
"""

from __future__ import annotations

from collections import ChainMap
from collections.abc import Iterable, Mapping
from typing import Any

import torch

from quality.model import BYTES, Size

MOMENTUM = 0.95
ADJUST = "match_rms_adamw"
NORMUON = {"row_beta2": 0.95}  # dion's


def matrices_by(ours: Mapping[str, Any] | None, params: list[torch.Tensor], **hyper: Any) -> torch.optim.Optimizer:
    """ours: options of Lowtide's Muon; None: torch's."""
    if ours is None:
        return torch.optim.Muon(params, momentum=MOMENTUM, adjust_lr_fn=ADJUST, **hyper)
    from lowtide import Muon as Ours

    return Ours(params, momentum=MOMENTUM, adjust_lr_fn=ADJUST, **ours, **hyper)


def is_hidden(param: torch.Tensor) -> bool:
    """True for matrices of the layers. Embeddings and the head have a row per byte or pair."""
    return param.dim() == 2 and param.shape[0] not in (BYTES, Size.pairs)


class Pair(torch.optim.Optimizer):
    """One optimizer for matrices of the layers and AdamW for everything else. `param_groups` has the groups of both."""

    def __init__(
        self, ours: Mapping[str, Any] | None, params: Iterable[torch.Tensor], lr: float, betas: tuple[float, float], eps: float,
        weight_decay: float,
    ) -> None:  # fmt: skip
        params = list(params)
        super().__init__(params, {})
        hidden = [param for param in params if is_hidden(param)]
        others = [param for param in params if not is_hidden(param)]
        self._parts = [matrices_by(ours, hidden, lr=lr, weight_decay=weight_decay)] if hidden else []
        if others:
            self._parts.append(torch.optim.AdamW(others, lr=lr, betas=betas, eps=eps, weight_decay=weight_decay, fused=True))
        self.param_groups = [group for part in self._parts for group in part.param_groups]

    def step(self, closure: Any = None) -> None:  # type: ignore[override]
        for part in self._parts:
            part.step()
        self.state = ChainMap(*(part.state for part in self._parts))  # type: ignore[assignment]
