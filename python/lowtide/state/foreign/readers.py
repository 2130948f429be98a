"""The readers, and their interface."""

from __future__ import annotations

from typing import Any, Protocol

from lowtide.state.entries import Entry, ParamSpec
from lowtide.state.foreign import bitsandbytes, flashoptim, schedulefree, torchao


class Reader(Protocol):
    """A module of this package. All functions raise ValueError with the value and what was wanted."""

    def recognizes(self, state: dict[Any, Any], groups: list[dict[str, Any]]) -> bool:
        """True if the two halves of a state_dict come from this library."""

    def read_group(self, rule: str, group: dict[str, Any], mine: dict[str, Any], where: str) -> dict[str, Any]:
        """The options of `group` under their names here. `mine`: hyper-parameters of the optimizer's group, which replace those
        that `group` lacks."""

    def read_entry(self, spec: ParamSpec, entry: dict[str, Any], where: str) -> Entry:
        """The state of one parameter."""


READERS: tuple[Reader, ...] = (schedulefree, bitsandbytes, torchao, flashoptim)
