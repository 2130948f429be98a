"""Entries of `Optimizer.state`: views of the live state, with read-only codes and scales, and stand-ins for tensors that no
view can show, because they stream or are in the core's device memory."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, ClassVar

import torch
from torch.utils._pytree import tree_leaves, tree_map
from typing_extensions import Self

from lowtide.devices.sharding import is_dtensor, local_of

_ADVICE = "wanted .clone() or .to() of it, which copy its values, or load_state_dict(), which replaces them"


class WithoutMemory(torch.Tensor):
    """A tensor whose operations all pass through `__torch_dispatch__` of its class, since it has no memory to work on."""

    __torch_function__ = torch._C._disabled_torch_function_impl  # type: ignore[assignment]  # else results are of its class
    WANTED: ClassVar[str]  # what it is, and what to do instead of writing to it

    def _copied(self) -> torch.Tensor:
        """A copy of the values on its device."""
        raise NotImplementedError

    @property  # type: ignore[override]
    def data(self) -> torch.Tensor:
        return self.detach()

    @data.setter
    def data(self, value: torch.Tensor) -> None:
        raise RuntimeError(f"got a write (data) into {self.WANTED}")

    def numpy(self, *, force: bool = False) -> Any:
        """A copy that refuses writes, which would be lost."""
        array = (self.cpu() if force else self).clone().numpy()
        array.flags.writeable = False
        return array

    def tolist(self) -> Any:
        return self.cpu().clone().tolist()

    def _refuse_sharing(self, *_: Any, **__: Any) -> Any:
        raise RuntimeError(f"got a request for the memory of optimizer state, {_ADVICE}")

    __dlpack__ = share_memory_ = _refuse_sharing  # type: ignore[assignment]

    def __deepcopy__(self, memo: Any) -> torch.Tensor:
        return self._copied()

    def __reduce_ex__(self, protocol: Any) -> Any:
        return self._copied().__reduce_ex__(protocol)  # type: ignore[no-untyped-call]


def _shared(func: Any, args: Any, options: Mapping[str, Any]) -> list[tuple[Any, Any]]:
    """The arguments of an operation that it writes to, or whose memory its result shares, each after its `alias_info`."""
    arguments = func._schema.arguments
    given = [*zip(arguments, args), *((each, options.get(each.name)) for each in arguments)]
    return [(argument.alias_info, value) for argument, value in given if argument.alias_info]


class Elsewhere(WithoutMemory):
    """A tensor with the shape, element type, bytes and device of state, without memory.

    Operations that read values first copy the current values to its device: `.to()` and `.cpu()` return tensors on other
    devices, `+` and `.sum()` results. Writing, and operations that would share memory (`.view()`, indexing), raise
    RuntimeError. `.detach()`, and `.to()` its own device, return it unchanged, as for every tensor."""

    WANTED = f"optimizer state that streams or is on a device, {_ADVICE}"
    _read: Callable[[], torch.Tensor]

    @staticmethod
    def __new__(cls, like: torch.Tensor, device: torch.device, read: Callable[[], torch.Tensor]) -> Elsewhere:
        """read: returns a copy of the values in host memory."""
        made: Elsewhere = torch.Tensor._make_wrapper_subclass(
            cls, like.shape, strides=like.stride(), dtype=like.dtype, device=device
        )
        made._read = read
        return made

    @classmethod
    def __torch_dispatch__(  # type: ignore[override]
        cls, func: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        options = kwargs or {}
        if func is torch.ops.aten.detach.default:
            return args[0]
        if func is torch.ops.aten._to_copy.default:
            where = options.get("device") or args[0].device
            return args[0]._read().to(where, options.get("dtype") or args[0].dtype)
        if any(isinstance(one, Elsewhere) for one in tree_leaves([value for _, value in _shared(func, args, options)])):
            raise RuntimeError(f"{func}: got {cls.WANTED}")

        def whole(one: Any) -> Any:
            return one._read().to(one.device) if isinstance(one, Elsewhere) else one

        return func(*tree_map(whole, args), **tree_map(whole, options))

    def _copied(self) -> torch.Tensor:
        return self._read().to(self.device)

    def __repr__(self, **_: Any) -> str:  # type: ignore[override]
        return f"Elsewhere({tuple(self.shape)}, dtype={self.dtype}, device={self.device})"


class ReadOnly(WithoutMemory):
    """A tensor that reads like any other, but has no memory that other code could write to. A write, even into a view of it or
    inside a DTensor, raises RuntimeError."""

    WANTED = (
        "codes and scales of quantized state, which mean nothing alone; wanted other values by load_state_dict(), or "
        "none by optimizer.reset([p]) or `del optimizer.state[p]`"
    )
    plain: torch.Tensor  # the tensor itself

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
    """The tensor, or the DTensor with the local part, that `change` makes of it."""
    if not is_dtensor(tensor):
        return change(tensor)
    of: Any = tensor
    made: torch.Tensor = type(of)(change(local_of(of)), of._spec, requires_grad=False)
    return made


CODES, _SCALE = "_codes", "_scale"


def as_shown(tensors: Mapping[str, torch.Tensor], read_only: bool = False) -> dict[str, torch.Tensor]:
    """The core's tensors of a parameter by the names that users see: codes are NAME_codes, beside NAME_scale. Code that would
    take them for the values of NAME, as torch.optim would, finds none. read_only: codes and scales refuse writes, since a code of 0
    means minus its scale."""
    shown: dict[str, torch.Tensor] = {}
    for name, value in tensors.items():
        coded = f"{name}{_SCALE}" in tensors
        guarded = read_only and (coded or name.endswith(_SCALE)) and not isinstance(value, Elsewhere)
        shown[f"{name}{CODES}" if coded else name] = _with_memory(value, ReadOnly) if guarded else value
    return shown


def as_core(entry: Mapping[str, Any]) -> dict[str, Any]:
    """Converts an entry with those names to the core's names, with plain tensors; copies replace stand-ins."""
    out = {}
    for name, value in entry.items():
        moment = name.removesuffix(CODES) if isinstance(name, str) else name
        name = moment if f"{moment}{_SCALE}" in entry else name
        bare = type(value) is torch.Tensor or not isinstance(value, torch.Tensor)
        plain = value if bare else _with_memory(value, _plain)
        out[name] = plain._read() if isinstance(plain, Elsewhere) else plain
    return out


