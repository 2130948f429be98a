"""A save that runs beside steps and ends before the process does."""

from __future__ import annotations

import atexit
import math
import time

from lowtide import _core
from lowtide.checks.values import expect

_SLICE = 0.1  # seconds between checks for Ctrl-C during a wait
_LONGEST = 1e9  # seconds; a larger timeout means no limit

atexit.register(_core.finish_saves)  # while memory and devices of optimizers still exist


class PendingSave:
    """The save that `Optimizer.save(path, asynchronous=True)` began. It may outlive the optimizer, and any thread may use it.
    In a forked child, which does not have the save, its methods raise ValueError.

    Attributes:
        path: the absolute path of the file.
    """

    def __init__(self, handle: _core.SaveHandle, path: str) -> None:
        self._handle, self.path = handle, path

    def done(self) -> bool:
        """True once the file is written or the save has failed. Does not wait."""
        return self._handle.done()

    def wait(self, timeout: float | None = None) -> bool:
        """Waits at most `timeout` seconds (None: no limit) until the file is written. Returns False on timeout.

        Raises OSError (disk full, another failure of the file or of a disk that holds state), MemoryError or DeviceLostError if
        the save has failed; an existing file is then untouched."""
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
        """The bytes of unwritten state that steps have copied so far."""
        return self._handle.copied_bytes()

    def __repr__(self) -> str:
        try:
            standing = "done" if self.done() else "running"
        except ValueError:  # logs and debuggers of a forked child show it, too
            standing = "of the parent process"
        return f"PendingSave({self.path!r}, {standing})"
