"""The parameters of a module, of groups or of shapes, as an optimizer would take them, without making tensors."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

import torch

from lowtide import _core
from lowtide.checks.values import expect
from lowtide.devices import sharding
from lowtide.devices.places import HOST, check_parameter
from lowtide.engine.family import Family
from lowtide.engine.groups import CoreGroup, GroupSizes, all_core_groups, moment_bytes, refused, sizes_of
from lowtide.engine.params import Param
from lowtide.memory.budgets import of_group
from lowtide.options.options import check_kinds
from lowtide.options.overrides import look
from lowtide.planning.models import WANTED_SHAPES, Shape, of_count, shape_of

Planned = Sequence[tuple[CoreGroup, GroupSizes, int]]  # with the bytes of row moments


class ShapedParam(NamedTuple):
    """Stands in for a parameter of which only the shape is known."""

    shape: Shape
    dtype: torch.dtype = torch.float32
    requires_grad: bool = True

    @property
    def ndim(self) -> int:
        return len(self.shape)

    def numel(self) -> int:
        return math.prod(self.shape)

    @property
    def nbytes(self) -> int:
        return self.numel() * self.dtype.itemsize


def groups_of(
    source: Any, defaults: Mapping[str, Any], family: Family, extra: dict[str, float], dtype: torch.dtype = torch.float32
) -> Planned:
    """The groups that an optimizer of this family would make of `source`, in order, and the planned part of each. defaults:
    options for groups that lack them. extra: hyper-parameters of all groups, checked even if the class does not have them.
    dtype: the type of bare shapes.

    Frozen parameters (`torch.nn.Parameter`s that require no gradient) are left out, because they never get state. Raises
    ValueError, TypeError or NotImplementedError for input that an optimizer would refuse on any device.
    """
    entries = members_of(source, dtype)
    options = [{**defaults, **given} for given, _ in entries]
    params = [param for _, members in entries for param in members]
    made = all_core_groups(family, options, [given.get("memory") for given, _ in entries], params)
    found = []
    for group, sizes in zip(made, sizes_of(made, params), strict=True):
        param = params[group.params[0]] if group.params and (group.overrides or group.rule) else None
        rule, hyper = group.rule or family.core_rule, {**extra, **group.pushed}
        try:
            own = group.memory.budget() if group.memory and group.budget_of < 0 else None
            _core.check_group(rule, hyper, sizes.options)
            for i, (shape, whole, kind, _) in zip(group.params, sizes.params, strict=True):
                param = params[i]
                _core.state_layout(rule, hyper, sizes.options, shape, kind, whole)
        except (TypeError, ValueError, NotImplementedError) as error:
            raise refused(family, group.of, param, group.rule, error) from None
        sizes = sizes._replace(hyper=hyper, budget=own, budget_of=group.budget_of)
        found.append((group, sizes, moment_bytes([group], params)))
    return found


def members_of(source: Any, dtype: torch.dtype = torch.float32) -> list[tuple[Mapping[str, Any], list[Param]]]:
    """The parameter groups: the options of each, and its parameters that are not frozen. dtype: the type of bare shapes. Raises
    like `groups_of`."""
    if isinstance(source, torch.nn.Module):
        source = source.parameters()
    if (isinstance(source, int) and not isinstance(source, bool)) or (isinstance(source, float) and source.is_integer()):
        source = of_count(int(source))
    if isinstance(source, (torch.Tensor, str, bytes, Mapping)) or not isinstance(source, Iterable):
        raise TypeError(f"got {type(source).__name__}, {WANTED_SHAPES}")
    entries = list(source)
    if not any(isinstance(entry, Mapping) for entry in entries):
        entries = [{"params": entries}]
    seen: set[int] = set()
    return [_members(entry, number, seen, dtype) for number, entry in enumerate(entries)]


def _members(entry: Any, number: int, seen: set[int], dtype: torch.dtype) -> tuple[Mapping[str, Any], list[Param]]:
    """The group, and its parameters that are not frozen."""
    where = f"parameter group {number}"
    if not isinstance(entry, Mapping) or "params" not in entry:
        raise TypeError(f"{where}: got {type(entry).__name__}, wanted a dict with 'params', like the other groups")
    check_kinds(entry, where)
    memory, given = of_group(entry, where), entry["params"]
    if isinstance(given, torch.nn.Module):
        given = given.parameters()
    params: list[Any] = []
    for place, member in enumerate([given] if isinstance(given, torch.Tensor) else given):
        here = f"{where}, parameter {place}"
        if isinstance(member, tuple) and len(member) == 2 and isinstance(member[0], str):
            member = member[1]
        if isinstance(member, torch.Tensor):
            expect(id(member) not in seen, here, "the same parameter more than once", "each once")
            seen.add(id(member))
            if isinstance(member, torch.nn.Parameter) and not member.requires_grad:
                continue
            check_parameter(sharding.local_of(member), here, anywhere=True)
        else:
            member = ShapedParam(shape_of(member, here), dtype)
        params.append(Param(member, number, place, HOST, sharding.sharding_of(member, here), memory=memory))
    met = look([param.tensor for param in params])
    members = [param.with_overrides(each, memory) if each else param for param, each in zip(params, met, strict=True)]
    return {**entry, "memory": memory}, members
