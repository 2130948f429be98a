"""Newton-Schulz iterations, which orthogonalize matrices for `Muon`: one matrix or a stack of matrices."""

from __future__ import annotations

import math

from torch import Tensor, addmm, baddbmm, bfloat16
from torch.linalg import vector_norm

ADJUSTMENTS = (None, "original", "match_rms_adamw", "spectral_unclamped")
WORKING = bfloat16  # the iterations' dtype: matrices are first rounded to it, and the result has it


def orthogonal(matrix: Tensor, coefficients: tuple[float, float, float], steps: int, eps: float) -> Tensor:
    """Approximately U Vᵀ of matrix = U S Vᵀ, in `WORKING`, by quintic iterations over its shorter side. matrix: [rows,
    columns], or a stack [number, rows, columns], in which each matrix gets the same bits as alone."""
    a, b, c = coefficients
    x = matrix.to(WORKING, copy=True)
    tall = x.shape[-2] > x.shape[-1]
    x = x.mT if tall else x
    norm, add = (x.norm(), addmm) if x.ndim == 2 else (vector_norm(x, dim=(-2, -1), keepdim=True), baddbmm)
    x.div_(norm.clamp(min=eps))  # so that no singular value is above 1
    for _ in range(steps):
        gram = x @ x.mT
        x = add(x, add(gram, gram, gram, beta=b, alpha=c), x, beta=a)
    return x.mT if tall else x


def cost(count: int, rows: int, columns: int) -> int:
    """Multiplications in one iteration over a stack of `count` matrices."""
    short, long = sorted((rows, columns))
    return count * short * short * (2 * long + short)


def ratio(adjustment: str | None, rows: int, columns: int) -> float:
    """The factor on the learning rate of a matrix of this shape."""
    if rows == 0 or columns == 0:
        return 1.0
    if adjustment == "match_rms_adamw":
        return 0.2 * math.sqrt(max(rows, columns))
    if adjustment == "spectral_unclamped":
        return math.sqrt(rows / columns)
    return math.sqrt(max(1, rows / columns))
