"""Replacement of parameters by other tensors. Wrappers shard a model, move it or change its weights, and put the new tensors
into the groups of an existing optimizer."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import torch

from lowtide.checks.values import expect
from lowtide.engine.engine import Engine

_ADVICE = "use add_param_group, or build a new optimizer and load the state_dict"


def check_tensors(groups: Sequence[dict[str, Any]]) -> None:
    """Turns other collections of parameters into lists, as torch does when it builds an optimizer. Raises ValueError or
    TypeError for anything else."""
    for number, group in enumerate(groups):
        where, params = f"param_groups[{number}]", group.get("params")
        expect("params" in group, where, f"keys {sorted(map(str, group))}", "'params' among them")
        if not isinstance(params, Iterable) or isinstance(params, (str, set)):
            raise TypeError(f"{where}['params']: got {type(params).__name__}, wanted a list of tensors")
        if type(params) is not list:
            group["params"] = [params] if isinstance(params, torch.Tensor) else list(params)
        for i, param in enumerate(group["params"]):
            if not isinstance(param, torch.Tensor):
                raise TypeError(f"{where}['params'][{i}]: got {type(param).__name__}, wanted a tensor")


def kept_groups(engine: Engine, groups: Sequence[dict[str, Any]], added: Sequence[dict[str, Any]]) -> list[int]:
    """The number that each parameter group had when it was added. added: the groups at that time. Raises ValueError unless
    there are as many groups, or only groups without parameters are missing."""
    members = engine.members
    numbers = {id(group): number for number, group in enumerate(added)}
    kept = [numbers.get(id(group), -1) for group in groups]
    if len(groups) == len(members) and (-1 in kept or len({*kept}) < len(kept)):
        return [*range(len(groups))]  # copies of groups
    gone = [number for number, each in enumerate(members) if each.tensors and number not in kept]
    whole = not gone and -1 not in kept and len({*kept}) == len(kept)
    expect(whole, "param_groups", f"{len(groups)} groups", f"{len(members)}: use add_param_group")
    return kept


def heirs(engine: Engine, groups: Sequence[dict[str, Any]], kept: Sequence[int]) -> list[int] | None:
    """For each tensor in the groups, in order, the number of the parameter that it replaces: the same tensor if registered, or
    the one at its position. kept: the number that each group had when it was added. If the number of tensors or a shape
    differs, returns None before the first step, so that all start afresh, and raises ValueError after it."""
    try:
        return _heirs(engine, groups, kept)
    except ValueError:
        if engine.has_stepped():
            raise
        return None


def _heirs(engine: Engine, groups: Sequence[dict[str, Any]], kept: Sequence[int]) -> list[int]:
    known = {id(tensor): number for number, tensor in enumerate(engine.tensors)}
    first = [sum(len(each.tensors) for each in engine.members[:number]) for number in kept]
    found: list[int] = []
    for number, group in enumerate(groups):
        where, tensors, before = f"param_groups[{number}]['params']", group["params"], engine.members[kept[number]].tensors
        expect(len(tensors) == len(before), where, f"{len(tensors)} tensors", f"{len(before)} as registered: {_ADVICE}")
        for i, tensor in enumerate(tensors):
            source = known.get(id(tensor), first[number] + i)
            got, wanted = (tuple(each.shape) for each in (tensor, engine.tensors[source]))
            expect(got == wanted, f"{where}[{i}]", f"a tensor that was not registered, of shape {got}",
                   f"shape {wanted}: {_ADVICE}")  # fmt: skip
            found.append(source)
    distinct = len(set(found)) == len(found)
    expect(distinct, "param_groups", "new tensors, and old ones in other places", f"only one of these: {_ADVICE}")
    return found
