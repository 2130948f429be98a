"""`bitsandbytes.optim`: its classes by name."""

from typing import TYPE_CHECKING

from lowtide.checks.late import names_of

if TYPE_CHECKING:
    from lowtide.compat.bitsandbytes.optim.interface import *  # noqa: F403

__getattr__, __dir__ = names_of(__name__)
