"""Packs signs as DeepSpeed does, and computes majorities of the packed bytes.

    packer = PackbitsBuilder().load()            →  packer = lowtide.compat.deepspeed.PackbitsBuilder().load()
    import deepspeed.ops.xpu_packbits as packer  →  import lowtide.compat.deepspeed.xpu_packbits as packer

    packer.packbits(buffer, buffer.numel(), rank)
    packer.unpackbits(packed, packed.numel(), rank)     # all bits, or
    packer.unpackbits(packed, buffer.numel(), rank)     # this many elements

docs/project/votes.md#signs-as-bits describes the layout of the bytes.
"""

from typing import TYPE_CHECKING

from lowtide.checks.late import names_of

if TYPE_CHECKING:
    from lowtide.compat.deepspeed.interface import *  # noqa: F403

__getattr__, __dir__ = names_of(__name__)
