"""Signs of life: a bar on a terminal, dots and lines in a file. Nothing stays silent for two seconds."""

from __future__ import annotations

import signal
import sys
import threading
import time
from collections.abc import Callable
from types import FrameType, TracebackType
from typing import Any

LONGEST_SILENCE = 1.0  # seconds; half of the promise, for threads that wake late


class Ticker:
    """Calls a function every second, in a thread of its own, until it is stopped."""

    def __init__(self, tick: Callable[[], object]) -> None:
        self._tick = tick
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def stop(self) -> None:
        """After this the function is called no more."""
        self._over.set()
        self._thread.join()

    def _run(self) -> None:
        while not self._over.wait(LONGEST_SILENCE):
            self._tick()


class Waiting:
    """Shows a title, a dot every second and, at the end, the seconds that the block took; nothing when quiet."""

    def __init__(self, title: str, quiet: bool) -> None:
        self._title, self._quiet = title, quiet

    def __enter__(self) -> Waiting:
        self._start = time.perf_counter()
        if not self._quiet:
            print(self._title, end=" ", flush=True)
            self._ticker = Ticker(lambda: print(".", end="", flush=True))
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        if not self._quiet:
            self._ticker.stop()
            print("stopped" if kind else f"{time.perf_counter() - self._start:.1f} s", flush=True)


class Progress:
    """A bar on a terminal; otherwise about a line every second, and three dots while a step or a save takes longer than
    that; nothing when quiet."""

    def __init__(self, title: str, total: int, done: int, quiet: bool) -> None:
        self._title, self._total, self._done, self._quiet = title, total, done, quiet
        self._spoke = self._told = 0.0
        self._bar: Any = None
        self._ticker: Ticker | None = None
        if quiet:
            return
        if sys.stderr.isatty():
            from tqdm import tqdm

            self._bar = tqdm(total=total, initial=done, desc=title, unit="step", dynamic_ncols=True)
        self._ticker = Ticker(self._tick)

    def step(self, number: int, loss: float, validation: float | None) -> None:
        """Tell of one finished step."""
        self._done = number
        values = f"loss {loss:.3f}" + (f", validation {validation:.3f}" if validation is not None else "")
        if self._bar is not None:
            self._bar.set_postfix_str(values, refresh=False)
            self._bar.update(1)
        elif validation is not None or time.monotonic() - self._told >= LONGEST_SILENCE:
            self._told = time.monotonic()
            self._say(values)

    def close(self) -> None:
        """Leave the bar as it is and go on below it."""
        if self._ticker is not None:
            self._ticker.stop()
        if self._bar is not None:
            self._bar.close()

    def _tick(self) -> None:
        if self._bar is not None:
            self._bar.refresh()
        elif time.monotonic() - self._spoke >= LONGEST_SILENCE:
            self._say("...")

    def _say(self, values: str) -> None:
        if not self._quiet:
            print(f"{self._title}: step {self._done}/{self._total}, {values}", flush=True)
            self._spoke = time.monotonic()


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
