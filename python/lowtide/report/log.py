"""The log of Lowtide's own decisions, `logging.getLogger("lowtide")`. Nothing is printed."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from lowtide.report.fields import CoreReport

logger = logging.getLogger("lowtide")
logger.addHandler(logging.NullHandler())


class Residency:
    """Tells, at INFO, where state is at first, how it reaches its device, and when it has moved there or away."""

    _transfer = ""
    _moves = (0, 0)
    _is_placed = False

    def place(self, report: CoreReport) -> None:
        """Tells it once."""
        if not self._is_placed:
            self._is_placed = True
            there, disk = report["device_bytes"], report["disk_bytes"]
            host = max(0, report["state_bytes"] - there - disk)  # records on the disk are whole sectors
            logger.info("state is on the device with %d bytes, in host memory with %d, on disk with %d", there, host, disk)

    def look(self, report: CoreReport) -> None:
        if report["transfer"] != self._transfer:
            self._transfer = report["transfer"]
            if self._transfer:
                logger.info(
                    "state streams to the device by %s: %d bytes a step", self._transfer, report["moved_per_step"]
                )
        moves = (report["promotions"], report["demotions"])
        if moves != self._moves:
            logger.info(
                "state was moved to the device %d and away %d times; %d of %d bytes are there",
                moves[0] - self._moves[0], moves[1] - self._moves[1], report["device_bytes"], report["state_bytes"],
            )  # fmt: skip
            self._moves = moves
