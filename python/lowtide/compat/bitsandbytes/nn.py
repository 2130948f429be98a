"""Embedding layers for training with quantized state: their own state stays float32 in every optimizer of Lowtide."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from typing_extensions import Self

from lowtide.checks.values import expect
from lowtide.options.overrides import override


class Embedding(torch.nn.Embedding):
    """`torch.nn.Embedding` whose weight starts Xavier-uniform, with zeros in the padding row, and whose state stays float32
    (`lowtide.override(self, "weight", state="fp32")`), like bitsandbytes.nn.Embedding. A later override wins.

    Args: as `torch.nn.Embedding`.
    """

    def __init__(
        self,
        num_embeddings: int,
        embedding_dim: int,
        padding_idx: int | None = None,
        max_norm: float | None = None,
        norm_type: float = 2.0,
        scale_grad_by_freq: bool = False,
        sparse: bool = False,
        _weight: Tensor | None = None,
        device: Any = None,
        dtype: Any = None,
    ) -> None:
        super().__init__(
            num_embeddings, embedding_dim, padding_idx, max_norm, norm_type, scale_grad_by_freq, sparse, _weight,
            device=device, dtype=dtype,
        )  # fmt: skip
        override(self, "weight", state="fp32")
        self._add_layers(device)

    def _add_layers(self, device: Any) -> None:
        """A hook for subclasses: adds layers beside the weight."""

    @classmethod
    def from_pretrained(
        cls,
        embeddings: Tensor,
        freeze: bool = True,
        padding_idx: int | None = None,
        max_norm: float | None = None,
        norm_type: float = 2.0,
        scale_grad_by_freq: bool = False,
        sparse: bool = False,
    ) -> Self:
        """Wraps a two-dimensional weight without copying it. freeze: gives the weight no gradient."""
        expect(embeddings.ndim == 2, "embeddings", f"{embeddings.ndim} dimensions", "2")
        rows, columns = embeddings.shape
        made = cls(rows, columns, padding_idx, max_norm, norm_type, scale_grad_by_freq, sparse, embeddings)
        made.weight.requires_grad_(not freeze)
        return made

    def reset_parameters(self) -> None:
        """Initializes the weight as the constructor does."""
        torch.nn.init.xavier_uniform_(self.weight)
        self._fill_padding_idx_with_zero()


class StableEmbedding(Embedding):
    """The embedding for 8-bit optimizers (Dettmers et al., arXiv 2110.02861, section 2.3), like
    bitsandbytes.nn.StableEmbedding: `Embedding` and then a layer norm in torch's default type, before positions are added. The
    state of the norm stays float32, too. The result has the type of the weight.

    Args: as `torch.nn.Embedding`. Attributes: norm, a `torch.nn.LayerNorm` over embedding_dim.
    """

    def _add_layers(self, device: Any) -> None:
        self.norm = torch.nn.LayerNorm(self.embedding_dim, device=device)
        for name in ("weight", "bias"):  # otherwise 4096 elements or more get 8-bit state
            override(self.norm, name, state="fp32")

    def forward(self, input: Tensor) -> Tensor:
        """Looks up indices of any shape; the result is [*input.shape, embedding_dim]."""
        found: Tensor = super().forward(input)
        normed: Tensor = self.norm(found.to(torch.get_default_dtype()))
        return normed.to(self.weight.dtype)
