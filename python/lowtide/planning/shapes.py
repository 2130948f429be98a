"""The shapes of parameters, from whatever describes a model: nothing is materialized and no data is read."""

from __future__ import annotations

import json
import math
import os
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

import torch

from lowtide import _core
from lowtide.checks.values import expect
from lowtide.devices import sharding
from lowtide.devices.places import HOST, check_parameter
from lowtide.engine.family import Family
from lowtide.engine.groups import Members, register
from lowtide.memory.budgets import Budget, Memory
from lowtide.options.options import check_kinds
from lowtide.options.overrides import options_of

Shape = tuple[int, ...]
Whole = tuple[list[int], bool, list[int]]  # see Sharding.shard
_WANTED = "wanted a module, tensors, groups of them (dicts with 'params') or shapes (tuples of sizes)"
_COLUMNS = 4096  # of the matrices that a bare number of parameters is taken for


class ShapedParam(NamedTuple):
    """Stands for a parameter of which the shape alone is known."""

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


@dataclass
class PlannedGroup:
    """A group as a core would have it, and the parameters that it would have."""

    state: str
    min_quantized_numel: int
    hyper: dict[str, float]
    budget: Budget | None  # its own
    master: str
    shares: int  # index of the group whose budget it shares; -1: its own or the optimizer's
    rule: str  # where it is another than that of all
    params: list[tuple[Shape, Whole | None, str]] = field(default_factory=list)
    number: int = -1  # of the parameter group
    memory: Memory | None = None


class Planned:
    """Takes groups as a core does, and refuses what a core would, without one."""

    def __init__(self, rule: str, extra: dict[str, float]) -> None:
        """extra: hyper-parameters of all groups that the class may not have; they are checked alike."""
        self.groups: list[PlannedGroup] = []
        self._rule, self._extra = rule, extra

    def add_group(
        self, hyper: dict[str, float], state: str, min_quantized_numel: int, memory: Budget | None, rounding: str,
        master: str, shared: int, rule: str,
    ) -> int:  # fmt: skip
        hyper = {**self._extra, **hyper}
        _core.check_group(rule or self._rule, hyper, state, min_quantized_numel, rounding, master)
        self.groups.append(PlannedGroup(state, min_quantized_numel, hyper, memory, master, shared, rule))
        return len(self.groups) - 1

    def add_param(self, group: int, param: Any, requires_grad: bool, whole: Whole | None) -> None:
        local, of = sharding.local_of(param), self.groups[group]
        shape, dtype = tuple(local.shape), str(local.dtype).removeprefix("torch.")
        rule = of.rule or self._rule
        _core.state_layout(rule, of.hyper, of.state, of.min_quantized_numel, "auto", of.master, shape, dtype, whole)
        of.params.append((shape, whole, dtype))


def groups_of(
    source: Any, defaults: Mapping[str, Any], family: Family, extra: dict[str, float], dtype: torch.dtype = torch.float32
) -> list[PlannedGroup]:
    """The groups that an optimizer of this family would make of `source`, in order. `defaults` give the options that a
    group lacks; extra: see `Planned`; dtype: of bare shapes.

    Frozen parameters (`torch.nn.Parameter`s that require no gradient) are left out: they never get state.
    Raises ValueError, TypeError or NotImplementedError for what an optimizer would refuse, wherever the tensors are.
    """
    planned = Planned(family.core_rule, extra)
    for number, (options, members) in enumerate(members_of(source, dtype)):
        first = len(planned.groups)
        made = register(planned, family, HOST, number, {**defaults, **options}, members, 0)
        for group, core_group in zip(planned.groups[first:], made, strict=True):
            own = core_group.overrides.get("memory", members.memory)
            group.number, group.memory = number, own if group.budget else None
    return planned.groups


def members_of(source: Any, dtype: torch.dtype = torch.float32) -> list[tuple[Mapping[str, Any], Members]]:
    """The parameter groups: the options of each, and its parameters that are not frozen. dtype: of bare shapes. Raises as
    `groups_of`."""
    if isinstance(source, torch.nn.Module):
        source = source.parameters()
    if isinstance(source, (torch.Tensor, str, bytes, Mapping)) or not isinstance(source, Iterable):
        raise TypeError(f"got {type(source).__name__}, {_WANTED}")
    entries = list(source)
    if not any(isinstance(entry, Mapping) for entry in entries):
        entries = [{"params": entries}]
    seen: set[int] = set()
    return [(entry, _members(entry, number, seen, dtype)) for number, entry in enumerate(entries)]


def _members(entry: Any, number: int, seen: set[int], dtype: torch.dtype) -> Members:
    """The parameters of one group that are not frozen."""
    where = f"parameter group {number}"
    if not isinstance(entry, Mapping) or "params" not in entry:
        raise TypeError(f"{where}: got {type(entry).__name__}, wanted a dict with 'params', as all groups are")
    check_kinds(entry, where)
    given = entry["params"]
    if isinstance(given, torch.nn.Module):
        given = given.parameters()
    params: list[Any] = []
    shardings = []
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
        params.append(member)
        shardings.append(sharding.sharding_of(member, here))
    return Members(params, shardings, options_of(params), entry.get("memory"))


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
    """From JSON: a list of shapes, or an object of name: shape."""
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
        build: Any = AutoModelForCausalLM.from_config  # untyped there
        with torch.device("meta"):
            model = build(config)
    except Exception as error:  # whatever that package raises for a config that it cannot use
        reason = (str(error).strip() or type(error).__name__).splitlines()[0]
        raise ValueError(f"{path}: transformers cannot make a causal language model of it: {reason[:200]}") from error
    return [tuple(param.shape) for param in model.parameters() if param.requires_grad]


def _json(path: str | os.PathLike[str]) -> Any:
    try:
        return json.loads(Path(path).read_text(encoding="utf-8"))
    except (ValueError, RecursionError) as error:  # also bytes that are no text, and numbers that are too long
        raise ValueError(f"{path}: got what is not JSON: {error}") from error