class Noting(dict[Any, Any]):
    """A dict that calls `_note` when an entry is removed, and adds entries only through `__setitem__`: dict's own methods would
    bypass both."""

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


class Shown(Noting):
    """An entry of `Optimizer.state`. Notes assignments, for the next step or save to adopt; stand-ins cannot be replaced
    (RuntimeError). A pickle or a copy is a plain dict."""

    def __init__(
        self, views: Mapping[str, torch.Tensor], param: torch.Tensor, number: int, assigned: set[int], read_only: bool = True
    ) -> None:
        """views: by the core's names; read_only: see `as_shown`. number: the parameter's, which is added to `assigned` once anything
        is replaced."""
        super().__init__(as_shown(views, read_only))
        self._param, self._number, self._assigned = id(param), number, assigned

    def is_of(self, param: torch.Tensor) -> bool:
        return self._param == id(param)

    def _note(self) -> None:
        self._assigned.add(self._number)

    def __setitem__(self, name: str, value: Any) -> None:
        had = dict.get(self, name)
        if value is had:
            return
        if isinstance(had, Elsewhere):
            got = f"a {type(value).__name__}" + (f" on {value.device}" if isinstance(value, torch.Tensor) else "")
            raise RuntimeError(
                f"state[...][{name!r}]: got {got} in the place of state that streams or is on a device, wanted opt.offload() and "
                "opt.onload(), which move it, or load_state_dict(), which replaces it"
            )
        self._note()
        super().__setitem__(name, value)

    def __reduce__(self) -> tuple[Any, ...]:
        return dict, (dict(self),)
