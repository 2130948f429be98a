"""Progress on stderr while something takes long; stdout is for results."""

from __future__ import annotations

import contextlib
import sys
import threading
from types import TracebackType

_EVERY = 0.5  # seconds between ticks; every second tick shows progress


class Waiting:
    """Says at once what a wait is for, then shows each second that it lasts: on a terminal, in a line that disappears at the
    end; elsewhere, as dots.

        with Waiting("lowtide") as wait:
            wait("measuring memory")

    A thread writes, so work that holds Python's lock delays the output. Without stderr, nothing is said and no thread runs.
    """

    def __init__(self, program: str) -> None:
        self._program, self._words, self._ticks, self._shown = program, "", 0, False
        self._out = sys.stderr  # None where it is closed
        self._erases = bool(self._out) and self._out.isatty()
        self._lock, self._ends = threading.Lock(), threading.Event()
        self._thread = threading.Thread(target=self._tick, name="lowtide-waiting", daemon=True)

    def __call__(self, words: str, *, perhaps: bool = False) -> None:
        """Starts another wait. perhaps: it may be short; then nothing is said."""
        with self._lock:
            self._end_line()
            self._words, self._ticks = words, 0
            if not perhaps:
                self._begin_line()

    def for_torch(self) -> None:
        """Starts a wait for the import of torch, unless torch is imported already."""
        if "torch" not in sys.modules:
            self("importing torch")
            import torch  # noqa: F401

    def say(self, line: str) -> None:
        """Prints a line of the result on stdout without ending the wait."""
        with self._lock:
            words = self._words
            self._end_line()
            print(line, flush=True)
            self._words = words
            if self._erases and words:
                self._begin_line()

    def __enter__(self) -> Waiting:
        if self._out:
            self._thread.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self._ends.set()
        if self._out:
            self._thread.join()
        with self._lock:
            self._end_line()

    def _tick(self) -> None:
        while not self._ends.wait(_EVERY):
            with self._lock:
                self._ticks += 1
                if not self._words:
                    continue
                if not self._shown:
                    self._begin_line()
                elif self._ticks % 2 == 0:
                    self._write(f"\r\x1b[K{self._program}: {self._words}, {self._ticks // 2} s" if self._erases else ".")

    def _begin_line(self) -> None:
        self._shown = True
        self._write(f"{self._program}: {self._words}")

    def _end_line(self) -> None:
        if self._shown:
            self._write("\r\x1b[K" if self._erases else "\n")
        self._words, self._shown = "", False

    def _write(self, text: str) -> None:
        if self._out:
            with contextlib.suppress(OSError, ValueError):  # nobody may read stderr
                self._out.write(text)
                self._out.flush()
