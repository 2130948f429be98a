"""Entries of `Optimizer.state`: views of live state, with read-only codes and scales, and stand-ins for tensors that views
cannot show because they stream or are in the core's device memory."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, KeysView, Mapping
from typing import Any, ClassVar
from weakref import ref

import torch
from torch.utils._pytree import tree_leaves, tree_map
from typing_extensions import Self

from lowtide.devices import places
from lowtide.devices.places import HOST
from lowtide.devices.sharding import is_dtensor, local_of
from lowtide.engine.engine import Engine
from lowtide.engine.unread import Unread
from lowtide.report.log import is_called_by

_ADVICE = "wanted .clone() or .to() of it, which copy its values, or load_state_dict(), which replaces them"


class Source:
    """Copies one tensor of a parameter's state to host memory while the state exists. Keeps neither the optimizer nor the
    parameter alive."""

    def __init__(self, engine: Engine, number: int, name: str) -> None:
        self._engine, self._param = ref(engine), ref(engine.tensors[number])
        self.number, self.name = number, name
        place = engine.params[number].place or HOST
        self.home = HOST.device if place.on_host else place.device  # where steps have the state
        self.homes = {HOST.device, self.home}  # where it can be
        self.devices = {HOST.device, place.device}  # where loops may move it

    def __call__(self, engine: Engine | None = None) -> torch.Tensor:
        """engine: given only while the engine is being deleted."""
        engine = engine or self._alive()
        with engine.lock:
            found = engine.core_of(self.number).read_state(self.number).get(self.name)
        if found is None:
            wanted = "a step or state_dict() first"
            raise RuntimeError(f"got {self.name!r} of parameter {self.number}, which has no state yet, wanted {wanted}")
        return found

    def is_alike(self, other: Source) -> bool:
        """True if both read the same tensor of the same state."""
        mine, theirs = ((each._engine(), each.number, each.name) for each in (self, other))
        return mine == theirs and mine[0] is not None

    def move(self, device: torch.device) -> None:
        """Follows an entry of `Optimizer.state` whose state was moved to that device."""
        self._alive().move_shown(self.number, away=device == HOST.device)

    def copied(self, device: torch.device) -> Unread:
        return self._alive().copies.add(self, device)

    def _alive(self) -> Engine:
        engine, param = self._engine(), self._param()
        if not engine or self.number >= len(engine.tensors) or engine.tensors[self.number] is not param:
            raise RuntimeError("got state of an optimizer or a parameter that is gone, wanted the current Optimizer.state")
        return engine


class WithoutMemory(torch.Tensor):
    """A tensor without memory. All its operations pass through `__torch_dispatch__` of its class."""

    __torch_function__ = torch._C._disabled_torch_function_impl  # type: ignore[assignment]  # else results are of its class
    WANTED: ClassVar[str]  # what it is, and what to do instead of writing

    def _copied(self) -> torch.Tensor:
        """Copies the values, on their device."""
        raise NotImplementedError

    @property
    def data(self) -> torch.Tensor:
        return self.detach()

    @data.setter
    def data(self, value: torch.Tensor) -> None:
        raise RuntimeError(f"got a write (data) into {self.WANTED}")

    def numpy(self, *, force: bool = False) -> Any:
        """Returns a copy that refuses writes, which would be lost."""
        array = (self.cpu() if force else self).clone().numpy()
        array.flags.writeable = False
        return array

    def tolist(self) -> Any:
        return self.cpu().clone().tolist()

    def _refuse_sharing(self, *_: Any, **__: Any) -> Any:
        raise RuntimeError(f"got a request for the memory of optimizer state, {_ADVICE}")

    __dlpack__ = share_memory_ = _refuse_sharing

    def __deepcopy__(self, memo: Any) -> torch.Tensor:
        return self._copied()

    def __reduce_ex__(self, protocol: Any) -> Any:
        return self._copied().__reduce_ex__(protocol)  # type: ignore[no-untyped-call]


def _shared(func: Any, args: Any, options: Mapping[str, Any]) -> list[tuple[Any, Any]]:
    """The arguments that an operation writes to, or whose memory its result shares, each after its `alias_info`."""
    arguments = func._schema.arguments
    given = [*zip(arguments, args), *((each, options.get(each.name)) for each in arguments)]
    return [(argument.alias_info, value) for argument, value in given if argument.alias_info]


class Elsewhere(WithoutMemory):
    """A tensor with the shape, element type, bytes and device of state, but without memory.

    Operations that read values first copy the current values to its device, so `+` and `.sum()` return results. Writing, and
    operations that would share memory (`.view()`, indexing), raise RuntimeError. `.detach()`, and `.to()` its own device,
    return it unchanged, as for any tensor.

    `.to()` and `.cpu()` return copies, on the host or on the state's device, that read nothing until their first use: see
    `Unread`. From then on an ordinary tensor holds the values and takes operations, views and writes. An unused copy that is
    assigned to the same name in the same entry becomes the state there (`Shown`)."""

    WANTED = f"optimizer state that streams or is on a device, {_ADVICE}"
    _read: Source
    _copy: Unread | None  # None: it shows the state itself
    _entry: tuple[ref[Shown], str]  # the entry that has it, and its name there

    @staticmethod
    def __new__(cls, like: torch.Tensor, device: torch.device, read: Source, copy: Unread | None = None) -> Elsewhere:
        """read: copies the values to host memory."""
        made: Elsewhere = torch.Tensor._make_wrapper_subclass(
            cls, like.shape, strides=like.stride(), dtype=like.dtype, device=device
        )
        made._read, made._copy = read, copy
        return made

    @classmethod
    def __torch_dispatch__(  # type: ignore[override]
        cls, func: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        options = kwargs or {}
        if func is torch.ops.aten.detach.default:
            return args[0]
        aten = torch.ops.aten
        if func is aten._to_copy.default:
            return args[0]._moved(options.get("device") or args[0].device, options.get("dtype") or args[0].dtype)
        if func is aten.is_pinned.default and args[0]._is_pinned():
            return True
        if func is aten.empty_like.default:
            like = torch.empty_strided(args[0].shape, args[0].stride(), dtype=args[0].dtype, device="meta")
            return torch.empty_like(like, **{"device": args[0].device, **options})
        if func is aten.copy_.default and not isinstance(args[0], cls):
            return args[0].copy_(args[1]._values())
        shared = tree_leaves([value for _, value in _shared(func, args, options)])
        if any(isinstance(one, Elsewhere) and not one._copy for one in shared):
            raise RuntimeError(f"{func}: got {cls.WANTED}")

        def whole(one: Any) -> Any:
            return one._values().to(one.device) if isinstance(one, Elsewhere) else one

        return func(*tree_map(whole, args), **tree_map(whole, options))

    def _values(self) -> torch.Tensor:
        """The current values in host memory or, for a copy, on its device."""
        return self._copy.read() if self._copy else self._read()

    def _moved(self, device: torch.device, dtype: torch.dtype) -> torch.Tensor:
        """Computes the result of `.to()`."""
        if dtype != self.dtype or device not in self._read.devices or (self._copy and self._copy.was_read):
            return self._values().to(device, dtype)
        return Elsewhere(self, device, self._read, self._read.copied(device))

    def _is_pinned(self) -> bool:
        """True on the host for state of a device. It moves to pinned memory, and loops would pin what is not."""
        away = self.device.type == "cpu" and self._read.home.type != "cpu"
        return away and not (self._copy and self._copy.was_read)

    def is_copy_of(self, other: Elsewhere) -> bool:
        """True if this is an unused copy of that state."""
        return self._copy is not None and not self._copy.was_read and self._read.is_alike(other._read)

    def in_entry(self, entry: Shown, name: str) -> Elsewhere:
        """Makes this tensor show its state in an entry; returns the tensor."""
        self._copy, self._entry = None, (ref(entry), name)
        return self

    @property
    def data(self) -> torch.Tensor:
        return self.detach()

    @data.setter
    def data(self, value: torch.Tensor) -> None:
        """Assigns the value to the entry, for code that replaces memory in place, such as DeepSpeed's."""
        entry, name = (None, "") if self._copy else (self._entry[0](), self._entry[1])
        if entry is None or not isinstance(entry.get(name), Elsewhere):
            raise RuntimeError(f"got a write (data) into {self.WANTED}")
        entry[name] = value

    def _copied(self) -> torch.Tensor:
        return self._values().to(self.device, copy=True)

    def numpy(self, *, force: bool = False) -> Any:
        return self._copy.read().numpy(force=force) if self._copy else super().numpy(force=force)

    def data_ptr(self) -> int:
        return self._copy.read().data_ptr() if self._copy else super().data_ptr()

    def __dlpack__(self, *arguments: Any, **options: Any) -> Any:
        own = self._copy.read().__dlpack__ if self._copy else super().__dlpack__
        return own(*arguments, **options)

    def __repr__(self, **_: Any) -> str:  # type: ignore[override]
        return f"Elsewhere({tuple(self.shape)}, dtype={self.dtype}, device={self.device})"


