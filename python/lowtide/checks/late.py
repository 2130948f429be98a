"""Packages whose names come from a module of theirs when the first is used. A package that imports its own modules holds its
import lock while it waits for theirs; who imports one of these holds the module's while Python waits for the package's. Two
threads that do both at once get a deadlock error."""

from __future__ import annotations

import sys
from collections.abc import Callable
from importlib import import_module
from importlib.util import find_spec
from typing import Any

_SPECIAL = ("__all__", "__version__")


def _elsewhere(name: str) -> str:
    """Words for an error about a name that is bitsandbytes'; "" for another."""
    words = ": lowtide.compat.bitsandbytes.optim has bitsandbytes' names; the classes here take state="
    return words if name.endswith(("8bit", "32bit")) else ""


def names_of(package: str) -> tuple[Callable[[str], Any], Callable[[], list[str]]]:
    """`__getattr__` and `__dir__` of a package: the names of its module `interface`, and its modules. Until a name is used,
    importing the package imports nothing. From then on all of them are there, and what others have put in the place of a name
    (a test's double, say) stays."""
    own = vars(sys.modules[package])

    def find(name: str) -> Any:
        public = not name.startswith("_") or name in _SPECIAL
        found = vars(import_module(f"{package}.interface")) if public else {}
        for key in [key for key in found if key in _SPECIAL or key[0] != "_"]:
            own.setdefault(key, found[key])
        if name in own:
            return own[name]
        module = f"{package}.{name}"
        if name.isidentifier() and not name.startswith("__") and (sys.modules.get(module) or find_spec(module)):
            return import_module(module)
        error = AttributeError(f"module {package!r} has no attribute {name!r}{_elsewhere(name)}")
        error.name, error.obj = name, sys.modules[package]  # Python looks for names that are much alike
        raise error

    return find, lambda: sorted({*own, *find("__all__")})
