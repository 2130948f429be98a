"""bitsandbytes' optimizers, embeddings and block-wise quantization, under its names, arguments and defaults.

    import bitsandbytes as bnb      →      from lowtide.compat import bitsandbytes as bnb

docs/compat.md has the table of what differs, and which of bitsandbytes' backends is followed where they disagree.
"""

from lowtide.compat.bitsandbytes import functional, nn, optim

__all__ = ["functional", "nn", "optim"]
