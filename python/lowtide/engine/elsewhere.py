"""Stand-ins in `Optimizer.state` for tensors whose values no view can show: they stream, or are in memory of a device that
is the core's."""

from __future__ import annotations

from typing import Any

import torch

_UNTOUCHED = (torch.ops.aten.detach.default, torch.ops.aten._to_copy.default)  # what .data, .to() and .cpu() come down to


class Elsewhere(torch.Tensor):
    """A tensor with the shape, element type, bytes and device of state, for loops that count memory, and without values.

    `.to()` and `.cpu()` return it as it is, since state goes where `memory` says; all that would read or write values
    raises RuntimeError."""

    @staticmethod
    def __new__(cls, like: torch.Tensor, device: torch.device) -> Elsewhere:
        made: Elsewhere = torch.Tensor._make_wrapper_subclass(
            cls, like.shape, strides=like.stride(), dtype=like.dtype, device=device
        )
        return made

    @classmethod
    def __torch_dispatch__(  # type: ignore[override]
        cls, func: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        if func in _UNTOUCHED:
            return args[0]
        raise RuntimeError(
            f"{func}: got optimizer state that streams or is on a device, wanted a tensor with values: state_dict() has "
            "copies of them, load_state_dict() takes others, and offload() moves them"
        )

    def __repr__(self, **_: Any) -> str:  # type: ignore[override]
        return f"Elsewhere({tuple(self.shape)}, dtype={self.dtype}, device={self.device})"
