"""Stand-ins in `Optimizer.state` for tensors that no view can show: they stream, or are in memory of a device that is the
core's."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch.utils._pytree import tree_leaves, tree_map
from typing_extensions import Self

_ADVICE = "wanted .clone() or .to() of it, which copy its values, or load_state_dict(), which replaces them"


class Elsewhere(torch.Tensor):
    """A tensor with the shape, element type, bytes and device of state, without memory.

    What reads values has them copied to its device first, the current values: `.to()` and `.cpu()` return tensors of other
    devices, `+` and `.sum()` results. Writing, and what would share memory (`.view()`, indexing), raises RuntimeError.
    `.detach()`, and `.to()` the device on which it is, return it as it is, as for every tensor."""

    __torch_function__ = torch._C._disabled_torch_function_impl  # type: ignore[assignment]  # else results are of this class
    _read: Callable[[], torch.Tensor]

    @staticmethod
    def __new__(cls, like: torch.Tensor, device: torch.device, read: Callable[[], torch.Tensor]) -> Elsewhere:
        """read: returns a copy of the values, in host memory."""
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
        given = [*zip(func._schema.arguments, args), *((each, options.get(each.name)) for each in func._schema.arguments)]
        shared = tree_leaves([value for argument, value in given if argument.alias_info])
        if any(isinstance(one, Elsewhere) for one in shared):
            raise RuntimeError(f"{func}: got optimizer state that streams or is on a device, {_ADVICE}")

        def whole(one: Any) -> Any:
            return one._read().to(one.device) if isinstance(one, Elsewhere) else one

        return func(*tree_map(whole, args), **tree_map(whole, options))

    def numpy(self, *, force: bool = False) -> Any:
        return (self.cpu() if force else self).clone().numpy()

    def tolist(self) -> Any:
        return self.cpu().clone().tolist()

    def __deepcopy__(self, memo: Any) -> torch.Tensor:
        return self.clone()

    def __reduce_ex__(self, protocol: Any) -> Any:
        return self.clone().__reduce_ex__(protocol)  # type: ignore[no-untyped-call]

    def __repr__(self, **_: Any) -> str:  # type: ignore[override]
        return f"Elsewhere({tuple(self.shape)}, dtype={self.dtype}, device={self.device})"


class Shown(dict[str, Any]):
    """An entry of `Optimizer.state` with stand-ins. Other tensors do not take their place (RuntimeError): loops that move
    state between phases assign what `.to()` returned, and would keep copies that no step changes. A pickle or a copy is a
    plain dict."""

    def __setitem__(self, name: str, value: Any) -> None:
        had = self.get(name)
        if not isinstance(had, Elsewhere):
            super().__setitem__(name, value)
        elif value is not had:
            got = f"a {type(value).__name__}" + (f" on {value.device}" if isinstance(value, torch.Tensor) else "")
            raise RuntimeError(
                f"state[...][{name!r}]: got {got} in the place of state that streams or is on a device, wanted opt.offload() and "
                "opt.onload(), which move it, or load_state_dict(), which replaces it"
            )

    # dict's own would not ask the above.
    def update(self, *given: Any, **named: Any) -> None:
        for name, value in dict(*given, **named).items():
            self[name] = value

    def __ior__(self, given: Any) -> Self:  # type: ignore[override,misc]
        self.update(given)
        return self

    def setdefault(self, name: str, default: Any = None) -> Any:
        if name not in self:
            self[name] = default
        return self[name]

    def __reduce__(self) -> tuple[Any, ...]:
        return dict, (dict(self),)
