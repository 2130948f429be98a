"""Lowtide: torch optimizers with small state.

    import lowtide
    optimizer = lowtide.AdamW(model.parameters(), lr=3e-4, weight_decay=0.1)    # about 2 bytes of state per parameter

The classes are `torch.optim.Optimizer`s: schedulers, closures, hooks, gradient clipping, GradScaler, `state_dict` and
`load_state_dict` work as in torch. `state="fp32"` computes what torch computes, `"bf16"` halves the state and `"dynamic8"` (the
default) quarters it. Errors: ValueError and TypeError for bad arguments, with the value and what was wanted; MemoryError;
NotImplementedError for parameters on a device that this installation cannot step; DeviceLostError, a RuntimeError, for a device
that this process can no longer use. Any other call that raises has changed nothing. `lowtide.sign` packs signs into bits and
computes majorities.
"""

from typing import TYPE_CHECKING, Any

from lowtide.checks import processor

if TYPE_CHECKING:
    from lowtide.interface import *

processor.check()


def __getattr__(name: str) -> Any:
    """See `lowtide.checks.late`. Nothing is imported before a name is used, so `lowtide --help` need not wait for torch."""
    from lowtide.checks.late import names_of

    return names_of(__name__)[0](name)


def __dir__() -> list[str]:
    from lowtide.checks.late import names_of

    return names_of(__name__)[1]()
