"""What Lowtide tells of its own decisions, through `logging.getLogger("lowtide")`. Nothing is printed."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from lowtide.report import CoreReport

logger = logging.getLogger("lowtide")
logger.addHandler(logging.NullHandler())


class Residency:
    """Tells, at INFO, how state reaches its device, and when it has moved there or away."""

    def __init__(self) -> None:
        self._path = ""
        self._moves = (0, 0)

    def look(self, report: CoreReport) -> None:
        if report["path"] != self._path:
            self._path = report["path"]
            if self._path:
                logger.info(
                    "state streams to the device by %s: %d bytes a step", self._path, report["moved_per_step"]
                )
        moves = (report["promotions"], report["demotions"])
        if moves != self._moves:
            logger.info(
                "state was moved to the device %d and away %d times; %d of %d bytes are there",
                moves[0] - self._moves[0], moves[1] - self._moves[1], report["device_bytes"], report["state_bytes"],
            )  # fmt: skip
            self._moves = moves
