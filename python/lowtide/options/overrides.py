"""Options of single parameters, in any group and optimizer.

An override of a module's parameter is stored with the module, under the parameter's name. It applies to whatever tensor has
that name when an optimizer looks (FSDP2 replaces parameters by DTensors; `model.to()` may create new ones), and copies and
pickles of the module keep it. An override of a tensor is stored with that tensor.
"""

from __future__ import annotations

import itertools
import weakref
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

import torch
from typing_extensions import TypedDict

from lowtide.checks.hints import hint
from lowtide.checks.values import expect

_ATTRIBUTE = "_lowtide_overrides"  # on modules: a _Holder; on tensors: list[_Entry], which can be pickled


class _Entry(TypedDict):
    """One call of `override`. Withdrawal empties it, so that every holder knows; the next call drops it."""

    order: int
    options: dict[str, Any]


class _Holder:
    """The overrides of a module's own parameters by name; None stands for all its parameters and its children's."""

    def __init__(self, module: torch.nn.Module, entries: Iterable[tuple[str | None, _Entry]] = ()) -> None:
        self.module = weakref.ref(module)
        self.entries = list(entries)
        _holders.add(self)

    def found(self) -> Iterator[tuple[torch.Tensor, _Entry]]:
        """The parameters that exist now."""
        if (module := self.module()) is None:
            return
        for name, entry in self.entries:
            params = module.parameters() if name is None else [module._parameters.get(name)]
            yield from ((param, entry) for param in params if param is not None)

    def __deepcopy__(self, memo: dict[int, Any]) -> _Holder:
        module: Any = self.module()
        return _Holder(memo.get(id(module), module), [(name, _copy(entry)) for name, entry in self.entries])

    def __reduce__(self) -> tuple[Any, ...]:
        return _Holder, (self.module(), self.entries)


_holders: weakref.WeakSet[_Holder] = weakref.WeakSet()
_orders = itertools.count()
changes = 0  # counts overrides made and withdrawn


class Override:
    """The handle that `override` returns."""

    def __init__(self, entries: Sequence[_Entry]) -> None:
        self._entries = entries

    def remove(self) -> None:
        """Withdraws the override. At their next step, optimizers return to the group's options and convert state in another
        format."""
        global changes
        for entry in self._entries:
            entry["options"] = {}
        changes += 1


def override(
    target: torch.nn.Module | torch.Tensor | Iterable[torch.Tensor], name: str | None = None, **options: Any
) -> Override:
    """Gives parameters their own options, in any Lowtide group and optimizer, now or later.

        lowtide.override(model.head, state="fp32")                      # all parameters of a module
        lowtide.override(model, "embed.weight", lr=1e-4, weight_decay=0.0)
        lowtide.override([p for p in model.parameters() if p.ndim < 2], state="fp32")

    These options replace the group's. `param_groups` stays as it is, and a scheduler that changes a group's lr does not change
    an override's. Of two overrides the later counts, option by option. Existing optimizers adopt an override at their next
    step. They convert state in another format (decode and encode it), which temporarily needs room for a second copy of the
    optimizer's state. A `state_dict()` contains no overrides: a program that loads one makes the same overrides.

    Args:
        target: a module, a parameter, or several parameters. An override of a module's parameter follows the name: it survives
            `fully_shard()` (FSDP2), `model.to()` and copies of the module. An override of a tensor stays with that tensor.
        name: one parameter of the module, as in `named_parameters()`; None: all parameters that it has when an optimizer looks,
            that is, when the optimizer is made and in its first step after an override was made or withdrawn.
        options: any option that a parameter group can have: lr, weight_decay, betas, eps, state, min_quantized_numel, memory
            (one budget for all parameters of a group that share it), …

    Returns an `Override`, whose `remove()` withdraws it.

    Raises ValueError for a name that the module does not have, a module without parameters, a tensor that is not a parameter,
    or no options; TypeError for other targets. Optimizers refuse values that they cannot use as soon as they meet them: in the
    constructor, in `add_param_group` or in the next step.
    """
    global changes
    expect(bool(options), "override", "no options", "some, such as state='fp32'")
    entry: _Entry = {"order": next(_orders), "options": options}
    if isinstance(target, torch.nn.Module):
        _keep(target, name, entry)
        made = [entry]
    elif name is not None:
        raise TypeError(f"override: got the name {name!r} with a {type(target).__name__}, wanted one with a module")
    else:
        params = _params_of(target)
        made = [_copy(entry) for _ in params]
        for param, one in zip(params, made, strict=True):
            setattr(param, _ATTRIBUTE, [*(each for each in getattr(param, _ATTRIBUTE, ()) if each["options"]), one])
    changes += 1
    return Override(made)


