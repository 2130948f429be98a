"""Times of calls, and a call that only moves memory."""

from __future__ import annotations

import time
from collections.abc import Callable

import torch


def seconds_of(step: Callable[[], object]) -> float:
    start = time.perf_counter()
    step()
    return time.perf_counter() - start


def adder(elements: int) -> tuple[Callable[[], object], int]:
    """a += b over float32, whose speed is the memory's, and the bytes that it moves."""
    a, b = torch.zeros(elements), torch.zeros(elements)
    return lambda: a.add_(b), 12 * elements
