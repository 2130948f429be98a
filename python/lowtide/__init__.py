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

from pathlib import Path as _Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from lowtide.interface import *

# Written by builds for one machine: flags as in /proc/cpuinfo.
_BUILT_FOR = _Path(__file__).with_name("processor.txt")


# Not in a module of its own: while a package imports its submodules, a thread that imports one of them first would lock the two
# in the other order.
def _check_processor(built_for: _Path = _BUILT_FOR, cpuinfo: _Path = _Path("/proc/cpuinfo")) -> None:
    """Raises ImportError if the processor lacks instructions of the compiled module, which would kill the process. Accepts portable
    builds, and systems without cpuinfo."""
    try:
        wanted = set(built_for.read_text(encoding="ascii").split())
        with cpuinfo.open(encoding="utf-8", errors="replace") as lines:
            here = next((line for line in lines if line.startswith("flags")), "")
    except OSError:
        return
    if here and (missing := sorted(wanted - set(here.partition(":")[2].split()))):
        raise ImportError(
            f"got a processor without {', '.join(missing)}, wanted one like the processor that lowtide was compiled on: "
            "reinstall it on this machine, or build it for all processors with CMAKE_ARGS=-DLOWTIDE_NATIVE=OFF"
        )


_check_processor()


def __getattr__(name: str) -> Any:
    """See `lowtide.checks.late`. Nothing is imported before a name is used, so `lowtide --help` need not wait for torch."""
    from lowtide.checks.late import names_of

    return names_of(__name__)[0](name)


def __dir__() -> list[str]:
    from lowtide.checks.late import names_of

    return names_of(__name__)[1]()
