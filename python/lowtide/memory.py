"""Where state may live: budgets in bytes."""

from __future__ import annotations

import os
from dataclasses import dataclass
from typing import NamedTuple

from lowtide import _core


class Budget(NamedTuple):
    """What the core takes; -1: no limit."""

    ram_bytes: int
    disk: str
    disk_bytes: int
    chunk_bytes: int


@dataclass(frozen=True)
class Memory:
    """Budgets for optimizer state. What does not fit into one tier lives in the next and streams through every step;
    only what does not fit moves, and no bit of any result depends on it.

    Sizes are ints (bytes), strings such as "512MiB" or "2 GB", or a share of the machine's RAM such as "25%".

    Attributes:
        device: bytes on the parameters' device. For CPU parameters that is RAM: `device` and `host` add up.
        host: bytes of host memory, streaming buffers included. Neither given: no limit, all state stays in RAM.
        disk: a directory, best on a local SSD, for a scratch file without a name: nothing is left behind, whatever
            happens to the process. One process at a time. None: no disk, and state that does not fit is refused.
        disk_limit: bytes on disk at most.
        chunk: the unit of moving; by default chosen from the budget.
    """

    device: int | str | None = None
    host: int | str | None = None
    disk: str | os.PathLike[str] | None = None
    disk_limit: int | str | None = None
    chunk: int | str | None = None

    def budget(self) -> Budget:
        """In bytes. Raises ValueError or TypeError for a size or a combination that means nothing."""
        ram = [size_of(name, getattr(self, name)) for name in ("device", "host") if getattr(self, name) is not None]
        if self.disk is not None and not ram:
            raise ValueError("memory: got disk without host, wanted host=BYTES too: without it all state stays in RAM")
        if self.disk is None and self.disk_limit is not None:
            raise ValueError("memory: got disk_limit without disk, wanted disk=DIRECTORY too")
        chunk = 0 if self.chunk is None else size_of("chunk", self.chunk)
        if self.chunk is not None and (chunk < 4096 or chunk % 4096):
            raise ValueError(f"memory: chunk: got {self.chunk!r}, wanted a multiple of 4096 bytes")
        disk = "" if self.disk is None else path_of("memory: disk", self.disk)
        limit = -1 if self.disk_limit is None else size_of("disk_limit", self.disk_limit)
        total = sum(ram) if ram else -1
        if total >= 2**63:
            raise ValueError(f"memory: got {total} bytes as device + host, wanted less than 2^63")
        return Budget(total, disk, limit, chunk)


def path_of(name: str, path: str | bytes | os.PathLike[str] | os.PathLike[bytes]) -> str:
    """A path as the core takes it. TypeError if it is none, ValueError for a name that is not UTF-8."""
    text = os.fsdecode(path)
    try:
        text.encode()
    except UnicodeEncodeError as error:
        raise ValueError(f"{name}: got {text!r}, wanted a path in UTF-8") from error
    return text


def size_of(name: str, value: int | str) -> int:
    """A size in bytes. ValueError or TypeError, naming `name`, if it is none."""
    if isinstance(value, bool) or not isinstance(value, (int, str)):
        raise TypeError(f"memory: {name}: got {value!r} ({type(value).__name__}), wanted bytes as an int or '2GiB'")
    if isinstance(value, int):
        if not 0 <= value < 2**63:
            raise ValueError(f"memory: {name}: got {value}, wanted 0 or more bytes")
        return value
    if value.strip().endswith("%"):
        try:
            share = float(value.strip()[:-1])
        except ValueError:
            share = -1.0
        if not 0 <= share <= 100:
            raise ValueError(f"memory: {name}: got {value!r}, wanted 0% to 100% of the machine's RAM")
        return int(os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") * share / 100)
    try:
        return _core.parse_bytes(value)
    except ValueError as error:
        raise ValueError(f"memory: {name}: {error}") from error
