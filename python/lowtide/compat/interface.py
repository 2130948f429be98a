"""The names of `lowtide.compat`."""

from lowtide.compat import bitsandbytes, deepspeed, flashoptim

__all__ = ["bitsandbytes", "deepspeed", "flashoptim"]
