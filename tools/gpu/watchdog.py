"""Runs a command with a time limit. Kills a command that hangs, with its children; leaves one that cannot be killed."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

GRACE_S = 2.0  # between asking a command to end and killing it
GIVE_UP_S = 10.0  # a process that waits inside a driver does not die
TAIL = 4000  # characters of output that a result keeps


@dataclass
class Result:
    status: str  # ok, failed, hung, stuck (could not be killed) or missing (could not be started)
    code: int
    seconds: float
    tail: str

    @property
    def ok(self) -> bool:
        return self.status == "ok"

    def data(self) -> dict[str, Any]:
        return asdict(self)


def _signal(process: subprocess.Popen[bytes], which: int) -> None:
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, which)


def _waited(process: subprocess.Popen[bytes], seconds: float) -> bool:
    try:
        process.wait(max(0.0, seconds))
    except subprocess.TimeoutExpired:
        return False
    return True


class Running:
    """A running command. Its output goes to `log`; `errors` says where its stderr goes."""

    def __init__(self, command: Sequence[object], log: Path, env: dict[str, str] | None = None, cwd: Path | None = None,
                 errors: int = subprocess.STDOUT, stdin: int = subprocess.DEVNULL) -> None:  # fmt: skip
        log.parent.mkdir(parents=True, exist_ok=True)
        self.log = log
        with open(log, "wb") as out:
            self.process = subprocess.Popen([str(word) for word in command], stdin=stdin, stdout=out, stderr=errors,
                                            env=env, cwd=cwd, start_new_session=True)  # fmt: skip

    def tell(self, line: str, log: Path) -> None:
        """Sends the one line that the command waits for on stdin, and renames its log to `log`."""
        self.log = self.log.rename(log)
        assert self.process.stdin
        with contextlib.suppress(BrokenPipeError):  # if it has died, its result says so
            self.process.stdin.write(f"{line}\n".encode())
            self.process.stdin.close()

    def kill(self) -> None:
        _signal(self.process, signal.SIGKILL)
        _waited(self.process, GIVE_UP_S)

    def finish(self, limit_s: float) -> Result:
        """Waits at most that long for its end. The result has the end of the log."""
        start, status = time.monotonic(), "ok"
        try:
            if not _waited(self.process, limit_s):
                status = "hung"
                _signal(self.process, signal.SIGTERM)
                if not _waited(self.process, GRACE_S):
                    _signal(self.process, signal.SIGKILL)
                    if not _waited(self.process, GIVE_UP_S):
                        status = "stuck"
        finally:
            _signal(self.process, signal.SIGKILL)  # kills leftover children, or everything if this program must end
        code = self.process.returncode if self.process.returncode is not None else -1
        if status == "ok" and code != 0:
            status = "failed"
        return Result(status, code, round(time.monotonic() - start, 2), self.log.read_text(errors="replace")[-TAIL:])


def run(command: Sequence[object], limit_s: float, log: Path, env: dict[str, str] | None = None, cwd: Path | None = None,
        errors: int = subprocess.STDOUT) -> Result:  # fmt: skip
    try:
        running = Running(command, log, env, cwd, errors)
    except OSError as error:
        return Result("missing", 127, 0.0, str(error))
    return running.finish(limit_s)
