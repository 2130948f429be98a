"""QK-clip of MuonClip (Kimi K2, arXiv 2507.20534): after a step, shrinks heads whose attention logits grew too large."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from lowtide.checks.values import expect
from lowtide.devices.sharding import local_of


class _Layer(NamedTuple):
    query: Tensor
    key: Tensor
    heads: int
    groups: int
    largest: Tensor  # float32 [heads]: largest logits since the last step


class QKClip:
    """Bounds the attention logits q·k of every head by a threshold:

        clip = lowtide.QKClip(opt, threshold=100.0)
        number = clip.watch(layer.q_proj.weight, layer.k_proj.weight, heads=32, key_heads=8)
        clip.observe(number, logits.amax(dim=(0, 2, 3)))    # in forward, per head, after the scale
        opt.step()                                          # clips after it

    A head whose largest logit S exceeds the threshold gets γ = threshold / S; others get γ = 1. The rows of each key head are
    multiplied by the root of the least γ among its query heads, and the rows of a query head by its γ over that root. So, up to
    the rounding of weights, products change by γ exactly where they were too large; bfloat16 weights keep their values while √γ
    is above 0.998. Nothing waits for a device that has the weights, and the optimizer's state does not change. Biases of q and
    k, norms after the projections, and parts that heads share are not scaled. Non-finite logits do not count.

    optimizer: any torch.optim.Optimizer. The clip is one of its step hooks until `remove()`; copies of the optimizer have no
    such hook. threshold: above 0. Call `watch` after `fully_shard` or `stream`, which replace parameters."""

    def __init__(self, optimizer: torch.optim.Optimizer, threshold: float = 100.0) -> None:
        expect(threshold > 0, "threshold", threshold, "a number above 0")
        self.threshold = threshold
        self._layers: list[_Layer] = []
        self._hook = optimizer.register_step_post_hook(lambda *_: self.apply())

    def watch(self, query: Tensor, key: Tensor, heads: int, key_heads: int | None = None) -> int:
        """Adds the projections of a layer, [heads x size, columns] and [key_heads x size, columns], plain or DTensors, and
        returns its number. key_heads: fewer than `heads` with grouped queries; None: as many."""
        keys = heads if key_heads is None else key_heads
        expect(0 < keys <= heads and heads % keys == 0, "key_heads", keys, f"a divisor of heads={heads}")
        for name, param, count in (("query", query, heads), ("key", key, keys)):
            expect(param.ndim == 2 and param.shape[0] % count == 0, name, f"shape {tuple(param.shape)}", f"rows for {count} heads")
        self._layers.append(_Layer(query, key, heads, heads // keys, torch.zeros(heads, device=query.device)))
        return len(self._layers) - 1

    @torch.no_grad()
    def observe(self, number: int, largest: Tensor) -> None:
        """largest: [heads], the largest logits of this layer in a forward pass. Over several passes before a step, the largest
        counts. With data in several processes, pass the same largest logits of all everywhere (all_reduce with MAX)."""
        layer = self._layers[number]
        expect(tuple(largest.shape) == (layer.heads,), "largest", f"shape {tuple(largest.shape)}", f"({layer.heads},)")
        finite = torch.where(largest.isfinite(), largest, 0).to(layer.largest)  # an overflow must not make weights NaN
        torch.maximum(layer.largest, finite, out=layer.largest)

    @torch.no_grad()
    def apply(self) -> None:
        """Clips now and forgets what was observed. Steps call it."""
        for layer in self._layers:
            factor = (self.threshold / layer.largest).clamp(max=1.0)  # 1 if not observed
            of_key = factor.view(-1, layer.groups).amin(dim=1).sqrt()
            of_query = factor / of_key.repeat_interleave(layer.groups)
            for param, of_head in ((layer.query, of_query), (layer.key, of_key)):
                _scale_rows(param, of_head.repeat_interleave(param.shape[0] // len(of_head))[:, None])
            layer.largest.zero_()

    def remove(self) -> None:
        self._hook.remove()


def _scale_rows(param: Tensor, factors: Tensor) -> None:
    """factors: float32 [rows, 1], the same on every rank."""
    local = local_of(param)
    if local is not param:
        from torch.distributed.tensor import DTensor, Replicate, distribute_tensor

        assert isinstance(param, DTensor)
        placements = [each if each.is_shard(0) else Replicate() for each in param.placements]
        factors = distribute_tensor(factors, param.device_mesh, placements, src_data_rank=None).to_local().to(local.device)
        torch.autograd.graph.increment_version(param)
    local.copy_(local.float() * factors)  # a factor of 1 changes no bit