class ReadOnly(WithoutMemory):
    """A tensor that reads like any other but has no memory for others to write to. A write, even into a view of it or inside a
    DTensor, raises RuntimeError."""

    WANTED = (
        "codes and scales of quantized state, which mean nothing alone; wanted other values by load_state_dict(), or "
        "none by optimizer.reset([p]) or `del optimizer.state[p]`"
    )
    plain: torch.Tensor  # the tensor with the memory

    @staticmethod
    def __new__(cls, plain: torch.Tensor) -> ReadOnly:
        made: ReadOnly = torch.Tensor._make_wrapper_subclass(
            cls, plain.shape, strides=plain.stride(), dtype=plain.dtype, device=plain.device
        )
        made.plain = plain
        return made

    @classmethod
    def __torch_dispatch__(  # type: ignore[override]
        cls, func: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        options = kwargs or {}
        written = [value for alias, value in _shared(func, args, options) if alias.is_write]
        if any(isinstance(one, ReadOnly) for one in tree_leaves(written)):
            raise RuntimeError(f"got a write ({func}) into {cls.WANTED}")
        result = func(*tree_map(_plain, args), **tree_map(_plain, options))
        views = any(returned.alias_info for returned in func._schema.returns)
        return tree_map(cls, result) if views and not written else result

    def data_ptr(self) -> int:
        """For code that reads memory itself."""
        return self.plain.data_ptr()

    def _copied(self) -> torch.Tensor:
        return self.plain.clone()

    def __reduce_ex__(self, protocol: Any) -> Any:
        return self.plain.__reduce_ex__(protocol)  # type: ignore[no-untyped-call]

    def __repr__(self, **_: Any) -> str:  # type: ignore[override]
        return repr(self.plain)


def _plain(one: Any) -> Any:
    return one.plain if isinstance(one, ReadOnly) else one


def _with_memory(tensor: torch.Tensor, change: Callable[[Any], torch.Tensor]) -> torch.Tensor:
    """Applies `change` to the tensor, or to the local part of a DTensor."""
    if not is_dtensor(tensor):
        return change(tensor)
    of: Any = tensor
    made: torch.Tensor = type(of)(change(local_of(of)), of._spec, requires_grad=False)
    return made


CODES, _SCALE = "_codes", "_scale"


def as_shown(tensors: Mapping[str, torch.Tensor], read_only: bool = False) -> dict[str, torch.Tensor]:
    """The core's tensors of a parameter under the names that users see: codes are NAME_codes, beside NAME_scale, so that code
    such as torch.optim's, which would take them for the values of NAME, finds none. read_only: codes and scales refuse writes,
    because a code of 0 means minus its scale."""
    shown: dict[str, torch.Tensor] = {}
    for name, value in tensors.items():
        coded = f"{name}{_SCALE}" in tensors
        guarded = read_only and (coded or name.endswith(_SCALE)) and not isinstance(value, Elsewhere)
        shown[f"{name}{CODES}" if coded else name] = _with_memory(value, ReadOnly) if guarded else value
    return shown


def as_core(entry: Mapping[str, Any]) -> dict[str, Any]:
    """Converts an entry with such names to the core's names and plain tensors. Copies replace stand-ins."""
    out = {}
    for name, value in entry.items():
        moment = name.removesuffix(CODES) if isinstance(name, str) else name
        name = moment if f"{moment}{_SCALE}" in entry else name
        bare = type(value) is torch.Tensor or not isinstance(value, torch.Tensor)
        plain = value if bare else _with_memory(value, _plain)
        out[name] = plain._values() if isinstance(plain, Elsewhere) else plain
    return out


class Noting(dict[Any, Any]):
    """A dict that calls `_note` when an entry is removed, and adds entries only through `__setitem__`, which dict's own methods
    would bypass."""

    def _note(self) -> None:
        raise NotImplementedError

    def __delitem__(self, key: Any) -> None:
        self._note()
        super().__delitem__(key)

    def update(self, *given: Any, **named: Any) -> None:
        for key, value in dict(*given, **named).items():
            self[key] = value

    def __ior__(self, given: Any) -> Self:  # type: ignore[misc]
        self.update(given)
        return self

    def setdefault(self, key: Any, default: Any = None) -> Any:
        if key not in self:
            self[key] = default
        return self[key]

    def pop(self, key: Any, *default: Any) -> Any:
        self._note()
        return super().pop(key, *default)

    def popitem(self) -> tuple[Any, Any]:
        self._note()
        return super().popitem()

    def clear(self) -> None:
        self._note()
        super().clear()


def _device_of(tensor: torch.Tensor) -> torch.device:
    return tensor.device if isinstance(tensor, Elsewhere) else places.device_of(local_of(tensor))


def _is_copy(value: torch.Tensor, had: torch.Tensor) -> bool:
    """True for a copy of what it replaces: on another device, or of state that only the core has."""
    if isinstance(had, Elsewhere) and isinstance(value, Elsewhere) and value.is_copy_of(had):
        return True
    if value.shape != had.shape or value.dtype != had.dtype:
        return False
    if not isinstance(had, Elsewhere) and _device_of(value) == _device_of(had):
        return False
    plain = [one._values() if isinstance(one, Elsewhere) else local_of(one).detach() for one in (value, had)]
    mine, theirs = (one.cpu().contiguous().view(-1).view(torch.uint8) for one in plain)
    return torch.equal(mine, theirs)


class Shown(Noting):
    """An entry of `Optimizer.state`. Notes assignments, which the next step or save adopts. Stand-ins accept no other values
    (RuntimeError). A pickle or a copy is a plain dict.

    Assigning a copy of a tensor, on another device, in its place moves the state there if it can be there. All state of the
    parameter then shows that device; the memory follows once all state of the optimizer has been moved
    (`Engine.move_shown`)."""

    def __init__(
        self, views: Mapping[str, torch.Tensor], param: torch.Tensor, number: int, assigned: set[int], read_only: bool = True,
        beside: Callable[[], Iterable[str]] = tuple,
    ) -> None:
        """views: by the core's names. read_only: see `as_shown`. number: the parameter's number, which joins `assigned` once
        anything is replaced. beside: returns further names, which every dict's entry has."""
        super().__init__()
        dict.update(self, as_shown(views, read_only))  # torch.compile cannot resume within super().__init__
        for name, one in self.items():
            if isinstance(one, Elsewhere):
                one.in_entry(self, name)
        self._param, self._number, self._assigned = id(param), number, assigned
        self._changed: set[str | None] = set()  # names of assigned values; None: something was removed
        self._beside = beside

    def keys(self) -> KeysView[Any]:  # type: ignore[override]
        """From a flattened dict (`flatten_optimizer_state_dict`) torch takes only what it finds here."""
        found = super().keys()
        return dict.fromkeys([*found, *self._beside()]).keys() if is_called_by("_unflatten_optim_state_dict") else found

    def __iter__(self) -> Iterator[Any]:
        return iter(self.keys())

    def __missing__(self, name: Any) -> Any:
        if f"{name}{CODES}" in self:
            raise KeyError(
                f"{name}: stored as {name}{CODES} and {name}{_SCALE}; torch_state_dict() has its values, and state='fp32' keeps them plain"
            )
        raise KeyError(name)

    def take_copied_step(self, step: torch.Tensor) -> None:
        """Replaces a copy of the step count, as loops that move state leave it, by the live one, and forgets the assignment."""
        given = dict.get(self, "step")
        if "step" in self._changed and isinstance(given, torch.Tensor) and given.dtype == step.dtype and torch.equal(given.cpu(), step):
            super().__setitem__("step", step)
            self._changed.discard("step")

    def keeps(self, names: Collection[str]) -> bool:
        """True if these names, in the core's form, still have the values that were shown."""
        return not any(name is None or name.removesuffix(CODES) in names for name in self._changed)

    def is_of(self, param: torch.Tensor) -> bool:
        return self._param == id(param)

    def _note(self, name: str | None = None) -> None:
        self._changed.add(name)
        self._assigned.add(self._number)

    def __setitem__(self, name: str, value: Any) -> None:
        had = dict.get(self, name)
        if value is had:
            return
        if isinstance(had, torch.Tensor) and isinstance(value, torch.Tensor) and _is_copy(value, had):
            if isinstance(had, Elsewhere):
                self._move(name, had, value)
            return
        if isinstance(had, Elsewhere):
            got = f"a {type(value).__name__}" + (f" on {value.device}" if isinstance(value, torch.Tensor) else "")
            raise RuntimeError(
                f"state[...][{name!r}]: got {got} with other values in the place of state that streams or is on a device, wanted "
                "load_state_dict(), which replaces it, or copies by .to(), which move it"
            )
        self._note(name)
        super().__setitem__(name, value)

    def _move(self, name: str, had: Elsewhere, value: torch.Tensor) -> None:
        """Follows the assignment of a copy."""
        device = _device_of(value)
        if device not in had._read.homes:
            return
        if device != had.device:
            had._read.move(device)
            self.show_on(device)
        if isinstance(value, Elsewhere) and value.is_copy_of(had):
            super().__setitem__(name, value.in_entry(self, name))

    def show_on(self, device: torch.device) -> None:
        """Shows state that only the core has on another device."""
        for name, one in self._stand_ins():
            super().__setitem__(name, Elsewhere(one, device, one._read).in_entry(self, name))

    def come_home(self) -> None:
        """Shows state on the device where steps have it."""
        for _, one in self._stand_ins()[:1]:
            self.show_on(one._read.home)

    def _stand_ins(self) -> list[tuple[str, Elsewhere]]:
        return [(name, one) for name, one in self.items() if isinstance(one, Elsewhere)]

    def __reduce__(self) -> tuple[Any, ...]:
        return dict, (dict(self),)
