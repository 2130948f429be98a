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

from typing_extensions import TypedDict

from lowtide import _core, compat, sign
from lowtide._core import DeviceLostError
from lowtide.compat import hf
from lowtide.compat.bitsandbytes.nn import Embedding, StableEmbedding
from lowtide.memory.budgets import Memory
from lowtide.optimizers import master
from lowtide.optimizers.adam import Adam, AdamW, AdEMAMix, NAdam
from lowtide.optimizers.master import export_fp32
from lowtide.optimizers.muon import Muon
from lowtide.optimizers.optimizer import Optimizer
from lowtide.optimizers.registry import CLASSES
from lowtide.optimizers.rules import LAMB, LARS, SGD, Adagrad, Lion, RMSprop
from lowtide.options.options import Options
from lowtide.options.overrides import Override, override
from lowtide.planning.plan import Plan, plan
from lowtide.planning.rates import Rates, measure_rates

__version__: str = _core.__version__

__all__ = [
    "LAMB", "LARS", "SGD", "AdEMAMix", "Adagrad", "Adam", "AdamW", "DeviceLostError", "Embedding", "Lion", "Memory",
    "Muon", "NAdam", "Optimizer", "Options", "Override", "Plan", "RMSprop", "Rates", "StableEmbedding", "__version__",
    "backends", "compat", "export_fp32", "hf", "master", "measure_rates", "override", "plan", "sign",
]  # fmt: skip
# Classes that another module of optimizers/ adds to the list.
globals().update({cls.__name__: cls for cls in CLASSES.values()})
__all__ += [cls.__name__ for cls in CLASSES.values() if cls.__name__ not in __all__]


class Backend(TypedDict):
    """Whether a kind of device can compute here, and in words on what, or what is missing and how to get it."""

    available: bool
    detail: str


def backends() -> dict[str, Backend]:
    """The backends of this installation: backend name → {"available": bool, "detail": str}. Loads the plug-ins that
    are installed and asks their drivers for devices. Parameters on the CPU are stepped by "cpu", those on `cuda` by
    "cuda", those on `xpu` by "sycl"."""
    return _core.backends()
