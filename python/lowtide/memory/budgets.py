"""Budgets in bytes that say where state may live."""

from __future__ import annotations

import inspect
import os
from collections.abc import Mapping
from copy import copy
from dataclasses import dataclass, fields
from typing import Any

from lowtide import _core
from lowtide.checks.hints import hint
from lowtide.checks.values import expect, with_context
from lowtide.devices.places import HOST, Place, has_kernels
from lowtide.memory.forecast import Budget, path_of


@dataclass(frozen=True, kw_only=True, repr=False)
class Memory:
    """Budgets for optimizer state. State that does not fit in one tier lives in the next and streams through every step. Only
    state that does not fit moves, and no bit of a result depends on it.

    Sizes are ints (bytes); strings such as "512MiB" or "2 GB" (kB, MB, GB, TB: powers of 1000; KiB ... TiB: of 1024); or shares
    such as "25%": of the RAM that this process may use (less in a container than on the machine) or, for `device`, of the
    memory of the parameters' device.

    For parameters on several devices, `host` is one amount for all, and each device gets a share (docs/offload.md). `device`,
    `managed` and `transfer` do not apply to parameters on the CPU. All other fields apply to each device separately.

    Attributes:
        device: bytes of memory on the parameters' device, including streaming buffers. "auto": state starts on the device as
            far as it fits beside torch's peak, the rest in host memory, and it moves as memory gets short or free; no effect on
            CPU parameters. Default: "auto" on CUDA; on other devices, 7/8 of the memory free at the first step (of all memory
            if the driver does not report free memory).
        host: bytes of host memory, including streaming buffers. Default: no limit.
        disk: a directory ("~" is the home), best on a local SSD, for an unnamed scratch file, which leaves nothing behind,
            whatever happens to the process. One process at a time. None: no disk, and state that does not fit is refused.
            `step` says who steps parameters with state there.
        disk_limit: the most bytes on disk.
        chunk: the unit of transfer; the default depends on the budget.
        managed: keeps all state in memory that the driver migrates between a device and the host on use, instead of streaming
            chunks. State must fit into device memory. Only for parameters on a device.
        transfer: how state that does not fit on a device reaches it: "copy" (through buffers there), "zero_copy" (kernels read
            and write host memory), "hybrid" (copied in, written by kernels). None: the fastest mode of the device, measured
            once and remembered. Only for parameters on a device.
        step: who steps parameters on a device. "device": that device. "host": the CPU, to which gradients and weights are
            copied; all state and masters are in host memory and on disk. "auto": if a parameter's state does not fit on the
            device, either the device or the CPU steps it, so that both finish at the same time, by rates measured once per
            process (`lowtide.engine.host_steps`). None: "auto" with a disk, "host" with device=0, else "device". With "device"
            and a disk, state that does not fit in `host` comes from the disk through pinned memory in every step, which returns
            when the state is written back. No bit of a result depends on it.

    Raises TypeError or ValueError for fields that no optimizer could use. The optimizer checks what depends on the machine and
    the parameters' device, also with ValueError; PermissionError means that this process may not write in `disk`. Forecasts do
    not need that directory.
    """

    device: int | str | None = None
    host: int | str | None = None
    disk: str | os.PathLike[str] | None = None
    disk_limit: int | str | None = None
    chunk: int | str | None = None
    managed: bool = False
    transfer: str | None = None
    step: str | None = None

    def __new__(cls, *unnamed: Any, **named: Any) -> Memory:
        """Only checks names, so that errors say which names are valid."""
        if unnamed:
            raise TypeError(f"memory: got {unnamed[0]!r} without a name, wanted host={unnamed[0]!r}, or another field by name")
        for name in named:
            if name not in cls.__dataclass_fields__:
                raise TypeError(_unknown(name))
        return super().__new__(cls)

    def __post_init__(self) -> None:
        if not isinstance(self.managed, bool):
            raise TypeError(f"memory: managed: got {self.managed!r} ({type(self.managed).__name__}), wanted a bool")
        for name, ways in (("step", ("device", "host", "auto")), ("transfer", ("copy", "zero_copy", "hybrid"))):
            way = getattr(self, name)
            if way is not None and not isinstance(way, str):
                raise TypeError(f"memory: {name}: got {way!r} ({type(way).__name__}), wanted a str or None")
            expect(way is None or way in ways, f"memory: {name}", repr(way), f"one of {', '.join(ways)}, or None")
        for name in ("device", "host", "disk_limit", "chunk"):
            given = getattr(self, name)
            if given is not None and (name, given) != ("device", "auto"):
                _check_size(name, given)
        automatic = self.device == "auto"
        expect(not (automatic and self.managed), "memory", "managed with device='auto'", "one of them: the driver moves managed state")
        if self.disk is None:
            expect(self.disk_limit is None, "memory", "disk_limit without disk", "disk=DIRECTORY too")
            return
        expect(self.host is not None, "memory", "disk without host", "host=BYTES too: without it all state stays in host memory")
        path = os.path.expanduser(path_of("memory: disk", self.disk))
        expect(bool(path), "memory", "an empty path as disk", "a directory, or None for no disk")
        object.__setattr__(self, "disk", path)

    def __repr__(self) -> str:
        """Shows only the fields that are set."""
        given = {field.name: getattr(self, field.name) for field in fields(self)}
        return f"Memory({', '.join(f'{name}={value!r}' for name, value in given.items() if value is not None and value is not False)})"

    @classmethod
    def of(cls, given: Memory | Mapping[str, Any] | str | None) -> Memory | None:
        """Reads a budget of configuration files and command lines: a mapping of fields, or text such as
        "host=8GiB,disk=/scratch" (a path with a comma needs a mapping). Raises TypeError or ValueError for anything else."""
        if given is None or isinstance(given, Memory):
            return given
        if not isinstance(given, (str, Mapping)):
            wanted = "a lowtide.Memory, a mapping of its fields, or text such as 'host=8GiB,disk=/scratch'"
            raise TypeError(f"memory: got {given!r} ({type(given).__name__}), wanted {wanted}")
        if not isinstance(given, str):
            return cls(**{_field(str(name)): value for name, value in given.items()})
        found: dict[str, Any] = {}
        for word in given.split(","):
            name, equals, value = (part.strip() for part in word.partition("="))
            field = _field(name)
            if field == "managed":
                meant = {"true": True, "": True, "false": False}
                expect(value.lower() in meant, "memory: managed", repr(value), "true or false")
                found[field] = meant[value.lower()]
                continue
            expect(bool(equals and value) and field not in found, "memory", repr(given), "NAME=VALUE once for each, between commas")
            found[field] = value
        return cls(**found)

    def check_disk(self) -> None:
        """Raises ValueError or PermissionError for a `disk` that this process cannot use."""
        if self.disk is None:
            return
        usable = os.path.isdir(self.disk) and not os.path.islink(str(self.disk).rstrip("/"))
        wanted = "an existing directory that is not a symbolic link: create it or give another"
        expect(usable, "memory", f"{self.disk} for scratch files", wanted)
        if not os.access(self.disk, os.W_OK | os.X_OK):
            raise PermissionError(f"memory: got {self.disk} for scratch files, wanted a directory in which this process may write")

    def steps_at(self, place: Place) -> str:
        """Who steps parameters on a device: "device", "host" or "auto". Raises ValueError for fields that contradict each other
        there."""
        if place.device.type == "cpu":
            return "device"
        given = self.device if self.device != "auto" else None
        nothing = given is not None and not size_of("device", given, place)
        if not has_kernels(place.device):
            there = f"for parameters on {place.device}, which Lowtide has no kernels for"
            expect(self.step != "device", "memory", f"step='device' {there}", "'host' or None: the CPU steps them")
            wanted = "host=BYTES: the CPU steps them, with state in its memory"
            expect(nothing or given is None, "memory", f"device={self.device!r} {there}", wanted)
            expect(not self.managed, "memory", f"managed {there}", "it for those that a device steps")
            return "host"
        way = self.step or ("host" if nothing and not self.transfer else "auto" if self.disk is not None else "device")
        if way == "device":
            through = "transfer='copy' or none, and not managed: it comes through pinned memory"
            contradicts = self.disk is not None and (self.managed or self.transfer not in (None, "copy"))
            expect(not contradicts, "memory", f"disk with managed={self.managed}, transfer={self.transfer!r}", through)
            contradiction = f"device={self.device!r} with step='device'"
            wanted = "room for state that passes through, or step='host'"
            expect(not nothing or bool(self.transfer) or self.step is None, "memory", contradiction, wanted)
            return way
        because = f"step={self.step!r}" if self.step else f"device={self.device!r}" if nothing else "disk"
        moved = "none of them: they are about state that a device steps"
        expect(not self.managed, "memory", f"managed with {because} for parameters on {place.device}", moved)
        if way == "host":
            expect(not self.transfer, "memory", f"transfer with {because} for parameters on {place.device}", moved)
            no_state = "step='auto', or no device: the CPU's steps leave no state there"
            expect(nothing or given is None, "memory", f"device={self.device!r} with step='host'", no_state)
        return "host" if nothing else way

    def budget(self, place: Place = HOST) -> Budget:
        """The budget in bytes for parameters at `place`. Raises ValueError for fields that contradict each other there."""
        elsewhere = "it for those on a device only"
        of_host = place.on_host and not place.mirrored
        wanted = "host=BYTES: they have no other memory"
        expect(not of_host or self.device in (None, "auto"), "memory", f"device={self.device!r} for parameters on cpu", wanted)
        expect(not (self.managed and place.on_host), "memory", "managed for parameters on cpu", elsewhere)
        expect(self.transfer is None or not place.on_host, "memory", "transfer for parameters on cpu", elsewhere)
        self.steps_at(place)
        auto = self.device == "auto"
        on_disk = self.disk is not None and (place.on_host or self.step == "device")
        automatic = not place.on_host and not self.managed and (auto or (self.device is None and place.kind.automatic))
        if not place.on_host and on_disk:
            expect(not auto, "memory", "device='auto' with a disk and step='device'", "device=BYTES, or step='auto'")
            automatic = False
        device = -1 if place.on_host or auto or self.device is None else size_of("device", self.device, place)
        host = -1 if self.host is None else size_of("host", self.host)
        chunk = 0 if self.chunk is None else size_of("chunk", self.chunk)
        disk = "" if self.disk is None else str(self.disk)
        limit = -1 if self.disk_limit is None else size_of("disk_limit", self.disk_limit)
        if not on_disk:  # parameters with state on disk are the CPU's (`engine.host_steps`)
            disk, limit = "", -1
        return Budget(host, disk, limit, chunk, device, self.managed, self.transfer or "", automatic)

    def part(self, place: Place, host: int | str | None) -> Memory:
        """The budget of the parameters at `place`, if others are elsewhere. host: their share in bytes."""
        if place.mirrored:
            return self.replaced(device=None, host=host, managed=False, transfer=None, step="host")
        if place.on_host:
            return self.replaced(device=None, host=host, managed=False, transfer=None)
        if self.step == "device":
            return self.replaced(host=host)
        return self.replaced(host=host, disk=None, disk_limit=None, step="device")

    def beside(self, taken: int, place: Place) -> Memory:
        """The budget of the parameters at `place` beside `taken` bytes in the memory of their weights."""
        name = "host" if place.on_host else "device"
        given = getattr(self, name)
        if not taken or place.mirrored or given in (None, "auto"):
            return self
        return self.replaced(**{name: max(size_of(name, given, place) - taken, 1)})

    def replaced(self, **changes: Any) -> Memory:
        """A copy with other fields. Unchecked, because a share may be smaller than users may give."""
        made = copy(self)
        vars(made).update(changes)
        return made


