"""Counts stored codes that are not those of the nearest value, found by trying all 256.

The table of values is bitsandbytes' own (create_dynamic_map) for both. The scale of a block must be its largest
magnitude. A second moment is held to one more rule: if it is positive, its code is not that of 0.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch

BLOCK = 256
# Neighbours within a decade lie at least 0.7 % of the value apart (the unsigned map's 128 values per decade), so half
# of that to the midpoint. A midpoint rounded to float32 is off by 2^-24 of the value at most: the two distances then
# differ by 2 * 2^-24 / 0.0035 < 1e-4 of themselves, and a code may be either.
TIE = 1e-4


@dataclass(frozen=True)
class Count:
    who: str
    what: str
    values: int
    wrong: int


def _distances(values: torch.Tensor, table: torch.Tensor, codes: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Distance of each value to its code's and to the nearest code's. Values in units of the scale."""
    chosen, nearest = [], []
    for x, code in zip(values.double().split(16384), codes.long().split(16384), strict=True):
        gap = (x[:, None] - table.double()[None, :]).abs()
        chosen.append(gap.gather(1, code[:, None])[:, 0])
        nearest.append(gap.min(dim=1).values)
    return torch.cat(chosen), torch.cat(nearest)


def wrong_codes(
    values: torch.Tensor, scales: torch.Tensor, codes: torch.Tensor, table: torch.Tensor, never_zero: bool
) -> int:
    """`values`: float32, whole blocks. `never_zero`: a positive value must not have the code of 0, which is 0."""
    blocks = values.reshape(-1, BLOCK)
    largest = blocks.abs().amax(dim=1)
    bad_scale = (scales.reshape(-1) != largest)[:, None].expand(-1, BLOCK).reshape(-1)
    x = (blocks * (1.0 / largest)[:, None]).reshape(-1)
    codes = codes.reshape(-1).long()
    chosen, nearest = _distances(x, table, codes)
    bad = chosen > nearest * (1 + TIE)
    if never_zero:
        kept = (x > 0) & (x <= table[1])  # nearest is 0 or 1, and 1 is demanded
        bad = torch.where(kept, codes != 1, bad)
    return int((bad | bad_scale).sum())


def _cases(count: int) -> list[tuple[str, torch.Tensor, torch.Tensor]]:
    """A description of the case, a first moment, a second moment."""
    source = torch.Generator().manual_seed(20)
    normal = torch.randn(count, generator=source)
    spread = 10 ** (-6 * torch.rand(count, generator=source))
    sign = torch.randint(0, 2, (count,), generator=source) * 2 - 1
    return [("squared normals", normal.square() * sign, normal.square()), ("6 decades", spread * sign, spread)]


def _lowtide_codes(moments: list[torch.Tensor], target: str) -> list[tuple[torch.Tensor, torch.Tensor]]:
    """Codes and scales of the first and the second moment, encoded as a resumed torch.optim.AdamW's."""
    from step.contenders import lowtide

    shape = (-1, 4096)
    param = torch.nn.Parameter(torch.zeros_like(moments[0]).reshape(shape))
    donor = torch.optim.AdamW([param])
    param.grad = torch.zeros_like(param)
    donor.step()
    state = donor.state[param]
    state["exp_avg"], state["exp_avg_sq"] = (moment.reshape(shape).clone() for moment in moments)
    options: dict[str, Any] = {"state": "dynamic8"} | ({"cpu_target": target} if target else {})
    optimizer = lowtide([param], "adamw", options)
    optimizer.load_state_dict(donor.state_dict())
    state = optimizer.state[param]
    return [(state[f"{name}_codes"], state[f"{name}_scale"]) for name in ("exp_avg", "exp_avg_sq")]


def _bitsandbytes_codes(moments: list[torch.Tensor]) -> list[tuple[torch.Tensor, torch.Tensor]]:
    from bitsandbytes import functional

    found = []
    for moment, table in zip(moments, _tables(), strict=True):
        codes, kept = functional.quantize_blockwise(moment, code=table, blocksize=BLOCK)
        found.append((codes, kept.absmax))
    return found


def _tables() -> list[torch.Tensor]:
    from bitsandbytes import functional

    return [functional.create_dynamic_map(signed=True), functional.create_dynamic_map(signed=False)]


def count_wrong(count: int, targets: list[str], with_lowtide: bool) -> list[Count]:
    """`targets`: instruction sets of Lowtide, "" for its default. Needs bitsandbytes, whose table it is."""
    result = []
    for what, first, second in _cases(count):
        moments = [first, second]
        found = [("bitsandbytes on the CPU", _bitsandbytes_codes(moments), False)]
        if with_lowtide:
            found += [(f"lowtide {target}".strip(), _lowtide_codes(moments, target), True) for target in targets]
        for who, stored, never_zero in found:
            for k, (codes, scales) in enumerate(stored):
                wrong = wrong_codes(moments[k], scales, codes, _tables()[k], never_zero and k == 1)
                result.append(Count(who, f"{what}, {('first', 'second')[k]} moment", count, wrong))
    return result
