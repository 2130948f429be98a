"""The residuals of error feedback, encoded as optimizer state is."""

from __future__ import annotations

import torch

from lowtide import _core
from lowtide.distributed.layout import address

STATE_BLOCK: int = _core.STATE_BLOCK  # values that share a scale


class Residual:
    """`numel` values in a state format: `codes`, and `scales` (float32, one for `STATE_BLOCK` values) where it has
    them. Zero at first."""

    def __init__(self, numel: int, codec: str) -> None:
        width, scaled = _core.codec_bytes(codec)
        self.codec, self.numel = codec, numel
        self.codes = torch.empty(numel, dtype={1: torch.uint8, 2: torch.bfloat16, 4: torch.float32}[width])
        self.scales = torch.empty(-(-numel // STATE_BLOCK)) if scaled else None
        self.put(torch.zeros(numel))

    def put(self, values: torch.Tensor) -> None:
        """Encodes float32 [numel], contiguous."""
        self._convert(True, values)

    def values(self) -> torch.Tensor:
        """Decoded to float32 [numel]."""
        out = torch.empty(self.numel)
        self._convert(False, out)
        return out

    def _convert(self, encode: bool, values: torch.Tensor) -> None:
        places = address(self.codes), address(self.scales)
        _core.convert_residual(encode, address(values), *places, self.numel, self.codec)

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