# Without this, `__new__` would hide the fields.
_init = inspect.signature(Memory.__init__)
Memory.__signature__ = _init.replace(parameters=[*_init.parameters.values()][1:])  # type: ignore[attr-defined]
_ELSEWHERE = {"ram": "host", "cpu": "host", "gpu": "device", "vram": "device", "path": "disk", "dir": "disk"}  # likely names


def _unknown(name: str) -> str:
    known = [field.name for field in fields(Memory)]
    value = f"host={name}" if name[:1].isdigit() else ""
    likely = hint(name, known, meant=value or _ELSEWHERE.get(name.lower()))
    return f"memory: got {name!r}{likely}, wanted some of {', '.join(known)}"


def _field(name: str) -> str:
    """The field that a word in a configuration names; also accepts "disk-limit", as on the command line."""
    field = name.replace("-", "_")
    if field not in Memory.__dataclass_fields__:
        raise ValueError(_unknown(name))
    return field


def _check_size(name: str, given: int | str) -> None:
    """Raises ValueError or TypeError for a size that nobody can mean."""
    size = size_of(name, given)
    if name == "chunk":
        expect(size >= 4096 and size % 4096 == 0, "memory: chunk", repr(given), "a multiple of 4096 bytes")
    elif 0 < size < 1024 and str(given).strip().isdecimal():
        raise ValueError(f"memory: {name}: got {given!r}, which is that many bytes; did you mean '{size}GiB'?")


