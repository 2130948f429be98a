"""Residuals of error feedback: the remainders of signs with scales, encoded like optimizer state."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from typing import Any

import torch

from lowtide import _core
from lowtide.checks.values import expect
from lowtide.devices.places import Place
from lowtide.distributed.buffers import signer_at, tensor_at, using
from lowtide.distributed.layout import address


class Residual:
    """`numel` values in a state format, in host memory: `codes` and, if the format has them, `scales` (float32, one per
    block)."""

    def __init__(self, numel: int, codec: str, codes: torch.Tensor, scales: torch.Tensor | None) -> None:
        self.codec, self.numel, self.codes, self.scales = codec, numel, codes, scales

    def put(self, values: torch.Tensor) -> None:
        """Encodes float32 [numel], which must be contiguous."""
        _core.encode(self.codec, True, address(values), 1, self.numel, address(self.codes), address(self.scales))

    def values(self) -> torch.Tensor:
        """Decodes the values to float32 [numel]."""
        out = torch.empty(self.numel)
        _core.decode(self.codec, True, address(self.codes), address(self.scales), 1, self.numel, address(out))
        return out

    def tensors(self) -> dict[str, torch.Tensor]:
        """The live stored tensors by name."""
        return {"codes": self.codes} | ({} if self.scales is None else {"scales": self.scales})


class Residuals:
    """One residual per parameter, initially zero, on the gradients' device. `addresses`: of codes and scales on that device."""

    def __init__(
        self, numels: Sequence[int], codec: str, place: Place, signer: _core.Signer | None = None
    ) -> None:
        self._codec, self._numels, self._place = codec, numels, place
        self._sizes = [_core.code_sizes(codec, True, 1, numel) for numel in numels]
        self._firsts: list[tuple[int, int]] = []  # byte offsets of codes and scales
        self.nbytes = room = 0
        for dtype, (_, codes), scales in self._sizes:
            size, more = codes * getattr(torch, dtype).itemsize, scales[1] * 4 if scales else 0
            self._firsts.append((room, room + _aligned(size)))
            room += _aligned(size) + _aligned(more)
            self.nbytes += size + more
        self._room = room
        self._memory = _core.SignMemory(signer or signer_at(place), room)
        there = self._memory.there()
        self.addresses = [
            (there + codes, there + scales if sizes[2] else 0)
            for (codes, scales), sizes in zip(self._firsts, self._sizes, strict=True)
        ]
        self.parts: list[Residual] = []  # on the host; for CPU gradients, always current
        with self.on_host(changed=True) as parts:
            for part in parts:
                part.put(torch.zeros(part.numel))

    @contextmanager
    def on_host(self, changed: bool = False) -> Iterator[list[Residual]]:
        """All residuals, in host memory for the duration of the context. changed: copies them back. Waits for the device."""
        queue = self._place.queue()
        self._memory.fetch(0, self._room, queue)
        host = self._memory.host()
        if not self.parts:
            self.parts = [
                self._part(host, numel, firsts, sizes)
                for numel, firsts, sizes in zip(self._numels, self._firsts, self._sizes, strict=True)
            ]
        try:
            yield self.parts
            if changed:
                self._memory.send(0, self._room, queue)
        finally:
            if not self._place.on_host:
                self.parts = []
                self._memory.drop_host()

    def _part(self, host: int, numel: int, firsts: tuple[int, int], sizes: Any) -> Residual:
        name, (_, codes), scales = sizes
        dtype = getattr(torch, name)
        stored = tensor_at(host + firsts[0], codes * dtype.itemsize).view(dtype)
        scaled = tensor_at(host + firsts[1], scales[1] * 4).view(torch.float32) if scales else None
        return Residual(numel, self._codec, stored, scaled)

    def using(self, queue: int) -> AbstractContextManager[None]:
        """See `using`."""
        return using(self._memory, queue)

    def copy(self, other: Residuals, queue: int) -> None:
        """Copies the values of other residuals, which must have the same sizes and device."""
        self._memory.copy(other._memory, queue)


def _aligned(size: int) -> int:
    return -(-size // 256) * 256


class ShardResidual:
    """The residual of the shard that this worker averages. See `lowtide::SignResidual`."""

    def __init__(self, count: int, rank: int, size: int, codec: str) -> None:
        self.core = _core.SignResidual(count, rank, size, codec)
        self.first = self.core.first()  # index of the shard's first sign

    def values(self) -> torch.Tensor:
        """The values as float32, one per sign of the shard."""
        out = torch.zeros(self.core.count())
        self.core.read_values(address(out))
        return out

    def clear(self) -> None:
        """Sets all values to zero."""
        zeros = torch.zeros(self.core.count())
        self.core.replace_values(address(zeros))

    @property
    def nbytes(self) -> int:
        """Bytes of its memory."""
        return int(self.core.allocated_bytes())

    def read(self) -> torch.Tensor:
        """Copies the stored form, as uint8."""
        out = torch.empty(self.core.bytes(), dtype=torch.uint8)
        self.core.read(address(out))
        return out

    def replace(self, stored: torch.Tensor) -> None:
        """Restores what `read` returned. Raises ValueError for another size or type."""
        wanted = (self.core.bytes(),)
        fits = stored.dtype == torch.uint8 and tuple(stored.shape) == wanted
        expect(fits, "shard", f"{stored.dtype} {tuple(stored.shape)}", f"torch.uint8 {wanted}")
        self.core.replace(address(stored.contiguous()))


class DeviceShardResidual:
    """A `ShardResidual` in device memory. A mean changes a copy (`begin_next`), which replaces the original if the mean is
    applied."""

    def __init__(self, first: int, count: int, codec: str, place: Place) -> None:
        """first, count: the range of signs in the shard."""
        self.first, self.codec, self._place = first, codec, place
        signer = signer_at(place)
        self._now, self._next = (Residuals([count], codec, place, signer) for _ in range(2))

    @property
    def nbytes(self) -> int:
        """Bytes of its memory."""
        return self._now.nbytes + self._next.nbytes

    def begin_next(self, queue: int) -> tuple[int, int]:
        """Addresses of copies of the current codes and scales, which the mean may change."""
        self._next.copy(self._now, queue)
        return self._next.addresses[0]

    def take_next(self) -> None:
        """Adopts the changed copies once the mean is applied."""
        self._now, self._next = self._next, self._now

    def values(self) -> torch.Tensor:
        """The values as float32 on the host, one per sign of the shard."""
        with self._now.on_host() as (part,):
            return part.values()

    def clear(self) -> None:
        """Sets all values to zero."""
        with self._now.on_host(changed=True) as (part,):
            part.put(torch.zeros(part.numel))

    def read(self) -> torch.Tensor:
        """Copies the stored form, as uint8: first codes, then scales."""
        with self._now.on_host() as (part,):
            return torch.cat([one.reshape(-1).view(torch.uint8) for one in part.tensors().values()])

    def replace(self, stored: torch.Tensor) -> None:
        """Restores what `read` returned. Raises ValueError for another size or type."""
        with self._now.on_host(changed=True) as (part,):
            parts = [one.view(torch.uint8) for one in part.tensors().values()]
            wanted = (sum(one.numel() for one in parts),)
            fits = stored.dtype == torch.uint8 and tuple(stored.shape) == wanted
            expect(fits, "shard", f"{stored.dtype} {tuple(stored.shape)}", f"torch.uint8 {wanted}")
            first = 0
            for one in parts:
                one.copy_(stored[first : first + one.numel()].view(one.shape))
                first += one.numel()