def _keep(module: torch.nn.Module, name: str | None, entry: _Entry) -> None:
    if name is not None:
        known = [each for each, _ in module.named_parameters(remove_duplicate=False)]
        if name not in known:
            shown = ", ".join(known[:8]) + (", …" if len(known) > 8 else "")
            raise ValueError(
                f"override: got {name!r}, which names no parameter of {type(module).__name__}{hint(name, known)}, wanted one "
                f"of {shown or 'none: it has no parameters'}"
            )
        path, _, name = name.rpartition(".")
        module = module.get_submodule(path)
    elif next(module.parameters(), None) is None:
        raise ValueError(f"override: got a {type(module).__name__} without parameters, wanted one with some")
    holder = module.__dict__.get(_ATTRIBUTE)
    if holder is None:
        holder = module.__dict__[_ATTRIBUTE] = _Holder(module)
    holder.entries = [*((of, each) for of, each in holder.entries if each["options"]), (name, entry)]


def _params_of(target: Any) -> list[torch.Tensor]:
    wanted = "wanted a module, a parameter or several parameters"
    if not isinstance(target, torch.Tensor) and not isinstance(target, Iterable):
        raise TypeError(f"override: got {type(target).__name__}, {wanted}")
    params = [target] if isinstance(target, torch.Tensor) else list(target)
    for place, param in enumerate(params):
        where = "override" if isinstance(target, torch.Tensor) else f"override, parameter {place}"
        if not isinstance(param, torch.Tensor):
            raise TypeError(f"{where}: got {type(param).__name__}, {wanted}")
        leaf = isinstance(param, torch.nn.Parameter) or (param.is_leaf and param.requires_grad)
        got = f"a tensor of shape {tuple(param.shape)} that is no parameter"
        expect(leaf, where, got, "a torch.nn.Parameter or a leaf that requires grad")
    expect(bool(params), "override", "no parameters", "some")
    return params


def _copy(entry: _Entry) -> _Entry:
    return {"order": entry["order"], "options": dict(entry["options"])}


class Overridden:
    """The overrides that one parameter of one optimizer has met. They stay in effect."""

    def __init__(self, entries: Iterable[_Entry]) -> None:
        self._met = list(entries)

    def joined(self, others: Overridden | None) -> Overridden:
        """Joins these with others, such as those of a replaced parameter, and drops withdrawn overrides."""
        seen = {id(entry): entry for entry in (*self._met, *(others._met if others else ()))}
        return Overridden(entry for entry in seen.values() if entry["options"])

    def options(self) -> dict[str, Any]:
        """The options. Of two overrides the later counts."""
        merged: dict[str, Any] = {}
        for entry in sorted(self._met, key=lambda entry: entry["order"]):
            merged |= entry["options"]
        return merged


def look(params: Sequence[torch.Tensor]) -> list[Overridden | None]:
    """The current overrides of each parameter. None: no overrides."""
    found: dict[int, list[_Entry]] = {}
    for holder in list(_holders):
        for param, entry in holder.found():
            found.setdefault(id(param), []).append(entry)
    met: list[Overridden | None] = []
    for param in params:
        entries = [*found.get(id(param), ()), *getattr(param, _ATTRIBUTE, ())]
        met.append(Overridden(entries) if entries else None)
    return met


def options_of(params: Sequence[torch.Tensor]) -> list[dict[str, Any]]:
    """The options that current overrides give to each parameter."""
    return [each.options() if each else {} for each in look(params)]


def pin(param: torch.Tensor, options: Mapping[str, Any]) -> None:
    """Makes these the overrides of a copied parameter, unless it has them already."""
    if options_of([param]) != [options]:
        entry: _Entry = {"order": next(_orders), "options": dict(options)}
        setattr(param, _ATTRIBUTE, [entry])
