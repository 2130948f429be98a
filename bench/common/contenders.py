"""One form for compared optimizers: what makes one, and why it cannot run here."""

from __future__ import annotations

import importlib
import logging
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch

Options = dict[str, Any]


@dataclass(frozen=True)
class Contender:
    """An optimizer of a package. Its states are those of a torch.optim.Optimizer: tensors in `state`, by parameter."""

    package: str  # the distribution
    make: Callable[[list[torch.nn.Parameter], str, Options], Any]  # of parameters, the rule and a line's options
    module: str = ""  # to import; "": the package
    compiles: Callable[[], bool] | None = None  # whether its first step would take minutes of a compiler; None: it has none
    cannot: Callable[[Options], str | None] | None = None  # why these options cannot be measured here

    def why_not(self, quick: bool) -> str | None:
        """The reason why it cannot run here, or None. quick: do not wait for a compiler."""
        logging.disable(logging.WARNING)
        try:
            importlib.import_module(self.module or self.package)
            if self.compiles is None:
                return None
            if quick and self.compiles():
                return "has to be compiled, and --quick does not wait for that"
            param = torch.nn.Parameter(torch.zeros(16, 256))
            param.grad = torch.zeros(16, 256)
            self.make([param], "adamw", {}).step()
        except Exception as error:  # binaries, compilers and drivers fail in many types
            return f"cannot run: {str(error).partition(chr(10))[0] or type(error).__name__}"
        finally:
            logging.disable(logging.NOTSET)
        return None


def state_bytes(optimizer: Any) -> int:
    """Bytes of the state tensors, each memory counted once; step counts (tensors of one element) are not state."""
    found: dict[int, int] = {}
    for entry in optimizer.state.values():
        for value in entry.values():
            if isinstance(value, torch.Tensor) and value.numel() > 1:
                found[value.data_ptr()] = value.nbytes
    return sum(found.values())
