"""Progress on a terminal, or a line now and then where the output goes to a file."""

from __future__ import annotations

import sys
from types import FrameType, TracebackType
import signal
import threading


class Progress:
    """A bar on a terminal; otherwise about ten lines per run; nothing when quiet."""

    def __init__(self, title: str, total: int, done: int, quiet: bool) -> None:
        self._title, self._total, self._quiet = title, total, quiet
        self._every = max(1, total // 10)
        self._bar = None
        if sys.stderr.isatty() and not quiet:
            from tqdm import tqdm

            self._bar = tqdm(total=total, initial=done, desc=title, unit="step", dynamic_ncols=True)

    def step(self, number: int, loss: float, validation: float | None) -> None:
        """Tell of one finished step."""
        values = f"loss {loss:.3f}" + (f", validation {validation:.3f}" if validation is not None else "")
        if self._bar is not None:
            self._bar.set_postfix_str(values, refresh=False)
            self._bar.update(1)
        elif not self._quiet and (number % self._every == 0 or number == self._total):
            print(f"{self._title}: step {number}/{self._total}, {values}", flush=True)

    def close(self) -> None:
        """Leave the bar as it is and go on below it."""
        if self._bar is not None:
            self._bar.close()


class StopSignals:
    """While active, SIGINT and SIGTERM only note their number, so that a step is never cut in two."""

    def __init__(self) -> None:
        self.signum = 0
        self._before: dict[int, object] = {}

    def __enter__(self) -> StopSignals:
        # Python delivers signals to the main thread only, and lets no other thread set handlers.
        if threading.current_thread() is threading.main_thread():
            for signum in (signal.SIGINT, signal.SIGTERM):
                self._before[signum] = signal.signal(signum, self._note)
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        for signum, handler in self._before.items():
            signal.signal(signum, handler)  # type: ignore[arg-type]

    def _note(self, signum: int, frame: FrameType | None) -> None:
        self.signum = signum
