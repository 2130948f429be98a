"""Functions of other libraries under the names, arguments and layouts that people already use."""

from lowtide.compat import bitsandbytes, deepspeed, flashoptim

__all__ = ["bitsandbytes", "deepspeed", "flashoptim"]
