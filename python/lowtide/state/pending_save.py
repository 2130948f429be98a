"""A save that runs beside steps, and its end before the process ends."""

from __future__ import annotations

import atexit
import math
import time

from lowtide import _core
from lowtide.checks.values import expect

_SLICE = 0.1  # seconds after which a wait looks for Ctrl-C
_LONGEST = 1e9  # seconds: more is for good

atexit.register(_core.finish_saves)  # while the memory and the devices of optimizers are still there


class PendingSave:
    """The save that `Optimizer.save(path, asynchronous=True)` has begun. It may outlive the optimizer; any thread may use it. In a
    forked child, which has nothing of the save, its methods raise ValueError.

    Attributes:
        path: the file's, absolute.
    """

    def __init__(self, handle: _core.SaveHandle, path: str) -> None:
        self._handle, self.path = handle, path

    def done(self) -> bool:
        """True once the file is written, or cannot be. Does not wait."""
        return self._handle.done()

    def wait(self, timeout: float | None = None) -> bool:
        """Waits until the file is written, `timeout` seconds at most (None: for good); False if they have passed before.

        Raises OSError (disk full, another failure of the file or of a disk that holds state), MemoryError or
        DeviceLostError if the save has failed: a file that was there before is then untouched."""
        expect(
            timeout is None or (isinstance(timeout, (int, float)) and 0 <= timeout),
            "timeout", f"{timeout!r} ({type(timeout).__name__})", "seconds from 0, or None for no limit",
        )  # fmt: skip
        end = math.inf if timeout is None or timeout > _LONGEST else time.monotonic() + timeout
        while not self._handle.wait(max(0.0, min(_SLICE, end - time.monotonic()))):
            if time.monotonic() >= end:
                return False
        return True

    @property
    def copied_bytes(self) -> int:
        """The bytes of state that steps have copied so far because they were not written yet."""
        return self._handle.copied_bytes()

    def __repr__(self) -> str:
        try:
            standing = "done" if self.done() else "running"
        except ValueError:  # in a forked child, whose logs and debuggers show it, too
            standing = "of the parent process"
        return f"PendingSave({self.path!r}, {standing})"
