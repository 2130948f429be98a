"""Newton-Schulz iterations, which orthogonalize a matrix or a stack of matrices for `Muon`."""

from __future__ import annotations

import math
from collections.abc import Sequence
from numbers import Real
from typing import Any

from torch import Tensor, addmm, baddbmm, bfloat16, stack
from torch.linalg import vector_norm

ADJUSTMENTS = (None, "original", "match_rms_adamw", "spectral_unclamped")
WORKING = bfloat16  # the iterations' dtype: matrices are first rounded to it, and the result has it

POLAR_EXPRESS = "polar_express"
# Amsel et al., arXiv 2505.16932, algorithm 1, for singular values from 0.001 to 1. All but the last allow for values that
# rounding made 1 % too large.
_FOR_ANY = (
    (8.28721201814563, -23.595886519098837, 17.300387312530933), (4.107059111542203, -2.9478499167379106, 0.5448431082926601),
    (3.9486908534822946, -2.908902115962949, 0.5518191394370137), (3.3184196573706015, -2.488488024314874, 0.51004894012372),
    (2.300652019954817, -1.6689039845747493, 0.4188073119525673), (1.891301407787398, -1.2679958271945868, 0.37680408948524835),
    (1.8750014808534479, -1.2500016453999487, 0.3750001645474248),
)  # fmt: skip
_POLAR_EXPRESS = (*((a / 1.01, b / 1.01**3, c / 1.01**5) for a, b, c in _FOR_ANY), (1.875, -1.25, 0.375))

Coefficients = tuple[float, float, float]
_ROW_EPS = 1e-8  # dion's


def schedule(given: Any, steps: int) -> list[Coefficients] | None:
    """The coefficients of each iteration. given: "polar_express", three numbers, or a list of triples, of which the last
    repeats. None for anything else."""
    if isinstance(given, str):
        each: Sequence[Any] = _POLAR_EXPRESS if given == POLAR_EXPRESS else ()
    else:
        each = given if isinstance(given, (tuple, list)) else ()
        each = [each] if len(each) == 3 and not any(isinstance(c, (tuple, list)) for c in each) else each
    good = all(isinstance(one, (tuple, list)) and len(one) == 3 and all(map(_is_finite, one)) for one in each)
    return [tuple(each[min(k, len(each) - 1)]) for k in range(steps)] if each and good else None


def _is_finite(number: Any) -> bool:
    return isinstance(number, Real) and math.isfinite(number)


def orthogonal(matrix: Tensor, coefficients: Sequence[Coefficients], eps: float) -> Tensor:
    """Approximates U Vᵀ of matrix = U S Vᵀ, in `WORKING`, by quintic iterations over its shorter side. matrix: [rows, columns],
    or a stack [number, rows, columns], in which each matrix gets the same bits as alone."""
    x = matrix.to(WORKING, copy=True)
    tall = x.shape[-2] > x.shape[-1]
    x = x.mT if tall else x
    norm, add = (x.norm(), addmm) if x.ndim == 2 else (vector_norm(x, dim=(-2, -1), keepdim=True), baddbmm)
    x.div_(norm.clamp(min=eps))  # so that no singular value is above 1
    for a, b, c in coefficients:
        gram = x @ x.mT
        x = add(x, add(gram, gram, gram, beta=b, alpha=c), x, beta=a)
    return x.mT if tall else x


def row_scaled(update: Tensor, moment: Tensor, beta2: float) -> tuple[Tensor, Tensor]:
    """NorMuon's row scaling (arXiv 2510.05491) as in dion/normuon.py of microsoft/dion (0333cc1, 2026): v = β2 v + (1 − β2) mean of
    squares of a row, rows divided by √v + 1e-8, then each matrix brought back to its norm. update: [..., rows, columns]; moment: v,
    float32 [..., rows, 1]. Returns the scaled update, in `WORKING`, and the next v. Takes 8 bytes per element of one matrix."""
    if update.numel() == 0:
        return update, moment
    if update.ndim > 2:
        made = [row_scaled(*each, beta2) for each in zip(update, moment, strict=True)]
        return stack([one for one, _ in made]), stack([one for _, one in made])
    rows = update.float().contiguous()  # a transposed one would be summed in an order that depends on its rows
    squares = rows.square().mean(dim=-1, keepdim=True)
    moment = moment.lerp(squares, 1 - beta2)
    factor = 1 / (moment.sqrt() + _ROW_EPS)
    before, after = (sums.sum().sqrt() for sums in (squares, squares * factor.square()))
    factor *= before / after.clamp(min=_ROW_EPS)
    return rows.mul_(factor).to(WORKING), moment


def cost(count: int, rows: int, columns: int) -> int:
    """Multiplications in one iteration over a stack of `count` matrices."""
    short, long = sorted((rows, columns))
    return count * short * short * (2 * long + short)


def ratio(adjustment: str | None, rows: int, columns: int) -> float:
    """The factor on the learning rate for a matrix of this shape."""
    if rows == 0 or columns == 0:
        return 1.0
    if adjustment == "match_rms_adamw":
        return 0.2 * math.sqrt(max(rows, columns))
    if adjustment == "spectral_unclamped":
        return math.sqrt(rows / columns)
    return math.sqrt(max(1, rows / columns))
