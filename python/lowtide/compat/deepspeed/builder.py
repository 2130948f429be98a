"""DeepSpeed's access to `packbits` and `unpackbits`."""

from __future__ import annotations

from types import ModuleType

import lowtide.compat.deepspeed.bits as bits


class PackbitsBuilder:
    """Stands in for the PackbitsBuilder of DeepSpeed's accelerators; there is nothing to build."""

    NAME = "pack_bits"

    def load(self, verbose: bool = True) -> ModuleType:
        """A module with `packbits` and `unpackbits`. verbose: has no effect."""
        del verbose
        return bits

    def is_compatible(self, verbose: bool = False) -> bool:
        """True. verbose: has no effect."""
        del verbose
        return True
