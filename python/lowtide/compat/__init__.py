"""Functions of other libraries under the names, arguments and layouts that people already use."""

from lowtide.compat import deepspeed

__all__ = ["deepspeed"]