def of_group(group: Mapping[str, Any], where: str) -> Memory | None:
    """A parameter group's own budget. Raises like `Memory.of`, beginning with `where`."""
    try:
        return Memory.of(group.get("memory"))
    except (TypeError, ValueError) as error:
        raise with_context(where, error) from None


def budget_at(memory: Memory | None, place: Place) -> Budget | None:
    """The budget for the core of an optimizer with this `memory`. None: no limit."""
    if memory is None and (place is HOST or not place.kind.automatic):
        return None
    return (memory or Memory()).budget(place)


def size_of(name: str, value: int | str, place: Place = HOST) -> int:
    """A size in bytes. Shares refer to the memory at `place`. Raises ValueError or TypeError about `name` for other values."""
    if isinstance(value, bool) or not isinstance(value, (int, str)):
        raise TypeError(f"memory: {name}: got {value!r} ({type(value).__name__}), wanted bytes as an int or '2GiB'")
    if isinstance(value, int):
        expect(0 <= value < 2**63, f"memory: {name}", value, "0 or more bytes")
        return value
    if value.strip().endswith("%"):
        try:
            share = float(value.strip()[:-1])
        except ValueError:
            share = -1.0
        expect(0 <= share <= 100, f"memory: {name}", repr(value), "0% to 100%")
        return int(place.memory() * share / 100)
    try:
        return _core.parse_bytes(value)
    except ValueError as error:
        raise ValueError(f"memory: {name}: {error}") from None
