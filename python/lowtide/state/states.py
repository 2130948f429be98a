"""The mapping that `Optimizer.state` is."""

from __future__ import annotations

from collections import defaultdict
from typing import Any

import torch


class States(defaultdict[torch.Tensor, dict[str, torch.Tensor]]):
    """Notes that something was taken out, or replaced by nothing, since a step last looked."""

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
