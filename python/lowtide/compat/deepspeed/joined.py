"""Combines ballots of `packbits`, in bit order "big", into one: by majority, or by sums and parities, which are not votes."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Sequence
from functools import reduce
from typing import Literal, get_args

import torch
import torch.distributed as dist

from lowtide import sign
from lowtide.checks.values import check_tensor, expect

_Ties = Literal["hash", "plus", "minus"]  # rules whose result is only bits


def majority(
    ballots: torch.Tensor | Sequence[torch.Tensor], input_size: int, *, ties: _Ties = "hash", seed: int = 0, step: int = 0
) -> torch.Tensor:
    """Computes the majority signs of `input_size` elements, packed like the ballots: uint8 [ceil(input_size / 8)].

    Args:
        ballots: 1 to 65,535 voters, as uint8 [voters, ceil(input_size / 8)] or a sequence of rows.
        input_size: number of elements.
        ties, seed, step: as in `lowtide.sign.majority`, except "zero" and "previous", which need more than bits.
    """
    expect(ties in get_args(_Ties), "ties", repr(ties), "'hash', 'plus' or 'minus'")
    vote: torch.Tensor = sign.majority(ballots, input_size, ties=ties, seed=seed, step=step, bitorder="big")
    return vote


def all_reduce_majority(
    packed: torch.Tensor, input_size: int, group: dist.ProcessGroup | None = None, *,
    ties: _Ties = "hash", seed: int = 0, step: int = 0,
) -> torch.Tensor:  # fmt: skip
    """Sets `packed` to the majority of all ranks, equal on each, and returns it. `dist.all_reduce(packed)` computes no
    majority.

    Each rank receives the others' ballots, ceil(input_size / 8) bytes each. `lowtide.distributed` votes on shards, which takes
    less traffic with three or more ranks.

    Args:
        packed: the result of `packbits`: uint8 [ceil(input_size / 8)], contiguous.
        group: a torch.distributed group whose backend moves tensors on that device; default: all ranks.
        input_size, ties, seed, step: as in `majority`, equal on all ranks.
    """
    _check(packed, "packed")
    ballots = packed.new_empty(dist.get_world_size(group), packed.numel())
    dist.all_gather(list(ballots.unbind()), packed, group=group)
    return packed.copy_(majority(ballots, input_size, ties=ties, seed=seed, step=step))


def byte_sum(ballots: Sequence[torch.Tensor]) -> torch.Tensor:
    """Sums bytes modulo 256, as `dist.all_reduce(packed, op=SUM)` does. Carries run from one sign into the next, so a warning
    says that this is not a vote. Use `majority`."""
    return _joined(ballots, torch.add, "byte_sum adds bytes, and carries from one sign into the next")


def parity(ballots: Sequence[torch.Tensor]) -> torch.Tensor:
    """Tells whether an odd number of ballots has a 1, as `accumulated ^= packed` does. Warns that this is neither a sum nor a
    vote. Use `majority`, or `lowtide.distributed.SignAccumulator` for gradients of several passes."""
    return _joined(ballots, torch.bitwise_xor, "parity tells whether an odd number of ballots has a 1")


def _joined(
    ballots: Sequence[torch.Tensor], join: Callable[[torch.Tensor, torch.Tensor], torch.Tensor], why: str
) -> torch.Tensor:
    expect(len(ballots) > 0, "ballots", "none", "one or more")
    for number, ballot in enumerate(ballots):
        _check(ballot, f"ballots[{number}]")
        expect(ballot.shape == ballots[0].shape, f"ballots[{number}]", tuple(ballot.shape), tuple(ballots[0].shape))
    warnings.warn(f"{why}: the result is no majority. Use lowtide.compat.deepspeed.majority", stacklevel=3)
    result: torch.Tensor = reduce(join, ballots[1:], ballots[0].clone())
    return result


def _check(packed: torch.Tensor, where: str) -> None:
    check_tensor(packed, where)
    expect(packed.dtype == torch.uint8, where, packed.dtype, "uint8: packed signs")
    expect(packed.is_contiguous() and packed.ndim == 1, where, f"shape {tuple(packed.shape)}", "contiguous bytes [n]")
