"""Groups of the core: one for each parameter group, and one more for each set of overrides, or each other rule, among its
parameters. Users and schedulers see the parameter groups alone."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from types import NoneType
from typing import Any, NamedTuple, Protocol

import torch

from lowtide.devices.flattened import shard_of
from lowtide.devices.places import Place
from lowtide.devices.sharding import Sharding
from lowtide.engine.family import Family
from lowtide.memory.budgets import Budget, Memory
from lowtide.options.options import Options


class Format(NamedTuple):
    """The options of a group that are fixed when it is added, as the core takes them."""

    state: str
    min_quantized_numel: int
    master: str

    @classmethod
    def of(cls, options: Mapping[str, Any]) -> Format:
        return cls(options["state"], int(options["min_quantized_numel"]), options["master"] or "")


def fixed_options(family: Family, group: Mapping[str, Any]) -> dict[str, Any]:
    """The options of a parameter group that are fixed when it is added, as users write them."""
    return {key: group.get(key) for key in (*Format._fields, *family.FIXED)}


def group_defaults(hyper: Mapping[str, Any], options: Options) -> dict[str, Any]:
    """The options of a group that sets none: hyper-parameters and those of `Options` that are a group's."""
    return {
        **hyper,
        "maximize": options.get("maximize", False),
        "state": options.get("state", "dynamic8"),
        "min_quantized_numel": options.get("min_quantized_numel", 4096),
        "rounding": options.get("rounding", "auto"),
        "master": options.get("master"),
    }


_PLAIN = frozenset((float, int, bool, str, NoneType))


def are_fixed(options: Iterable[Any]) -> bool:
    """Whether none of these values can change in place, as a tensor or a list can: the same object is the same value."""
    return all(are_fixed(each) if type(each) is tuple else type(each) in _PLAIN for each in options)


def are_same(options: Iterable[Any], fixed: Iterable[Any]) -> bool:
    """Whether these are the same values. (A number and a tensor that equals it are not.)"""
    return all(a is b or (type(a) is type(b) and type(a) in _PLAIN and a == b) for a, b in zip(options, fixed, strict=True))


class Told(Protocol):
    """Options are told to this: a core, or several."""

    def set_rounding(self, group: int, rounding: str) -> None: ...

    def set_hyper(self, group: int, hyper: dict[str, float | bool]) -> None: ...


@dataclass
class CoreGroup:
    """One group of the core, by its number there."""

    of: int  # number of the parameter group
    overrides: Mapping[str, Any]
    rule: str  # "": the optimizer's
    pushed: dict[str, float]  # the hyper-parameters that the core has
    rounding: str  # likewise
    format: Format
    params: list[int] = field(default_factory=list)  # numbers, ascending

    def has(self, number: int) -> bool:
        at = bisect_left(self.params, number)
        return at < len(self.params) and self.params[at] == number

    def push(self, core: Told, number: int, hyper: dict[str, float], rounding: str) -> dict[str, float] | None:
        """Tells `core` what it does not have; returns the hyper-parameters that it had, None if they are the same.

        What the core has is unknown from before it is told until it has answered: an interrupt (Ctrl-C) between the two
        makes the next push tell it again."""
        if rounding != self.rounding:
            self.rounding, before_rounding = "", self.rounding
            try:
                core.set_rounding(number, rounding)
            except ValueError:  # refused: the core is as it was
                self.rounding = before_rounding
                raise
            self.rounding = rounding
        if hyper == self.pushed:
            return None
        self.pushed, before = {}, self.pushed
        try:
            core.set_hyper(number, hyper)
        except (TypeError, ValueError):
            self.pushed = before
            raise
        self.pushed = hyper
        return before

    def options(self, groups: Sequence[dict[str, Any]] | Mapping[int, dict[str, Any]]) -> Mapping[str, Any]:
        """The options that hold for its parameters now."""
        group = groups[self.of]
        return {**group, **self.overrides} if self.overrides else group


@dataclass
class Members:
    """The parameters of one parameter group, or of a part of it, by place."""

    params: Sequence[torch.Tensor] = ()
    shardings: Sequence[Sharding | None] = ()
    overrides: Sequence[Mapping[str, Any]] = ()
    memory: Memory | None = None  # the group's own budget


class Groups(Protocol):
    """Groups are registered with this: a core, or the plan of one."""

    def add_group(
        self, hyper: dict[str, float], state: str, min_quantized_numel: int, memory: Budget | None, rounding: str,
        master: str, shared: int, rule: str,
    ) -> int: ...  # fmt: skip

    def add_param(self, group: int, param: Any, requires_grad: bool, whole: Any) -> object: ...


def register(
    core: Groups,
    family: Family,
    place: Place,
    number: int,
    group: Mapping[str, Any],
    members: Members,
    first: int,
    part: Callable[[Memory], Memory | None] = lambda memory: memory,
) -> list[CoreGroup]:
    """Adds parameter group `number` to `core`. Its parameters get numbers from `first` on. part: what parameters at this
    place have of a budget; None: no budget of their own. ValueError, TypeError or NotImplementedError for what cannot be used."""
    made: list[CoreGroup] = []
    numbers: list[int] = []  # of these, in `core`
    where = f"parameter group {number}"

    def add(override: Mapping[str, Any], rule: str) -> int:
        options = {**group, **override}
        hyper = family.hyper_of(rule, options)
        own: Memory | None = override.get("memory", members.memory)
        same = (n for n, known in zip(numbers, made) if known.overrides.get("memory", members.memory) == own)
        shared = next(same, -1)
        here = part(own) if own and shared < 0 else None
        budget = here.budget(place) if here else None
        form = Format.of(options)
        rounding = options["rounding"]
        numbers.append(
            core.add_group(hyper, form.state, form.min_quantized_numel, budget, rounding, form.master, shared, rule)
        )
        made.append(CoreGroup(number, override, rule, hyper, rounding, form))
        return len(made) - 1

    text, rule = where, ""
    try:
        family.check_members(place, members.shardings)
        add({}, "")
        for i, (param, of, override) in enumerate(
            zip(members.params, members.shardings, members.overrides, strict=True)
        ):
            text, rule = f"{where}, parameter {i}{': override' if override else ''}", ""
            if override:
                family.check_override(override)
            rule = family.rule_for(param, {**group, **override})
            known = (n for n, one in enumerate(made) if one.rule == rule and one.overrides == override)
            at = next(known, -1)
            at = add(override, rule) if at < 0 else at
            core.add_param(numbers[at], param, param.requires_grad, shard_of(param, of))
            made[at].params.append(first + i)
    except (TypeError, ValueError, NotImplementedError) as error:
        raise family.error(text, rule, error) from error
    return made
