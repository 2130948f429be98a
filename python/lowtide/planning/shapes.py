"""The shapes of parameters, from any description of a model: nothing is materialized and no data is read."""

from __future__ import annotations

import json
import math
import os
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import torch

from lowtide import _core
from lowtide.checks.values import expect
from lowtide.devices import sharding
from lowtide.devices.places import HOST, check_parameter
from lowtide.engine.family import Family
from lowtide.engine.groups import CoreGroup, GroupSizes, all_core_groups, refused, sizes_of
from lowtide.engine.params import Param
from lowtide.memory.budgets import Memory
from lowtide.options.options import check_kinds
from lowtide.options.overrides import look

Shape = tuple[int, ...]
Planned = Sequence[tuple[CoreGroup, GroupSizes]]
_WANTED = "wanted a module, tensors, groups of them (dicts with 'params') or shapes (tuples of sizes)"
_COLUMNS = 4096  # of the matrices assumed for a bare number of parameters


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

    def element_size(self) -> int:
        return self.dtype.itemsize


def groups_of(
    source: Any, defaults: Mapping[str, Any], family: Family, extra: dict[str, float], dtype: torch.dtype = torch.float32
) -> Planned:
    """The groups that an optimizer of this family would make of `source`, in order, and the planned part of each. `defaults`
    give the options that a group lacks; extra: hyper-parameters of all groups, checked alike even if the class does not have
    them; dtype: of bare shapes.

    Frozen parameters (`torch.nn.Parameter`s that require no gradient) are left out: they never get state. Raises ValueError,
    TypeError or NotImplementedError for input that an optimizer would refuse, on any device.
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
            for i, (shape, whole, kind) in zip(group.params, sizes.params, strict=True):
                param = params[i]
                _core.state_layout(rule, hyper, sizes.options, shape, kind, whole)
        except (TypeError, ValueError, NotImplementedError) as error:
            raise refused(family, group.of, param, group.rule, error) from error
        found.append((group, sizes._replace(hyper=hyper, budget=own, budget_of=group.budget_of)))
    return found


def members_of(source: Any, dtype: torch.dtype = torch.float32) -> list[tuple[Mapping[str, Any], list[Param]]]:
    """The parameter groups: the options of each, and its parameters that are not frozen. dtype: of bare shapes. Raises like
    `groups_of`."""
    if isinstance(source, torch.nn.Module):
        source = source.parameters()
    if isinstance(source, (torch.Tensor, str, bytes, Mapping)) or not isinstance(source, Iterable):
        raise TypeError(f"got {type(source).__name__}, {_WANTED}")
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
    memory, given = Memory.of(entry.get("memory")), entry["params"]
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
            member = ShapedParam(_shape(member, here), dtype)
        params.append(Param(member, number, place, HOST, sharding.sharding_of(member, here), memory=memory))
    met = look([param.tensor for param in params])
    members = [param.with_overrides(each, memory) if each else param for param, each in zip(params, met, strict=True)]
    return {**entry, "memory": memory}, members


def _shape(value: Any, where: str) -> Shape:
    if not isinstance(value, (tuple, list)):
        raise TypeError(f"{where}: got {value!r} ({type(value).__name__}), {_WANTED}")
    for size in value:
        if not isinstance(size, int) or isinstance(size, bool):
            raise TypeError(f"{where}: got a size of {size!r} ({type(size).__name__}), wanted an int")
        expect(0 <= size < 2**63, where, f"a size of {size}", "0 to 2^63 - 1")
    return tuple(value)


def of_count(params: int) -> list[Shape]:
    """A model of `params` parameters: matrices of 4096 by 4096, the rest in rows of 4096 and one vector."""
    if not 0 < params < 2**63:
        raise ValueError(f"got {params} parameters, wanted 1 to 2^63 - 1")
    whole, rest = divmod(params, _COLUMNS * _COLUMNS)
    if whole > 1 << 22:
        raise ValueError(f"got {params} parameters, wanted {_COLUMNS * _COLUMNS << 22} at most")
    rows, vector = divmod(rest, _COLUMNS)
    shapes: list[Shape] = [(_COLUMNS, _COLUMNS)] * whole
    return shapes + ([(rows, _COLUMNS)] if rows else []) + ([(vector,)] if vector else [])


def of_file(path: str | os.PathLike[str]) -> list[Shape]:
    """Shapes from JSON: a list of shapes, or an object of name: shape."""
    content = _json(path)
    shapes = list(content.values()) if isinstance(content, dict) else content
    expect(isinstance(shapes, list), str(path), type(content).__name__, "a list of shapes or an object of name: shape")
    return [_shape(shape, f"{path}, shape {n}") for n, shape in enumerate(shapes)]


def of_hf_config(path: str | os.PathLike[str]) -> list[Shape]:
    """Shapes of the causal language model that a `config.json` of transformers describes; needs that package."""
    content = _json(path)
    if not isinstance(content, dict) or not isinstance(content.get("model_type"), str):
        raise ValueError(f"{path}: got no model_type, wanted the config.json of a transformers model")
    try:
        from transformers import AutoConfig, AutoModelForCausalLM
    except ImportError as error:
        raise ValueError(f"{path}: transformers is not installed: pip install transformers, or use shapes") from error
    kind = content.pop("model_type")
    try:
        config = AutoConfig.for_model(kind, **content)
        build: Any = AutoModelForCausalLM.from_config  # untyped in that package
        with torch.device("meta"):
            model = build(config)
    except Exception as error:  # any exception of that package for a config that it cannot use
        reason = (str(error).strip() or type(error).__name__).splitlines()[0]
        raise ValueError(f"{path}: transformers cannot make a causal language model of it: {reason[:200]}") from error
    return [tuple(param.shape) for param in model.parameters() if param.requires_grad]


def _json(path: str | os.PathLike[str]) -> Any:
    try:
        return json.loads(Path(path).read_text(encoding="utf-8"))
    except (ValueError, RecursionError) as error:  # including bytes that are not text, and numbers that are too long
        raise ValueError(f"{path}: got a file that is not JSON: {error}") from error
