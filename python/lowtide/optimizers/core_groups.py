"""The core's groups: one for each parameter group, and one more for each set of overrides, or each other rule, among its
parameters.

Users and schedulers see the parameter groups alone.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import torch

from lowtide import _core
from lowtide.checks.kept_errors import KeptErrors
from lowtide.checks.values import with_context
from lowtide.devices.sharding import Sharding
from lowtide.memory.budgets import Memory
from lowtide.options.options import IGNORED, WHOLE_OPTIMIZER, check_options, of_class
from lowtide.options.overrides import look
from lowtide.state import state_dict as formats

if TYPE_CHECKING:
    from lowtide.devices.places import Place
    from lowtide.optimizers.optimizer import Optimizer


Format = tuple[str, int, str]  # state, min_quantized_numel and master: fixed when a group is added


@dataclass
class CoreGroup:
    """One group of the core, by its number there."""

    of: int  # number of the parameter group
    overrides: Mapping[str, Any]
    rule: str  # "": the optimizer's
    pushed: dict[str, float]  # the hyper-parameters that the core has
    rounding: str  # likewise
    format: Format
    params: list[int] = field(default_factory=list)  # numbers

    def options(self, groups: Sequence[dict[str, Any]] | Mapping[int, dict[str, Any]]) -> Mapping[str, Any]:
        """What holds for its parameters now."""
        group = groups[self.of]
        return {**group, **self.overrides} if self.overrides else group


def format_of(options: Mapping[str, Any]) -> Format:
    """What of a group's options is fixed when it is added, as the core takes it."""
    return options["state"], int(options["min_quantized_numel"]), options["master"] or ""


def group_error(optimizer: Optimizer, where: str, rule: str, error: Exception) -> Exception:
    """The same kind of error, with `where` before its message. rule: of a group of the core; one that is not the
    optimizer's own is known to users by the class."""
    return of_class(with_context(where, error), [rule], type(optimizer).__name__)


def check_overrides(optimizer: Optimizer, overrides: Mapping[str, Any]) -> None:
    """TypeError or ValueError for an override of what this optimizer, or a group, does not have."""
    of_whole = (*WHOLE_OPTIMIZER, *IGNORED)
    for name in of_whole:
        if name in overrides:
            raise ValueError(f"got {name!r}, wanted an option that a parameter group can have")
    check_options(overrides, type(optimizer).__name__, optimizer._overridable(), of_whole)


def register(
    optimizer: Optimizer,
    core: _core.Optimizer,
    place: Place,
    number: int,
    params: Sequence[torch.Tensor],
    shardings: Sequence[Sharding | None],
    overrides: Sequence[Mapping[str, Any]],
    group: Mapping[str, Any],
    memory: Memory | None,
    first: int,
) -> list[CoreGroup]:
    """Adds parameter group `number` and its parameters, which get numbers from `first` on, to `core`."""
    made: list[CoreGroup] = []
    numbers: list[int] = []  # of these, in `core`
    where = f"parameter group {number}"

    def add(of_param: Mapping[str, Any], rule: str) -> int:
        options = {**group, **of_param}
        hyper = optimizer._hyper_of(rule, options)
        own: Memory | None = of_param.get("memory", memory)
        shared = next((n for n, known in zip(numbers, made) if known.overrides.get("memory", memory) == own), -1)
        budget = own.budget(place) if own and shared < 0 else None
        state, least, master = format_of(options)
        rounding = options["rounding"]
        numbers.append(core.add_group(hyper, state, least, budget, rounding, master, shared, rule))
        made.append(CoreGroup(number, of_param, rule, hyper, rounding, (state, least, master)))
        return len(made) - 1

    text, rule = where, ""
    try:
        add({}, "")
        for i, (param, of, of_param) in enumerate(zip(params, shardings, overrides, strict=True)):
            text = f"{where}, parameter {i}{': override' if of_param else ''}"
            if of_param:
                check_overrides(optimizer, of_param)
            rule = optimizer._rule_for(param, {**group, **of_param})
            known = ((n, one) for n, one in enumerate(made) if one.rule == rule and one.overrides == of_param)
            at = next((n for n, _ in known), -1)
            at = add(of_param, rule) if at < 0 else at
            core.add_param(numbers[at], param, param.requires_grad, of.shard if of else None)
            made[at].params.append(first + i)
    except (TypeError, ValueError, NotImplementedError) as error:
        raise group_error(optimizer, text, rule, error) from error
    return made


def follow_overrides(optimizer: Optimizer) -> None:
    """Builds the core anew if overrides were made or taken back that change something. On an error nothing has
    changed."""
    wanted = []
    for overridden, entries in zip(optimizer._overridden, look(optimizer._params), strict=True):
        overridden.meet(entries)
        wanted.append(overridden.options())
    now: list[Mapping[str, Any]] = [{}] * len(optimizer._params)
    for core_group in optimizer._core_groups:
        for number in core_group.params:
            now[number] = core_group.overrides
    if wanted == now or optimizer._place is None:
        return
    if optimizer._captured:
        raise ValueError(
            "override: got another one after a step was captured in a graph, wanted it before: replays find state where "
            "it was"
        )
    _rebuild(optimizer, wanted, optimizer._place)


def _rebuild(optimizer: Optimizer, overrides: Sequence[Mapping[str, Any]], place: Place) -> None:
    """A core with these overrides, and all that the present one has."""
    old = optimizer._core
    core = optimizer._new_core(optimizer._threads, place)
    core_groups: list[CoreGroup] = []
    first = 0
    for number, (group, members) in enumerate(zip(optimizer.param_groups, optimizer._members, strict=True)):
        end = first + len(members)
        core_groups += optimizer._register(
            core, place, number, members, optimizer._shardings[first:end], overrides[first:end], group,
            optimizer._budgets[number], first,
        )  # fmt: skip
        first = end
    old.onload()
    with KeptErrors() as kept:
        for number in range(first):
            formats.carry_over(old, core, number, kept)
        report = old.report()
        optimizer._steps_before += report["steps"]
        optimizer._skipped_before += report["skipped_steps"]
        optimizer._core, optimizer._core_groups = core, core_groups
        optimizer._with_state = -1
        formats.show_state(optimizer)
