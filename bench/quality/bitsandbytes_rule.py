"""AdamW with 8-bit state as bitsandbytes' CUDA kernels have it, in torch operations (`kOptimizerStatic8bit2StateBlockwise`).

Blocks of 256 run flat over the tensor. Both moments are stored as the nearest entry of their dynamic map, times the block's
absmax; a second moment may become 0. The update uses the moments before they are rounded, weight decay follows it, and a
first moment whose nearest entry has the other sign takes the next one. Parameters under 4096 elements have float32 state.
bitsandbytes' own CPU code is not this rule: it looks codes up in a table of equal bins (docs/benchmarks/method.md).
"""

from __future__ import annotations

from collections.abc import Iterable

import torch
import torch.nn.functional as F

BLOCK = 256
MIN_NUMEL = 4096
PIECE = 1 << 17  # elements at once whose intermediate values stay in a cache


class Map:
    """A sorted table of 256 values, and the nearest of them to any value in [-1, 1]."""

    def __init__(self, signed: bool) -> None:
        from bitsandbytes import functional

        self.values = functional.create_dynamic_map(signed=signed).float()
        middle = (self.values[1:] + self.values[:-1]) / 2
        # The upper 16 bits of a float say where it is to 1 in 128. Entries lie further apart, so that every such bucket
        # holds one midpoint at most: the bucket gives two entries, and one comparison says which.
        upper = torch.arange(-(1 << 15), 1 << 15, dtype=torch.int32) << 16
        ends = torch.stack([end.view(torch.float32) for end in (upper, upper | 0xFFFF)])
        codes = torch.bucketize(ends, middle)
        if bool((codes.diff(dim=0).abs()[0][ends.abs().amax(dim=0) <= 1] > 1).any()):
            raise ValueError("the map's entries are too close together for a search by the upper 16 bits")
        low = codes.amin(dim=0)
        self._middle = F.pad(middle, (0, 1), value=float("inf"))[low]
        if signed:  # what is negative does not become 0
            last = int((self.values < 0).sum()) - 1
            negative = (upper < 0) & (low >= last)
            low[negative] = last
            self._middle[negative] = float("inf")
        self._low, self._high = self.values[low], self.values[(low + 1).clamp_max(255)]

    def nearest(self, x: torch.Tensor) -> torch.Tensor:
        """The entries for contiguous float32 values in [-1, 1], in the same shape."""
        found = torch.empty_like(x)
        for part, into in zip(x.view(-1).split(PIECE), found.view(-1).split(PIECE), strict=True):
            bucket = (part.view(torch.int32) >> 16).add_(1 << 15)
            low, middle, high = (table.index_select(0, bucket) for table in (self._low, self._middle, self._high))
            torch.where(part > middle, high, low, out=into)
        return found


class State:
    """A moment of one parameter: an entry of the map for each element, and each block's absmax."""

    def __init__(self, param: torch.Tensor, table: Map) -> None:
        self._count = param.numel()
        blocks = -(-self._count // BLOCK)
        self._quantized = self._count >= MIN_NUMEL
        self._table = table
        self._entries = torch.zeros(blocks, BLOCK)
        self._absmax = torch.zeros(blocks, 1)
        self._exact = torch.zeros(self._count)

    def load(self) -> torch.Tensor:
        if not self._quantized:
            return self._exact
        blocks: torch.Tensor = self._entries * self._absmax
        return blocks.flatten()[: self._count]

    def store(self, value: torch.Tensor) -> None:
        if not self._quantized:
            self._exact = value
            return
        blocks = F.pad(value, (0, self._entries.numel() - self._count)).view(-1, BLOCK)
        self._absmax = blocks.abs().amax(dim=1, keepdim=True)
        scaled = blocks / self._absmax.clamp_min(torch.finfo(torch.float32).tiny)
        self._entries = self._table.nearest(scaled.clamp_(-1, 1))


class AdamW(torch.optim.Optimizer):
    """Float32 parameters on the CPU. `moments(param)`: both, decoded."""

    def __init__(
        self,
        params: Iterable[torch.Tensor],
        lr: float = 1e-3,
        betas: tuple[float, float] = (0.9, 0.999),
        eps: float = 1e-8,
        weight_decay: float = 1e-2,
    ) -> None:
        super().__init__(params, {"lr": lr, "betas": betas, "eps": eps, "weight_decay": weight_decay})
        self._maps = Map(signed=True), Map(signed=False)
        self._steps = 0

    @torch.no_grad()
    def step(self, closure: None = None) -> None:  # type: ignore[override]
        self._steps += 1
        for group in self.param_groups:
            (beta1, beta2), lr, eps = group["betas"], group["lr"], group["eps"]
            correction1 = 1 - beta1**self._steps
            correction2 = (1 - beta2**self._steps) ** 0.5
            for param in group["params"]:
                if param.grad is None:
                    continue
                state = self.state[param]
                if not state:
                    state["moments"] = [State(param, table) for table in self._maps]
                first, second = state["moments"]
                grad = param.grad.flatten()
                m = first.load().mul(beta1).add_(grad, alpha=1 - beta1)
                v = second.load().mul(beta2).addcmul_(grad, grad, value=1 - beta2)
                update = m / (v.sqrt() + eps * correction2)
                param.add_(update.view_as(param), alpha=-lr * correction2 / correction1)
                if group["weight_decay"] > 0:
                    param.mul_(1 - lr * group["weight_decay"])
                first.store(m)
                second.store(v)

    def moments(self, param: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        first, second = self.state[param]["moments"]
        return first.load().view_as(param), second.load().view_as(param)
