"""The names of `lowtide.compat.bitsandbytes`."""

from lowtide.compat.bitsandbytes import cextension, functional, nn, optim

__all__ = ["cextension", "functional", "nn", "optim"]
