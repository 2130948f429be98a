"""Torch's "xpu" devices, stood in for by the CPU's OpenCL device (stand_in.py). Both of them are the one that there is."""

from __future__ import annotations

import pytest
import stand_in
from lowtide.devices import places


class Usm(stand_in.StandIn):
    kind = "xpu"

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        super().__init__(monkeypatch, ("cpu", "cpu"))
        monkeypatch.setitem(places.KINDS, "xpu", places.Kind("sycl", self.current_queue, lambda _: 1 << 30))
