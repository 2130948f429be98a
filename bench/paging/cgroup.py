"""Limits by control groups, version 1 or 2: memory of one process and what it caches of files, rates of a disk."""

from __future__ import annotations

import os
import time
from pathlib import Path

V1 = Path("/sys/fs/cgroup/memory")
V2 = Path("/sys/fs/cgroup")


class Unavailable(Exception):
    """This process may not limit memory here; the message says why."""


class Group:
    """A new control group. Its pages of mapped and cached files count against the limit, as anonymous memory does."""

    def __init__(self, name: str) -> None:
        self.version = 1 if (V1 / "memory.limit_in_bytes").exists() else 2
        root = V1 if self.version == 1 else V2
        if not root.exists():
            raise Unavailable("there is no /sys/fs/cgroup")
        self.path = root / f"lowtide-bench-{os.getpid()}-{name}"
        try:
            if self.version == 2 and "memory" not in (root / "cgroup.subtree_control").read_text().split():
                (root / "cgroup.subtree_control").write_text("+memory")
            self.path.mkdir()
        except OSError as error:
            raise Unavailable(f"control groups (version {self.version}) cannot be made: {error}") from error
        files = {1: ("memory.limit_in_bytes", "memory.usage_in_bytes"), 2: ("memory.max", "memory.current")}
        self._limit, self._usage = files[self.version]
        if not (self.path / self._limit).exists():
            self.close()
            raise Unavailable(f"the memory controller of control groups (version {self.version}) is not there")

    def command(self, command: list[str]) -> list[str]:
        """The command that runs `command` inside: it moves itself there, so that all of its memory counts."""
        return ["sh", "-c", f'echo $$ > "{self.path}/cgroup.procs" && exec "$@"', "sh", *command]

    def limit(self, size: int) -> None:
        (self.path / self._limit).write_text(str(size))

    def usage(self) -> int:
        return int((self.path / self._usage).read_text())

    def close(self) -> None:
        """Removes it; its processes must have ended."""
        for _ in range(50):
            try:
                return self.path.rmdir()
            except OSError:
                time.sleep(0.1)


class DiskRate:
    """This process and its children read and write the disk under `directory` at `rate` bytes/s each, at most."""

    def __init__(self, directory: str, rate: int) -> None:
        number = os.stat(directory).st_dev
        # The limits are the whole disk's; a partition knows of which.
        device = Path(f"/sys/dev/block/{os.major(number)}:{os.minor(number)}").resolve()
        disk = ((device.parent if (device / "partition").exists() else device) / "dev").read_text().strip()
        root = V1.parent / "blkio"
        self._home = root if root.exists() else V2
        self.path = self._home / f"lowtide-bench-{os.getpid()}-disk"
        try:
            if self._home == V2:
                (V2 / "cgroup.subtree_control").write_text("+io")
            self.path.mkdir()
            if self._home == V2:
                (self.path / "io.max").write_text(f"{disk} rbps={rate} wbps={rate}")
            else:
                for way in ("read", "write"):
                    (self.path / f"blkio.throttle.{way}_bps_device").write_text(f"{disk} {rate}")
            (self.path / "cgroup.procs").write_text(str(os.getpid()))
        except OSError as error:
            if self.path.is_dir():
                self.path.rmdir()
            raise Unavailable(f"the disk's rate cannot be limited: {error}") from error

    def close(self) -> None:
        (self._home / "cgroup.procs").write_text(str(os.getpid()))
        self.path.rmdir()
