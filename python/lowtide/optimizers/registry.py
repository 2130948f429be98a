"""The list of rules and their classes, as far as modules have been imported (classes.py imports all)."""

import inspect
from collections.abc import Callable
from typing import Any, TypeVar

from lowtide.optimizers.optimizer import Optimizer

_Class = TypeVar("_Class", bound=type[Optimizer])

CLASSES: dict[str, type[Optimizer]] = {}  # by rule: a rule of the core, or "muon", which uses two of them


def steps(rule: str) -> Callable[[_Class], _Class]:
    """Adds a class to the list, from which `lowtide` exports it and `lowtide bench` measures it."""

    def add(cls: _Class) -> _Class:
        CLASSES[rule] = cls
        return cls

    return add


def hyper_of(cls: type[Optimizer]) -> dict[str, Any]:
    """The hyper-parameters of a class, with their defaults."""
    parameters = inspect.signature(cls).parameters.values()
    return {one.name: one.default for one in parameters if one.kind is not one.KEYWORD_ONLY and one.default is not one.empty}
