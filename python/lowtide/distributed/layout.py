"""Where each parameter's signs are among all signs.

Signs follow the order of the parameters, so rebuilt buckets of DistributedDataParallel change nothing here. Every parameter
begins at a multiple of `ALIGNMENT`, so no two share a byte of bits, a byte of presence, or a scale of error feedback.
"""

from __future__ import annotations

import zlib
from collections.abc import Iterable, Sequence
from itertools import accumulate

import torch

from lowtide import _core
from lowtide.checks.values import PARAMETER_DTYPES, expect
from lowtide.devices import places
from lowtide.devices.places import Place
from lowtide.distributed.buffers import read_bytes

ALIGNMENT: int = _core.SIGN_ALIGNMENT


def aligned(count: int) -> int:
    """`count` rounded up to a multiple of `ALIGNMENT`."""
    return -(-count // ALIGNMENT) * ALIGNMENT


class Layout:
    """names: unique names of the parameters; offsets: index of each parameter's first sign; count: total number of signs."""

    def __init__(self, named: Iterable[tuple[str, torch.Tensor]]) -> None:
        named = list(named)
        self.names: Sequence[str] = [name for name, _ in named]
        self.numels = [param.numel() for _, param in named]
        *self.offsets, self.count = accumulate(map(aligned, self.numels), initial=0)
        self.digest = digest(*((name, tuple(param.shape), str(param.dtype)) for name, param in named))

    def runs(self, numbers: Iterable[int]) -> list[tuple[int, int]]:
        """Start and length, in signs, of each run of consecutive parameters."""
        found: list[tuple[int, int]] = []
        for number in sorted(numbers):
            first, count = self.offsets[number], aligned(self.numels[number])
            if found and sum(found[-1]) == first:
                found[-1] = found[-1][0], found[-1][1] + count
            else:
                found.append((first, count))
        return [run for run in found if run[1]]


def digest(*values: object) -> int:
    """A 32-bit hash of plain values, equal in every process."""
    return zlib.crc32(repr(values).encode())


def checksum_of(tensors: Iterable[torch.Tensor]) -> int:
    """A 32-bit checksum of the elements of all tensors, each in row-major order. Waits for tensors on a device."""
    found = 0
    signers: dict[places.Place, _core.Signer] = {}  # opening a device takes as long as reading many tensors
    for tensor in tensors:
        whole = tensor.detach().contiguous()
        if whole.nbytes:
            found = zlib.crc32(read_bytes(whole, places.place_of(tensor, "tensor"), signers), found)
    return found


def check_gradients_of(tensor: torch.Tensor, where: str) -> Place:
    """Returns the place of a tensor. Raises if its signs, and the signs of its gradients, cannot be packed."""
    expect(tensor.dtype in PARAMETER_DTYPES, where, tensor.dtype, f"one of {', '.join(map(str, PARAMETER_DTYPES))}")
    expect(tensor.layout == torch.strided, where, f"layout {tensor.layout}", "torch.strided")
    if places.device_of(tensor).type not in places.KINDS:
        wanted = " or ".join(places.KINDS)
        raise NotImplementedError(f"{where}: got a tensor on {places.device_of(tensor)}, wanted one on {wanted}")
    place = places.place_of(tensor, where)
    place.require_backend()
    return place


def address(tensor: torch.Tensor | None) -> int:
    """The address of a tensor for the core; 0 for None."""
    return 0 if tensor is None else tensor.data_ptr()
