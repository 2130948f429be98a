"""What `Optimizer.state` is."""

from __future__ import annotations

from collections import defaultdict
from typing import TYPE_CHECKING, Any

import torch

if TYPE_CHECKING:
    from lowtide.optimizers.optimizer import Optimizer


class States(defaultdict[torch.Tensor, dict[str, torch.Tensor]]):
    """`Optimizer.state`: notes that something was taken out, or replaced by nothing, since a step last looked."""

    removed = True

    def __delitem__(self, key: torch.Tensor) -> None:
        self.removed = True
        super().__delitem__(key)

    def __setitem__(self, key: torch.Tensor, value: dict[str, torch.Tensor]) -> None:
        self.removed = self.removed or not value
        super().__setitem__(key, value)

    def pop(self, *args: Any) -> Any:
        self.removed = True
        return super().pop(*args)

    def popitem(self) -> tuple[torch.Tensor, dict[str, torch.Tensor]]:
        self.removed = True
        return super().popitem()

    def clear(self) -> None:
        self.removed = True
        super().clear()


def shown_entry(optimizer: Optimizer, index: int) -> dict[str, torch.Tensor]:
    """Views of a parameter's state, as `Optimizer.state` has them."""
    entry = optimizer._core.state(index)
    of = optimizer._shardings[index]
    return of.wrap(entry) if of else entry


def live_entry(optimizer: Optimizer, index: int) -> dict[str, torch.Tensor]:
    """The live state of a parameter; empty if there is none and it has not been stepped."""
    if optimizer._core.is_paged(index):
        copies = optimizer._core.read_state(index)
        of = optimizer._shardings[index]
        return of.wrap(copies) if of else copies
    entry = shown_entry(optimizer, index)
    return entry if optimizer._core.has_state(index) or int(entry["step"]) else {}
