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

import sys
from importlib import import_module
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from lowtide.interface import *

_SPECIAL = ("__all__", "__version__")


def __getattr__(name: str) -> Any:
    """A name of `lowtide.interface`, or a module of this package. Until one is used, `import lowtide` imports nothing:
    torch takes seconds, which `lowtide --help` would wait for. From then on all modules are there, and what others have
    put in the place of a name (a test's double, say) stays."""
    public = not name.startswith("_") or name in _SPECIAL
    found = vars(import_module("lowtide.interface")) if public else {}
    for key in [key for key in found if key in _SPECIAL or key[0] != "_"]:
        globals().setdefault(key, found[key])
    if name in globals():
        return globals()[name]
    module = f"lowtide.{name}"
    if name.isidentifier() and not name.startswith("__") and (sys.modules.get(module) or find_spec(module)):
        return import_module(module)
    raise AttributeError(f"module 'lowtide' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted({*globals(), *__getattr__("__all__")})
