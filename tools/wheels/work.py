"""A work folder: runs commands with their output in a log, and prints how long each takes."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
Words = list[str | Path]  # words of a command


class Failure(Exception):
    """A step failed. The message is for the user."""


def say(text: str) -> None:
    print(f"wheels: {text}", flush=True)


class Work:
    """Works in `folder`, with logs in its `logs`. `name` begins all messages."""

    def __init__(self, folder: Path, name: str = "wheels") -> None:
        self.folder = folder.resolve()
        self._name = name
        self._logs = self.folder / "logs"
        self._logs.mkdir(parents=True, exist_ok=True)

    def run(self, what: str, command: Sequence[str | Path], *, env: Mapping[str, str] | None = None, cwd: Path = ROOT) -> str:
        """Runs a command to its end and returns its output. Raises Failure with the end of the output if it fails."""
        log = self._logs / (what.replace(" ", "-").replace("/", "-") + ".log")
        print(f"{self._name}: {what} ...", end="", flush=True)
        start = time.monotonic()
        with log.open("w") as file:
            done = subprocess.run(
                [str(part) for part in command],
                cwd=cwd,
                env={**os.environ, **(env or {})},
                stdin=subprocess.DEVNULL,
                stdout=file,
                stderr=subprocess.STDOUT,
                check=False,
            )
        print(f" {time.monotonic() - start:.1f} s", flush=True)
        text = log.read_text(errors="replace")
        if done.returncode != 0:
            end = "\n".join(text.splitlines()[-60:])
            said = f"{what} failed with {done.returncode}: {' '.join(map(str, command))} (whole output: {log})"
            raise Failure(f"{end}\n{said}")
        return text

    def environment(self, name: str, requirements: str) -> Path:
        """The folder of an environment of this Python with these requirements, one per line, and their dependencies."""
        venv = self.folder / name
        listed = venv / "requirements.txt"
        if not listed.is_file() or listed.read_text() != requirements:
            self.run(f"environment for {name}", [sys.executable, "-m", "venv", "--clear", venv])
            new = venv / "requirements.new"
            new.write_text(requirements)
            pip: Words = [venv / "bin" / "python", "-m", "pip", "install", "--no-input", "--disable-pip-version-check", "-q"]
            self.run(f"installing requirements of {name}", [*pip, "-r", new])
            new.rename(listed)
        return venv

    def tools(self) -> Path:
        """The folder of the programs in requirements.txt. Installs them if needed (100 MB)."""
        return self.environment("tools", Path(__file__).with_name("requirements.txt").read_text()) / "bin"
