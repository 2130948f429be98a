"""Packages that load their names from a module when one is first used. A package that imports its own modules holds its import
lock while it waits for theirs; a thread that imports such a module holds the module's lock while Python waits for the
package's. Two threads that do both at once get a deadlock error."""

from __future__ import annotations

import sys
from collections.abc import Callable
from importlib import import_module
from importlib.util import find_spec
from typing import Any

_SPECIAL = ("__all__", "__version__")


def _elsewhere(name: str) -> str:
    """Words for an error about a name that belongs to bitsandbytes; "" for other names."""
    words = ": lowtide.compat.bitsandbytes.optim has bitsandbytes' names; the classes here take state="
    return words if name.endswith(("8bit", "32bit")) else ""


def names_of(package: str) -> tuple[Callable[[str], Any], Callable[[], list[str]]]:
    """`__getattr__` and `__dir__` of a package: the names of its module `interface`, and its modules. Importing the package
    imports nothing until a name is used. From then on all names are there, and replacements made by others (a test's double)
    stay."""
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
        error.name, error.obj = name, sys.modules[package]  # so that Python suggests similar names
        raise error

    return find, lambda: sorted({*own, *find("__all__")})
