"""Where the signs of each parameter are among those of all, and the buffers that hold them.

The order is that of the parameters, so nothing here changes when DistributedDataParallel lays its buckets anew. Every
parameter begins with a sign whose number is a multiple of `ALIGNMENT`: no two share a byte of bits, a byte of presence
or a scale of error feedback.
"""

from __future__ import annotations

import ctypes
import zlib
from collections.abc import Iterable, Sequence
from itertools import accumulate

import torch

from lowtide import _core
from lowtide.checks.values import PARAMETER_DTYPES, expect

ALIGNMENT: int = _core.SIGN_ALIGNMENT
BLOCK: int = _core.SIGN_BLOCK  # signs of one presence bit
FEEDBACK_BLOCK: int = _core.FEEDBACK_BLOCK  # signs of one scale
NO_DEVICES = "votes are not built for devices; there, average gradients and use an optimizer that does not vote (lowtide.Lion)"


def aligned(count: int) -> int:
    """The next multiple of `ALIGNMENT`."""
    return -(-count // ALIGNMENT) * ALIGNMENT


class Layout:
    """names: of the parameters, unique; offsets: number of each one's first sign; count: signs in all."""

    def __init__(self, named: Iterable[tuple[str, torch.Tensor]]) -> None:
        named = list(named)
        self.names: Sequence[str] = [name for name, _ in named]
        self.numels = [param.numel() for _, param in named]
        *self.offsets, self.count = accumulate(map(aligned, self.numels), initial=0)
        self.digest = digest(*((name, tuple(param.shape), str(param.dtype)) for name, param in named))


def digest(*values: object) -> int:
    """32 bits of plain values, the same in every process."""
    return zlib.crc32(repr(values).encode())


def checksum(tensor: torch.Tensor, begun: int = 0) -> int:
    """32 bits of a CPU tensor's elements, in row-major order; `begun`: of those before it."""
    whole = tensor.detach().contiguous()
    return zlib.crc32((ctypes.c_char * whole.nbytes).from_address(whole.data_ptr()), begun) if whole.nbytes else begun


def checksum_of(tensors: Iterable[torch.Tensor]) -> int:
    """32 bits of the elements of CPU tensors, one after another."""
    found = 0
    for tensor in tensors:
        found = checksum(tensor, found)
    return found


def check_gradients_of(tensor: torch.Tensor, where: str) -> None:
    """Raises for a tensor whose gradients (or itself) have no signs that can be packed."""
    expect(tensor.dtype in PARAMETER_DTYPES, where, tensor.dtype, f"one of {', '.join(map(str, PARAMETER_DTYPES))}")
    expect(tensor.layout == torch.strided, where, f"layout {tensor.layout}", "torch.strided")
    if tensor.device.type != "cpu":
        raise NotImplementedError(f"{where}: got a tensor on {tensor.device}, wanted one on the CPU: {NO_DEVICES}")


class SignBuffers:
    """Room for `count` signs, a multiple of `ALIGNMENT`: uint8 CPU tensors `bits`, and `presence` or, for error
    feedback, `scales` (bfloat16 as int16). `zeros` and `previous` (the result before) as the rule of ties wants them.
    """

    def __init__(self, count: int, ties: str | None) -> None:
        """ties: None for error feedback."""

        def signs(wanted: bool) -> torch.Tensor | None:
            return torch.zeros(count // 8, dtype=torch.uint8) if wanted else None

        self.count = count
        self.bits = torch.zeros(count // 8, dtype=torch.uint8)
        self.presence = torch.zeros(count // (8 * BLOCK), dtype=torch.uint8) if ties else None
        self.scales = None if ties else torch.zeros(count // FEEDBACK_BLOCK, dtype=torch.int16)
        self.zeros, self.previous = signs(ties == "zero"), signs(ties == "previous")


def address(tensor: torch.Tensor | None) -> int:
    """The address for the core; 0 for None."""
    return 0 if tensor is None else tensor.data_ptr()
