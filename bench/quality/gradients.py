"""Gradients of one batch for a training step: forward and backward, on a GPU recorded once and replayed."""

from __future__ import annotations

from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch.func import functional_call

Backward = Callable[[torch.Tensor], None]  # takes tokens on the CPU, leaves gradients in the parameters
WARM_UP = 3  # batches before a recording, in which libraries allocate what they keep


def logits(model: torch.nn.Module, seen: torch.Tensor, weights: torch.dtype) -> torch.Tensor:
    """Computed in the same way for all formats of weights, because formats are compared, not arithmetic."""
    if weights == torch.float32:
        found: torch.Tensor = model(seen)
    else:
        found = functional_call(model, {name: param.float() for name, param in model.named_parameters()}, (seen,))
    return found


def forward(model: torch.nn.Module, tokens: torch.Tensor, weights: torch.dtype) -> torch.Tensor:
    """The mean loss in nats of every byte of `tokens` (batch, length) except the first, given the previous bytes."""
    return F.cross_entropy(logits(model, tokens[:, :-1], weights).flatten(0, 1), tokens[:, 1:].flatten())


def backward_of(model: torch.nn.Module, weights: torch.dtype, autocast: bool, batch: int, length: int) -> Backward:
    """Makes the backward for batches of (batch, length) bytes. autocast: matrix products in bfloat16."""
    device = next(model.parameters()).device

    def take(tokens: torch.Tensor) -> None:
        model.zero_grad()
        # Without a cache of casts, which would outlive a recording.
        with torch.autocast(device.type, dtype=torch.bfloat16, enabled=autocast, cache_enabled=device.type == "cpu"):
            loss = forward(model, tokens, weights)
        loss.backward()

    if device.type == "cpu":
        return take
    return recorded(take, torch.zeros(batch, length, dtype=torch.int64, device=device))


def recorded(take: Backward, tokens: torch.Tensor) -> Backward:
    """Replays what `take` does with `tokens`. Launching the kernels of such a small model one by one would take most of the
    time. Gradients stay in the tensors of the recording, so nobody may set them to None."""
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        for _ in range(WARM_UP):
            take(tokens)
    torch.cuda.current_stream().wait_stream(side)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        take(tokens)

    def replay(given: torch.Tensor) -> None:
        tokens.copy_(given)
        graph.replay()

    return replay
