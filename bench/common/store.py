"""Results on disk, one file each, written at once, so that a stopped bench resumes.

Several processes may share a folder. A lock on a result says that a process works on it, and ends with the process.
"""

from __future__ import annotations

import fcntl
import hashlib
import json
import os
import sys
import time
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any


class Store:
    """`folder` has a folder for each set of conditions; results of other conditions are not read. Each result stores `origin`,
    the machine and software that made it, as "made"."""

    def __init__(self, folder: Path, conditions: dict[str, Any], origin: dict[str, Any] | None = None) -> None:
        self.origin = origin or {}
        digest = hashlib.sha256(json.dumps(conditions, sort_keys=True).encode()).hexdigest()[:12]
        self.folder = folder / digest
        self.folder.mkdir(parents=True, exist_ok=True)
        self._write(self.folder / "conditions.json", conditions)

    def get(self, name: str) -> dict[str, Any] | None:
        path = self.folder / f"{name}.json"
        return json.loads(path.read_text()) if path.exists() else None

    def make(self, name: str, work: Callable[[], dict[str, Any]]) -> bool:
        """Stores the result of `work`. Returns False if it exists already or another process works on it."""
        with open(self.folder / f"{name}.lock", "w") as lock:
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                return False
            if self.get(name) is not None:
                return False
            self._write(self.folder / f"{name}.json", {**work(), "made": self.origin})
        return True

    def wanted(self, name: str, work: Callable[[], dict[str, Any]]) -> dict[str, Any]:
        """The result of `work`, which may be another process's, when it is there."""
        while (found := self.get(name)) is None:
            self.make(name, work) or time.sleep(1)
        return found

    def make_all(self, jobs: Iterable[tuple[str, Callable[[], dict[str, Any]]]]) -> None:
        """Makes missing results, and prints each."""
        for name, work in jobs:
            if self.make(name, work):
                print(f"{name}: {self.get(name)}", file=sys.stderr, flush=True)

    def adopt(self, name: str, result: dict[str, Any]) -> None:
        """Adopts a result of the same conditions from elsewhere, unless there is one already."""
        if self.get(name) is None:
            self._write(self.folder / f"{name}.json", result)

    @staticmethod
    def _write(path: Path, content: dict[str, Any]) -> None:
        temporary = path.with_suffix(f".{os.getpid()}.tmp")
        temporary.write_text(json.dumps(content, indent=1) + "\n")
        temporary.replace(path)
