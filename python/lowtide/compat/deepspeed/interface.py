"""The names of `lowtide.compat.deepspeed`."""

from lowtide.compat.deepspeed import xpu_packbits
from lowtide.compat.deepspeed.bits import PackbitsBuilder, packbits, unpackbits
from lowtide.compat.deepspeed.joined import all_reduce_majority, byte_sum, majority, parity

__all__ = [
    "PackbitsBuilder", "all_reduce_majority", "byte_sum", "majority", "packbits", "parity", "unpackbits", "xpu_packbits",
]  # fmt: skip
