"""bitsandbytes' optimizers, embeddings and block-wise quantization, with its names, arguments and defaults.

    import bitsandbytes as bnb      →      from lowtide.compat import bitsandbytes as bnb

docs/migrate.md lists the differences, and which backend this package follows where bitsandbytes' own disagree.
"""

from typing import TYPE_CHECKING

from lowtide.checks.late import names_of

if TYPE_CHECKING:
    from lowtide.compat.bitsandbytes.interface import *  # noqa: F403

__getattr__, __dir__ = names_of(__name__)
