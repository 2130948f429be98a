"""The residuals of error feedback, encoded as optimizer state is."""

from __future__ import annotations

import torch

from lowtide import _core
from lowtide.distributed.layout import address


class Residual:
    """`numel` values in a state format: `codes`, and `scales` (float32, one for each block) where it has them. Zero at
    first."""

    def __init__(self, numel: int, codec: str) -> None:
        dtype, (_, codes), scales = _core.code_sizes(codec, True, 1, numel)
        self.codec, self.numel = codec, numel
        self.codes = torch.empty(codes, dtype=getattr(torch, dtype))
        self.scales = torch.empty(scales[1]) if scales else None
        self.put(torch.zeros(numel))

    def put(self, values: torch.Tensor) -> None:
        """Encodes float32 [numel], contiguous."""
        _core.encode(self.codec, True, address(values), 1, self.numel, address(self.codes), address(self.scales))

    def values(self) -> torch.Tensor:
        """Decoded to float32 [numel]."""
        out = torch.empty(self.numel)
        _core.decode(self.codec, True, address(self.codes), address(self.scales), 1, self.numel, address(out))
        return out

    def tensors(self) -> dict[str, torch.Tensor]:
        """As stored, by name; live."""
        return {"codes": self.codes} | ({} if self.scales is None else {"scales": self.scales})


class ShardResidual:
    """That of the shard that this worker averages; see `lowtide::SignResidual`."""

    def __init__(self, count: int, rank: int, size: int, codec: str) -> None:
        self.core = _core.SignResidual(count, rank, size, codec)

    @property
    def first(self) -> int:
        """Number of the shard's first sign."""
        return self.core.first()

    def values(self) -> torch.Tensor:
        """Decoded to float32, one for each sign of the shard."""
        out = torch.zeros(self.core.count())
        self.core.read_values(address(out))
        return out

    def clear(self) -> None:
        """All of it becomes zero."""
        zeros = torch.zeros(self.core.count())
        self.core.replace_values(address(zeros))

    def read(self) -> torch.Tensor:
        """A copy, as stored: uint8."""
        out = torch.empty(self.core.bytes(), dtype=torch.uint8)
        self.core.read(address(out))
        return out

    def replace(self, stored: torch.Tensor) -> None:
        """By what `read` gave. ValueError for another size or type."""
        wanted = (self.core.bytes(),)
        if stored.dtype != torch.uint8 or tuple(stored.shape) != wanted:
            raise ValueError(f"shard: got {stored.dtype} {tuple(stored.shape)}, wanted torch.uint8 {wanted}")
        self.core.replace(address(stored.contiguous()))
