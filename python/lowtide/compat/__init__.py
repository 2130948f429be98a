"""Functions of other libraries, with the names, arguments and layouts that people already use."""

from typing import TYPE_CHECKING

from lowtide.checks.late import names_of

if TYPE_CHECKING:
    from lowtide.compat.interface import *  # noqa: F403

__getattr__, __dir__ = names_of(__name__)
