"""Random votes to compare on the CPU and on a device, of every kind (vote_device_jobs.py)."""

from __future__ import annotations

import random
from collections.abc import Iterator

from support import DTYPES
from vote_device_jobs import Case, Hooks, Shards

TIES = ("hash", "plus", "minus", "zero", "previous")
SIZES = (0, 1, 7, 8, 63, 64, 65, 511, 1000, 1023, 1024, 1025, 2049)
MASTERS = ("residual16", "residual8", "stochastic", None)
VOTES_EACH = 3  # of every case


def cases_of(seed: int, count: int) -> list[Case | Shards | Hooks]:
    """Half of them optimizers' steps, a quarter each tensors and hooks, in turns."""
    optimizers, tensors, hooks = _optimizers(seed), _tensors(seed), _hooks(seed)
    order = (optimizers, tensors, optimizers, hooks)
    return [next(order[number % len(order)]) for number in range(count)]


def _sizes(choose: random.Random, most: int) -> tuple[int, ...]:
    return tuple(choose.choice(SIZES) for _ in range(choose.randint(1, most)))


def _optimizers(seed: int) -> Iterator[Case]:
    """Every rule of ties with every type, one after another, and the rest at random."""
    choose, number = random.Random(seed), 0
    while True:
        dtype = DTYPES[number % len(DTYPES)]
        rule, momentum = choose.choice(("lion", "signum")), choose.choice((0.0, 0.9))
        spoilt = number % 5 == 1
        folding = rule == "signum" and momentum > 0 and choose.random() < 0.3
        yield Case(
            seed=seed % 2**20 * 1000 + number, rule=rule, ties=TIES[number % len(TIES)], dtype=dtype,
            weighted=choose.random() < 0.3, state=choose.choice(("fp32", "bf16", "dynamic8")), momentum=momentum,
            master=choose.choice(MASTERS) if dtype.itemsize == 2 else None, steps=VOTES_EACH,
            shapes=tuple((size,) for size in _sizes(choose, 3) + (65,) * spoilt), folds=2 if folding else 0,
            bad=1 if spoilt else -1,
        )  # fmt: skip
        number += 1


def _tensors(seed: int) -> Iterator[Shards]:
    choose, number = random.Random(seed + 1), 0
    while True:
        sizes = tuple(choose.choice(SIZES) for _ in range(VOTES_EACH))
        yield Shards(seed % 2**20 + number, TIES[number % (len(TIES) - 1)], DTYPES[number % len(DTYPES)], sizes)
        number += 1


def _hooks(seed: int) -> Iterator[Hooks]:
    choose, number = random.Random(seed + 2), 0
    kinds = [("SignVote", {"ties": ties}) for ties in TIES]
    kinds += [("ErrorFeedbackSign", {"residual": residual}) for residual in ("fp32", "bf16", "dynamic8")]
    while True:
        name, options = kinds[number % len(kinds)]
        sizes = (1000, *(max(size, 1) for size in _sizes(choose, 2)), 2049)
        yield Hooks(seed % 2**20 + number, name, options, DTYPES[number % len(DTYPES)], sizes, VOTES_EACH)
        number += 1
