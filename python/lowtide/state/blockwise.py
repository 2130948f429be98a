"""Block-wise quantization with any code book. Blocks run flat over a tensor and have one scale each.

The rule is that of the state format dynamic8 (docs/project/numerics.md), with any 256 sorted values: entry i gives way to i + 1
if x = value · (1 / absmax) is above the midpoint (c[i] + c[i+1]) / 2 computed in float32; a tie keeps the lower index. A block
of zeros, or whose absmax is denormal, encodes as zeros. On the CPU the core encodes if map and block are dynamic8's; otherwise
torch does, with the same bits.
"""

from __future__ import annotations

from functools import cache

import torch

from lowtide import _core
from lowtide.checks.values import expect

# The block size of dynamic8, and of bitsandbytes' states since 0.44.
BLOCK = 256
# Elements converted at a time, so that no whole tensor is copied.
_PIECE = 1 << 20
# From this many elements on, the core is faster than torch.
_LEAST = 4096
_SMALLEST_NORMAL = 2.0**-126


def dynamic_map(signed: bool = True, max_exponent_bits: int = 7, total_bits: int = 8) -> torch.Tensor:
    """The dynamic map (Dettmers, arXiv 1511.04561; Dettmers et al., arXiv 2110.02861, section 1.3), sorted, as a new float32
    [256]. It has `max_exponent_bits` decades of means of neighbours in linspace(0.1, 1), with both signs if `signed`, and 0 and
    1; zeros pad it if `total_bits` is less than 8. If there are more exponent bits than bits, the smallest decades stay empty.

    Values are rounded as on a machine with fused multiply-add, where all published maps were made, so the defaults give the
    constants of dynamic8. Raises ValueError for numbers of bits that give no such map.
    """
    return _dynamic_map(bool(signed), int(max_exponent_bits), int(total_bits)).clone()


@cache
def _dynamic_map(signed: bool, max_exponent_bits: int, total_bits: int) -> torch.Tensor:
    spare = total_bits - 1 - max_exponent_bits  # fraction bits of the first decade; below 0: no codes
    fits = 2 <= total_bits <= 8 and max_exponent_bits >= 1 and (signed or spare == 0)
    got = f"total_bits {total_bits} and max_exponent_bits {max_exponent_bits}"
    expect(fits, "dynamic_map", got, f"2 to 8 bits, and {'1 or more' if signed else 'one less'} for the exponent")
    decades = [(i, 2 ** (i + spare) * (1 if signed else 2)) for i in range(max(0, -spare), max_exponent_bits)]
    if spare > 0:  # codes without exponent or indicator bit
        decades.append((max_exponent_bits - 1, 2**spare - 1))
    values = [torch.tensor([0.0, 1.0])]
    for i, count in decades:
        scale = torch.tensor(10.0 ** (i + 1 - max_exponent_bits), dtype=torch.float32)
        means = scale * _means(count)
        values += [means, -means] if signed else [means]
    book = torch.cat(values)
    return torch.cat([book, torch.zeros(256 - len(book))]).sort().values


def _means(count: int) -> torch.Tensor:
    """Means of neighbours among the count + 1 points of linspace(0.1, 1), rounded to float32 like a fused multiply-add. In
    float64, products and sums of so few bits are exact."""
    first = torch.tensor(0.1, dtype=torch.float32)
    step = ((1 - first) / count).double()
    k = torch.arange(count + 1, dtype=torch.float64)
    points = torch.where(k < (count + 1) // 2, step * k + first.double(), 1 - step * (count - k)).float()
    return (points[:-1] + points[1:]) / 2


def encode(
    values: torch.Tensor, book: torch.Tensor, block: int, positive: bool = False
) -> tuple[torch.Tensor, torch.Tensor]:
    """Encodes to codes (uint8, in the shape of `values`) and scales (float32 [ceil(numel / block)], the largest magnitudes).
    positive: for second moments; a value above 0 never gets the code of 0.
    """
    flat = values.reshape(-1)
    book = book.to(values.device, torch.float32)
    midpoints = (book[:-1] + book[1:]) * 0.5
    least = int((book <= 0).sum())  # the first code above 0
    codes = torch.empty(flat.shape, dtype=torch.uint8, device=values.device)
    scales = torch.empty(-(-flat.numel() // block), dtype=torch.float32, device=values.device)
    piece = max(_PIECE // block, 1) * block
    here = values.device.type == "cpu" and block == BLOCK and flat.numel() >= _LEAST
    compiled = here and torch.equal(book, _dynamic_map(not positive, 7, 8))
    for start in range(0, flat.numel(), piece):
        part = flat[start : start + piece].float().contiguous()
        count = part.numel()
        if compiled and bool(part.sum().isfinite()):  # the core accepts no NaN; an overflowing sum only costs time
            _encode_in_core(part, positive, codes[start:], scales[start // block :])
            continue
        padded = torch.nn.functional.pad(part, (0, -count % block))
        padded = padded.view(-1, block)
        absmax = padded.abs().amax(1)
        inverse = torch.where(absmax >= _SMALLEST_NORMAL, 1 / absmax, 0.0)
        found = torch.bucketize(padded * inverse[:, None], midpoints, out_int32=True)
        if positive:
            found = torch.where(padded > 0, found.clamp(min=least), found)
        codes[start : start + count] = found.view(-1)[:count]
        scales[start // block : start // block + absmax.numel()] = absmax
    return codes.view(values.shape), scales


def _encode_in_core(values: torch.Tensor, positive: bool, codes: torch.Tensor, scales: torch.Tensor) -> None:
    """Encodes contiguous float32 values as dynamic8."""
    _core.encode("dynamic8", not positive, values.data_ptr(), 1, values.numel(), codes.data_ptr(), scales.data_ptr())


def decode(
    codes: torch.Tensor, scales: torch.Tensor, book: torch.Tensor, block: int, dtype: torch.dtype = torch.float32
) -> torch.Tensor:
    """Decodes to values in the shape of `codes` (uint8, or indices of any type into `book`)."""
    flat = codes.reshape(-1)
    book = book.to(codes.device, torch.float32)
    out = torch.empty(flat.shape, dtype=dtype, device=codes.device)
    piece = max(_PIECE // block, 1) * block
    for start in range(0, flat.numel(), piece):
        part = book[flat[start : start + piece].int()]
        scale = scales[start // block : -(-(start + part.numel()) // block)]
        out[start : start + piece] = part * scale.repeat_interleave(block)[: part.numel()]
    return out.view(codes.shape)
