"""Shapes of parameters: one large tensor, and the tensors of a 7B LLaMA, scaled."""

from __future__ import annotations

ROW = 4096
LAYERS = 32
WIDTH, FEED_FORWARD, WORDS = 4096, 11008, 32000


def one(elements: int) -> list[tuple[int, ...]]:
    return [(max(1, elements // ROW), ROW)]


def equal(elements: int, tensors: int) -> list[tuple[int, ...]]:
    return one(elements // tensors) * tensors


def llama_7b(elements: int) -> list[tuple[int, ...]]:
    """The 291 tensors of a 7B LLaMA, both sides of each matrix scaled alike to `elements` in total."""
    full = 2 * WORDS * WIDTH + LAYERS * (4 * WIDTH * WIDTH + 3 * WIDTH * FEED_FORWARD)
    scale = (elements / full) ** 0.5

    def side(count: int) -> int:
        return max(64, round(count * scale / 64) * 64)

    width, inner, words = side(WIDTH), side(FEED_FORWARD), side(WORDS)
    layer: list[tuple[int, ...]] = [(width, width)] * 4 + [(inner, width)] * 2 + [(width, inner)] + [(width,)] * 2
    return [(words, width), *layer * LAYERS, (width,), (words, width)]


def total(shapes: list[tuple[int, ...]]) -> int:
    count = 0
    for shape in shapes:
        part = 1
        for side in shape:
            part *= side
        count += part
    return count
