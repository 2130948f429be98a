"""The activations that forward keeps for backward, and what backward adds. The formula is only here.

After Korthikanti et al., "Reducing Activation Recomputation in Large Transformer Models" (arXiv 2205.05198), section 4, which
counts each tensor that a layer keeps. The paper assumes attention with its matrix of scores, GELU, dropout and 16 bits. This
formula is for a layer of Transformers' LLaMA in eager torch, with flash or memory-efficient attention, SwiGLU and no dropout.
Per token it keeps, in elements of `size` bytes (the type of the weights) unless marked as 4 bytes:

    two norms      the input in float32 (4 bytes), normalized, scaled: 2 (4 + 2 size) hidden
    attention      queries, keys, values, output: size (2 queries + 2 kv), and 4 bytes per head for the sums of the softmax
    normed heads   (Qwen3) queries and keys before rotation, likewise: (4 + size) (queries + kv)
    SwiGLU         gate, its SiLU, up, their product: 4 size inner

With checkpointing, a layer keeps its input, size hidden, and is computed again in its turn. Backward of a layer adds at most
two gradients of `inner` and one of `hidden`. The loss takes three float32 copies of the logits at once: logarithms of
probabilities, their gradient, and the gradient of the logits. The logits themselves need not be kept.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from lowtide.planning.models import Decoder


class Moment(NamedTuple):
    """A moment of backward at which memory may peak."""

    activations: int  # bytes, with gradients of activations
    complete: int  # units with gradients by then, or -1 in forward: the output layer, layers from the last on, the embedding


def moments(of: Decoder, tokens: int, size: int, checkpointing: bool) -> Iterator[Moment]:
    """The moments at which the sum of activations and gradients may peak, in order. size: bytes per element."""
    whole = tokens * _layer(of, size)
    kept = tokens * size * of.hidden if checkpointing else whole
    end = tokens * (4 + 2 * size) * of.hidden  # the last norm
    everything = kept * of.layers + end
    yield Moment(everything, -1)  # the output layer comes
    yield Moment(everything + 12 * tokens * of.vocabulary, 0)  # the loss
    yield Moment(everything + size * tokens * of.vocabulary, 1)  # the output layer
    working = tokens * size * (2 * of.inner + of.hidden)
    for done in (1, of.layers):  # memory is linear between the last layer and the first
        yield Moment(kept * (of.layers - done) + whole + working, 1 + done)
    yield Moment(size * tokens * of.hidden, 2 + of.layers)  # the embedding


def _layer(of: Decoder, size: int) -> int:
    """Bytes that a layer keeps per token."""
    norms = 2 * (4 + 2 * size) * of.hidden + 8
    attention = 2 * size * (of.queries + of.kv) + 4 * of.heads
    normed = (4 + size) * (of.queries + of.kv) if of.qk_norm else 0
    return norms + attention + normed + 4 * size * of.inner
