"""Groups of the core. A parameter group has one for each combination of overrides and rule among its parameters. Users and
schedulers see only the parameter groups."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Container, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import repeat
from types import NoneType
from typing import Any, NamedTuple

from lowtide import _core
from lowtide.devices.flattened import shard_of
from lowtide.devices.pieces import local_moments
from lowtide.devices.places import Place, stand_in
from lowtide.devices.sharding import local_of
from lowtide.engine.cores import Core
from lowtide.engine.family import Family
from lowtide.engine.params import Param
from lowtide.memory.budgets import Memory
from lowtide.memory.forecast import Budget
from lowtide.options.options import DEFAULTS, FIXED, GROUP_OPTIONS, Options


def fixed_options(family: Family, group: Mapping[str, Any]) -> dict[str, Any]:
    """The options of a parameter group that are fixed when it is added."""
    return {key: group.get(key) for key in (*FIXED, *family.FIXED)}


def group_defaults(hyper: Mapping[str, Any], options: Options) -> dict[str, Any]:
    """The options of a group that sets none: hyper-parameters, and the per-group part of `Options`."""
    given: Mapping[str, Any] = options
    made = {**hyper, "maximize": DEFAULTS["maximize"], **GROUP_OPTIONS}
    for name in made.keys() & given.keys():
        made[name] = given[name]
    return made


_PLAIN = frozenset((float, int, bool, str, NoneType))


def are_fixed(options: Iterable[Any]) -> bool:
    """True if no value can change in place, as tensors and lists can. Then the same object means the same value."""
    return all(are_fixed(each) if type(each) is tuple else type(each) in _PLAIN for each in options)


def are_same(options: Iterable[Any], fixed: Iterable[Any]) -> bool:
    """True if the values are the same. A number and an equal tensor are not."""
    return all(a is b or (type(a) is type(b) and type(a) in _PLAIN and a == b) for a, b in zip(options, fixed, strict=True))


@dataclass
class CoreGroup:
    """One group of the core."""

    of: int  # the number of its parameter group
    overrides: Mapping[str, Any]
    rule: str  # "": the optimizer's
    pushed: dict[str, float]  # the hyper-parameters that the core has
    options: dict[str, Any]  # `Family.core_options` that the core has
    memory: Memory | None  # the group's own budget
    budget_of: int  # number of the group whose budget it shares; -1: none
    params: list[int] = field(default_factory=list)  # numbers, ascending
    has_moments: bool = False  # its parameters have row moments

    def has(self, number: int) -> bool:
        at = bisect_left(self.params, number)
        return at < len(self.params) and self.params[at] == number

    def push(self, core: Core, number: int, hyper: dict[str, float], rounding: str) -> dict[str, float] | None:
        """Tells `core` about changes. Returns the previous hyper-parameters, or None if they are unchanged. Meanwhile the
        core's values count as unknown, so that after an interrupt (Ctrl-C) the next push tells it again."""
        if rounding != self.options["rounding"]:
            self.options["rounding"], before_rounding = "", self.options["rounding"]
            try:
                core.set_rounding(number, rounding)
            except ValueError:  # the core refused and is unchanged
                self.options["rounding"] = before_rounding
                raise
            self.options["rounding"] = rounding
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

    def options_of(self, groups: Sequence[dict[str, Any]] | Mapping[int, dict[str, Any]]) -> Mapping[str, Any]:
        """The options that apply to the group's parameters now, in the user's form."""
        group = groups[self.of]
        return {**group, **self.overrides} if self.overrides else group


def core_groups(
    family: Family, number: int, group: Mapping[str, Any], memory: Memory | None, params: Sequence[Param], first: int, at: int
) -> list[CoreGroup]:
    """The core's groups for parameter group `number`, whose budget is `memory`. params: the parameters of the group, numbered
    from `first`. at: the number of the first core group. Raises ValueError or TypeError for unusable options."""
    made: list[CoreGroup] = []

    def find(override: Mapping[str, Any], rule: str, own: Memory | None) -> CoreGroup:
        budget_of = -1
        for n, each in enumerate(made):
            if each.rule == rule and each.overrides == override:
                return each
            if budget_of < 0 and each.memory == own:
                budget_of = at + n
        options = {**group, **override}
        hyper, moments = family.hyper_of(rule, options), family.has_moments(rule, options)
        made.append(CoreGroup(number, override, rule, hyper, family.core_options(rule, options), own, budget_of, has_moments=moments))
        return made[-1]

    param, rule = None, ""
    try:
        base = find({}, "", memory)
        for i, param in enumerate(params, first):
            own, options, rule = param.override, group, ""
            if own:
                family.check_override(own)
                options = {**group, **own}
            rule = family.rule_for(param.tensor, options)
            (find(own or {}, rule, param.memory) if own or rule else base).params.append(i)
    except (TypeError, ValueError, NotImplementedError) as error:
        raise refused(family, number, param, rule, error) from None
    return made


