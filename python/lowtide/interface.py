"""The names of `lowtide`. The first use of one makes `lowtide/__init__.py` import this module, and torch with it."""

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
from lowtide.optimizers.qk_clip import QKClip
from lowtide.optimizers.optimizer import Optimizer
from lowtide.optimizers.classes import CLASSES
from lowtide.optimizers.rules import LAMB, LARS, SGD, Adagrad, Lion, RMSprop
from lowtide.options.options import Options
from lowtide.options.overrides import Override, override
from lowtide.planning.forecasts import forecast
from lowtide.planning.plan import plan
from lowtide.planning.rates import Rates, measure_rates
from lowtide.planning.result import Plan
from lowtide.state.pending_save import PendingSave
from lowtide.streaming.stream import stream, streaming_report, unstream

__version__: str = _core.__version__

__all__ = [
    "LAMB", "LARS", "SGD", "AdEMAMix", "Adagrad", "Adam", "AdamW", "Backend", "DeviceLostError", "Embedding", "Lion", "Memory",
    "Muon", "NAdam", "Optimizer", "Options", "Override", "PendingSave", "Plan", "QKClip", "RMSprop", "Rates", "StableEmbedding", "__version__",
    "backends", "compat", "export_fp32", "forecast", "hf", "master", "measure_rates", "override", "plan", "sign", "stream",
    "streaming_report", "unstream",
]  # fmt: skip
# Classes that other modules of optimizers/ add to the list.
globals().update({cls.__name__: cls for cls in CLASSES.values()})
__all__ += [cls.__name__ for cls in CLASSES.values() if cls.__name__ not in __all__]


class Backend(TypedDict):
    """Whether a kind of device can compute here, and its devices, or what is missing and how to get it."""

    available: bool
    detail: str


def backends() -> dict[str, Backend]:
    """The backends of this installation: backend name → {"available": bool, "detail": str}. Loads installed plug-ins and asks
    their drivers for devices. "cpu" steps parameters on the CPU, "cuda" on `cuda`, "sycl" on `xpu`."""
    return _core.backends()
