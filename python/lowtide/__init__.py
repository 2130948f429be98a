"""Lowtide: torch optimizers whose state is small.

    import lowtide
    optimizer = lowtide.AdamW(model.parameters(), lr=3e-4, weight_decay=0.1)    # about 2 bytes of state per parameter

The classes are `torch.optim.Optimizer`s: schedulers, closures, hooks, gradient clipping, GradScaler, `state_dict` and
`load_state_dict` work as they do there. `state="fp32"` computes what torch computes, `"bf16"` halves the state and
`"dynamic8"` (the default) quarters it. Errors: ValueError and TypeError for bad arguments, naming what was given and
what is wanted; MemoryError; NotImplementedError for parameters on a device that this installation cannot step;
DeviceLostError, a RuntimeError, for a device that can do nothing more in this process. Another call that raises has
changed nothing. `lowtide.sign` packs signs into bits and takes majorities of them.
"""

from importlib import import_module
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from lowtide.interface import *


def __getattr__(name: str) -> Any:
    """A module of this package, or a name of `lowtide.interface`. Until one is used, `import lowtide` imports nothing:
    torch takes seconds, which `lowtide --help` would wait for."""
    special = name.startswith("__") and name not in ("__all__", "__version__")
    if not special and find_spec(f"lowtide.{name}"):
        return import_module(f"lowtide.{name}")
    found = {} if special else vars(import_module("lowtide.interface"))
    globals().update({key: value for key, value in found.items() if key in ("__all__", "__version__") or key[0] != "_"})
    if name not in globals():
        raise AttributeError(f"module 'lowtide' has no attribute {name!r}")
    return globals()[name]


def __dir__() -> list[str]:
    return sorted({*globals(), *__getattr__("__all__")})
