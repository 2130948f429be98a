"""The log of Lowtide's own decisions, `logging.getLogger("lowtide")`. Nothing is printed."""

from __future__ import annotations

import logging
import sys
import warnings
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable
    from types import FrameType

    from lowtide.report.fields import CoreReport

logger = logging.getLogger("lowtide")
logger.addHandler(logging.NullHandler())


class Residency:
    """Logs, at INFO, where state is first placed, how it reaches its device, and when it moves there or away."""

    _transfer = ""
    _moves = (0, 0)
    _is_placed = False

    def place(self, report: CoreReport) -> None:
        """Logs the placement once."""
        if not self._is_placed:
            self._is_placed = True
            there, disk = report["device_bytes"], report["disk_bytes"]
            host = max(0, report["state_bytes"] - there - disk)  # records on the disk take whole sectors
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


def is_inside(frame: FrameType) -> bool:
    """True if the frame belongs to a function of Lowtide or torch."""
    return str(frame.f_globals.get("__name__", "")).partition(".")[0] in ("lowtide", "torch")


def is_called_by(name: str) -> bool:
    """True inside a call of torch's function `name`, even through wrappers of the optimizer."""
    frame: FrameType | None = sys._getframe(1)
    while frame:
        if frame.f_code.co_name == name and is_inside(frame):
            return True
        frame = frame.f_back
    return False


def warn(text: str, kind: type[Warning] = UserWarning) -> None:
    """Warns at the line that called Lowtide or torch."""
    level, frame = 2, sys._getframe(1)
    while frame.f_back and is_inside(frame):
        level, frame = level + 1, frame.f_back
    warnings.warn(text, kind, stacklevel=level)


class Skips:
    """Reports skipped steps: each at WARNING; the first, and the tenth in a row, also by a RuntimeWarning."""

    MANY = 10

    def __init__(self, seen: int = 0) -> None:
        self._seen, self._in_a_row = seen, 0
        self._met = {False} if seen else set[bool]()  # kinds of skips so far: True by a spike

    def look(self, skipped: int, told: Callable[[], tuple[int, str]], scales: bool, spike: str = "") -> None:
        """skipped: number of skipped steps so far. told: called after a skip, returns the number of steps that were taken, or
        -1, and what is not finite. scales: whether a GradScaler is searching for its scale.
        spike: describes the norm for which this step was skipped, if any."""
        if skipped == self._seen:
            self._in_a_row = 0
            return
        first, self._seen = bool(spike) not in self._met, skipped
        self._met.add(bool(spike))
        self._in_a_row += 1
        steps, what = told()
        when = f" after step {steps}" if steps >= 0 else ""
        level = logging.INFO if scales and not spike else logging.WARNING
        logger.log(level, "a step was skipped%s: %s (%d so far)", when, spike or f"{what} is not finite", skipped)
        if level == logging.INFO or not (first or self._in_a_row == self.MANY):
            return
        times = "a step was" if first else f"{self._in_a_row} steps in a row were"
        why = f"{what} is NaN or infinite"
        advice = 'nonfinite="raise" raises instead, and max_grad_norm= or a lower learning rate may avoid them'
        if spike:
            why, advice = spike, 'if norms stay this large, raise max_grad_spike or forget them: param_groups[0]["lowtide_norms"] = ()'
        text = f"{times} skipped{when}, and nothing changed: {why}. `skipped_steps` counts such steps; {advice}"
        warn(text, RuntimeWarning)
