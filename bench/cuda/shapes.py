"""Shapes of parameters: one large tensor, and the tensors of LLaMAs."""

from __future__ import annotations

import math
from dataclasses import dataclass

ROW = 4096
Shapes = list[tuple[int, ...]]


@dataclass(frozen=True)
class Llama:
    width: int
    of_keys: int  # rows of key and value matrices
    feed_forward: int
    words: int
    layers: int

    def shapes(self, layers: int) -> Shapes:
        """The tensors of a model with this many layers."""
        width, inner = self.width, self.feed_forward
        layer: Shapes = [(width, width), (self.of_keys, width), (self.of_keys, width), (width, width),
                         (inner, width), (inner, width), (width, inner), (width,), (width,)]  # fmt: skip
        return [(self.words, width), *layer * layers, (width,), (self.words, width)]

    def fitting(self, elements: int) -> Shapes:
        """Shapes of the real widths, with as many layers as fit in `elements`, but at least one."""
        around, one = total(self.shapes(0)), total(self.shapes(1))
        return self.shapes(max(1, min(self.layers, (elements - around) // (one - around))))


LLAMA_7B = Llama(4096, 4096, 11008, 32000, 32)
LLAMA_8B = Llama(4096, 1024, 14336, 128256, 32)  # LLaMA 3
LLAMA_100M = Llama(512, 512, 1536, 3072, 32)  # 291 tensors, as many as 7B, to see the cost of a tensor


def one(elements: int) -> Shapes:
    return [(max(1, elements // ROW), ROW)]


def equal(elements: int, tensors: int) -> Shapes:
    return one(elements // tensors) * tensors


def total(shapes: Shapes) -> int:
    return sum(map(math.prod, shapes))
