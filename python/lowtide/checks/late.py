"""Packages that import their names on first use.

A package that imports its own modules holds its import lock while it waits for their locks. A thread that imports such a module
holds the module's lock while Python waits for the package's. Two threads that do both at once get a deadlock error."""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from importlib import import_module
from importlib.util import find_spec
from typing import Any

_SPECIAL = ("__all__", "__version__")


def _instead(package: str, name: str, known: Sequence[str]) -> str:
    """A suggestion for an error about an unknown name: where bitsandbytes' and torch's names are, or the most similar name."""
    if name.endswith(("8bit", "32bit")):
        return ": lowtide.compat.bitsandbytes.optim has bitsandbytes' names; the classes here take state="
    if name == "optim" and package == "lowtide":
        return ": the classes are in lowtide itself, such as lowtide.AdamW"
    if name.startswith("_"):
        return ""
    from lowtide.checks.hints import hint

    return hint(name, known)


def names_of(package: str) -> tuple[Callable[[str], Any], Callable[[], list[str]]]:
    """Returns `__getattr__` and `__dir__` for a package: the names of its module `interface`, and its modules, which `dir`
    omits. Importing the package imports nothing else. The first use of a name binds all of them; names that others have
    replaced, as tests do with doubles, stay replaced."""
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
        error = AttributeError(f"module {package!r} has no attribute {name!r}{_instead(package, name, own.get('__all__', ()))}")
        error.name, error.obj = name, None  # otherwise Python adds its own suggestion
        raise error

    return find, lambda: sorted(find("__all__"))