def all_core_groups(
    family: Family, groups: Sequence[Mapping[str, Any]], memories: Sequence[Memory | None], params: Sequence[Param]
) -> list[CoreGroup]:
    """The `core_groups` of all parameter groups. memories: budgets of the parameter groups."""
    members: list[list[Param]] = [[] for _ in groups]
    for param in params:
        members[param.group].append(param)
    made: list[CoreGroup] = []
    first = 0
    for number, (group, memory, here) in enumerate(zip(groups, memories, members, strict=True)):
        made += core_groups(family, number, group, memory, here, first, len(made))
        first += len(here)
    return made


def register(
    core: _core.Optimizer,
    family: Family,
    place: Place,
    groups: Sequence[CoreGroup],
    at: int,
    params: Sequence[Param],
    first: int,
    part: Callable[[CoreGroup, Place], Memory | None] | None,
) -> None:
    """Adds these groups, numbered from `at`, and their parameters, numbered from `first`, to the core of a place. Parameters of
    other places become tensors without elements. part: returns the place's part of a group's own budget; None: all of it.
    Raises ValueError, TypeError or NotImplementedError; some are added by then."""
    numbers: dict[int, int] = {}
    for number, group in enumerate(groups, at):
        numbers.update(zip(group.params, repeat(number)))
    param, group = None, groups[0]
    try:
        for group in groups:
            param = params[group.params[0] - first] if group.params and (group.overrides or group.rule) else None
            here = group.memory if group.budget_of < 0 else None
            here = part(group, place) if here and part else here
            budget = here.budget(place) if here else None
            core.add_group(group.pushed, group.options, budget, group.budget_of, group.rule)
        for i, param in enumerate(params, first):
            tensor, number = param.tensor, numbers[i]
            group = groups[number - at]
            if param.place is place or param.place == place:
                core.add_param(number, tensor, tensor.requires_grad, shard_of(tensor, param.sharding))
            else:
                core.add_param(number, stand_in(place), False)
    except (TypeError, ValueError, NotImplementedError) as error:
        raise refused(family, group.of, param, group.rule, error) from None


def refused(family: Family, number: int, param: Param | None, rule: str, error: Exception) -> Exception:
    """The error about a parameter with that rule or, for None, about parameter group `number`. It names its subject."""
    where = f"{param.where}{': override' if param.override else ''}" if param else f"parameter group {number}"
    return family.error(where, rule, error)


class GroupSizes(NamedTuple):
    """A group in the form that `_core.forecast` takes."""

    params: list[tuple[list[int], Any, str, int]]  # sizes, whole, type, number
    options: dict[str, Any]  # `Family.core_options`
    hyper: dict[str, float]
    budget: Budget | None = None  # its own
    rate: float = 0.0  # bytes of state stepped per second
    budget_of: int = -1
    rule: str = ""


def sizes_of(groups: Sequence[CoreGroup], params: Sequence[Param], some: Container[int] | None = None) -> list[GroupSizes]:
    """The groups, without their own budgets, with the trained parameters among these numbers; None: with all parameters."""
    found = []
    for group in groups:
        here = [i for i in group.params if some is None or (i in some and params[i].tensor.requires_grad)]
        found.append(GroupSizes([(*size_of(params[i]), i) for i in here], group.options, group.pushed, rule=group.rule))
    return found


def moment_bytes(groups: Sequence[CoreGroup], params: Sequence[Param], some: Container[int] | None = None) -> int:
    """Bytes of the row moments of the trained parameters among these numbers; None: of all."""
    numbers = (i for group in groups if group.has_moments for i in group.params if some is None or i in some)
    trained = (params[i] for i in numbers if params[i].tensor.requires_grad)
    return sum(4 * local_moments(param.tensor, param.sharding).numel() for param in trained)


def size_of(param: Param) -> tuple[list[int], Any, str]:
    local = local_of(param.tensor)
    return list(local.shape), shard_of(param.tensor, param.sharding), str(local.dtype).removeprefix("torch.")
