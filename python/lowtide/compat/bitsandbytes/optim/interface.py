"""The names of `lowtide.compat.bitsandbytes.optim`."""

from lowtide.compat.bitsandbytes.optim import classes
from lowtide.compat.bitsandbytes.optim.base import BitsandbytesOptimizer
from lowtide.compat.bitsandbytes.optim.classes import *  # noqa: F403
from lowtide.compat.bitsandbytes.optim.manager import GlobalOptimManager

__all__ = ["GlobalOptimManager"]
__all__ += [
    name
    for name, cls in vars(classes).items()
    if isinstance(cls, type) and issubclass(cls, BitsandbytesOptimizer) and not name.startswith("_")
]
