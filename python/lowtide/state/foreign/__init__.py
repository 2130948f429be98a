"""State dicts of other libraries' optimizers: bitsandbytes, torchao's low-bit ones and FlashOptim.

A format says whether a dict is one of its own, and gives its groups and entries in Lowtide's terms. What Lowtide stores
alike is taken over bit for bit (`entries.Stored`); everything else becomes float32 values, which are encoded. Nothing
here changes an optimizer: state_dict.py checks what comes out of it, as it checks its own, and then copies.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Protocol

from lowtide.state.foreign import bitsandbytes, flashoptim, torchao

if TYPE_CHECKING:
    from lowtide.optimizers.optimizer import Optimizer


class Format(Protocol):
    """What a module of this package offers. All raise ValueError, with what was got and what is wanted."""

    def recognizes(self, state: dict[Any, Any], groups: list[dict[str, Any]]) -> bool:
        """Whether the two halves of a state_dict are of this library."""

    def read_group(
        self, optimizer: Optimizer, group: dict[str, Any], mine: dict[str, Any], where: str
    ) -> dict[str, Any]:
        """The options of `group` under their names here. `mine`: the optimizer's group, for what `group` lacks."""

    def read_entry(self, optimizer: Optimizer, index: int, entry: dict[str, Any], where: str) -> dict[str, Any]:
        """The state of parameter `index`, as torch_dict.py has it or `entries.Stored`."""


_FORMATS: tuple[Format, ...] = (bitsandbytes, torchao, flashoptim)


def format_of(state_dict: dict[str, Any]) -> Format | None:
    """The format of a dict of another library; None for all others: Lowtide's, torch.optim's, and what is no
    state_dict at all."""
    state, groups = state_dict.get("state"), state_dict.get("param_groups")
    if not isinstance(state, dict) or not isinstance(groups, list):
        return None
    if not all(isinstance(part, dict) for part in [*state.values(), *groups]):
        return None
    if any("lowtide_format" in group for group in groups):
        return None
    return next((each for each in _FORMATS if each.recognizes(state, groups)), None)
