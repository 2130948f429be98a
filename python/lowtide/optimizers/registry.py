"""The list of rules and their classes: of the modules that have been imported (classes.py: of all)."""

import inspect
from collections.abc import Callable
from typing import Any, TypeVar

from lowtide.optimizers.optimizer import Optimizer

_Class = TypeVar("_Class", bound=type[Optimizer])

CLASSES: dict[str, type[Optimizer]] = {}  # by the rule that each is made for: of the core, or "muon", which is two of these


def steps(rule: str) -> Callable[[_Class], _Class]:
    """Puts a class into the list: `lowtide` exports it, `lowtide bench` measures it."""

    def add(cls: _Class) -> _Class:
        CLASSES[rule] = cls
        return cls

    return add


def hyper_of(cls: type[Optimizer]) -> dict[str, Any]:
    """The hyper-parameters of a class and their defaults."""
    parameters = inspect.signature(cls).parameters.values()
    return {one.name: one.default for one in parameters if one.default is not one.empty}
