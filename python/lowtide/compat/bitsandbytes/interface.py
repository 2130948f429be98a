"""All names of `lowtide.compat.bitsandbytes`."""

from lowtide.compat.bitsandbytes import functional, nn, optim

__all__ = ["functional", "nn", "optim"]
