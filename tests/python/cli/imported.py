"""Shared by tests of what waits for torch: the modules that a Python process imports."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path


def run_and_list(*arguments: str, cwd: Path | None = None) -> tuple[subprocess.CompletedProcess[str], set[str]]:
    """A Python process that has ended, and the modules that it has imported."""
    command = [sys.executable, "-X", "importtime", *arguments]
    done = subprocess.run(command, cwd=cwd, capture_output=True, text=True, timeout=120)
    lines = [line for line in done.stderr.splitlines() if line.startswith("import time:")]
    assert len(lines) > 20, done.stderr
    return done, {line.rpartition("|")[2].strip() for line in lines}
