"""A new core in place of the one that there is, with its state: for overrides that were made, or taken back, after the
optimizer was, and for parameters that could not be stepped before."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from lowtide import _core
from lowtide.checks.kept_errors import KeptErrors
from lowtide.checks.values import expect
from lowtide.devices.places import HOST, stand_in
from lowtide.engine.engine import RESIDUAL, Engine, Examined, examine
from lowtide.engine.groups import CoreGroup, Members, register
from lowtide.options.overrides import look


def follow_overrides(engine: Engine, groups: Sequence[dict[str, Any]], show: Callable[[], None]) -> None:
    """Builds the core anew if overrides were made or taken back that change something, and then calls `show`. On an error
    nothing has changed."""
    wanted = []
    for overridden, entries in zip(engine.overridden, look(engine.params), strict=True):
        overridden.meet(entries)
        wanted.append(overridden.options())
    now: list[Mapping[str, Any]] = [{}] * len(engine.params)
    for core_group in engine.groups:
        for number in core_group.params:
            now[number] = core_group.overrides
    if wanted == now or engine.place is None:
        return
    got = "another one after a step was captured in a graph"
    expect(not engine.captured, "override", got, "it before: replays find state where it was")
    _rebuild(engine, groups, Examined(engine.place, engine.shardings, engine.known, [*engine.foreign]), wanted)
    show()


def take_in(
    engine: Engine, groups: Sequence[dict[str, Any]], numbers: Sequence[int], show: Callable[[], None]
) -> None:
    """Has the core step foreign parameters that have a gradient now, if they have become such that it can; `show` is
    called then. ValueError, TypeError or NotImplementedError, naming the parameter, if not: nothing has changed."""
    place = engine.place if len(engine.foreign) < len(engine.params) else None
    known, shardings = list(engine.known), list(engine.shardings)
    names = [name for group in groups for name in group.get("param_names", [""] * len(group["params"]))]
    for number in numbers:
        name = f" ({names[number]})" if names[number] else ""
        shardings[number], here = examine(engine.params[number], place, f"parameter {number}{name}, which has a gradient")
        known[number], place = engine.params[number], place or here
    expect(not engine.captured, f"parameter {numbers[0]}", "its first gradient after a step was captured", "it before")
    foreign = [i for i in engine.foreign if i not in numbers]
    place = place or HOST
    for i in foreign:
        known[i] = stand_in(place)
    wanted = [overridden.options() for overridden in engine.overridden]
    _rebuild(engine, groups, Examined(place, shardings, known, foreign), wanted)
    show()


def _rebuild(
    engine: Engine, groups: Sequence[dict[str, Any]], now: Examined, wanted: Sequence[Mapping[str, Any]]
) -> None:
    """Gives `engine` another core, with the state that it has. now: its parameters, by number; wanted: their overrides."""
    old, core = engine.core, engine.new_core(engine.threads, now.place)
    core_groups: list[CoreGroup] = []
    first = 0
    for number, (group, params) in enumerate(zip(groups, engine.members, strict=True)):
        end = first + len(params)
        members = Members(now.known[first:end], now.shardings[first:end], wanted[first:end], engine.memories[number])
        core_groups += register(core, engine.family, now.place, number, group, members, first)
        first = end
    old.onload()
    with KeptErrors() as kept:
        for number in range(first):
            _carry_over(old, core, number, kept)
        report = old.report()
        engine.steps_before += report["steps"]
        engine.skipped_before += report["skipped_steps"]
        engine.adopt(core, now, core_groups)


def _carry_over(old: _core.Optimizer, new: _core.Optimizer, number: int, kept: KeptErrors) -> None:
    """Gives a parameter the state that it has in another core, decoded and encoded if its format is another one.
    ValueError if it has other states there."""
    steps = old.step_count(number)
    if old.has_state(number) and steps > 0:
        had, wanted = ([name for name, _ in core.states_of(number)] for core in (old, new))
        expect(had == wanted, f"override of parameter {number}, which has {', '.join(had)}", "an option that makes it "
               f"{', '.join(wanted)}", "amsgrad, centered and momentum as they were at the first step")  # fmt: skip
        tensors = old.read_state(number)
        if len(tensors) > 1:  # with buffers
            new.allocate_state(number)
            taken = list(tensors)
            if old.state_codec(number) != new.state_codec(number):
                taken = [RESIDUAL]
                for k in range(len(old.states_of(number))):
                    kept.call(new.import_state, number, k, old.export_state(number, k))
            live = new.read_state(number)
            same = (name for name in taken if name in live and name in tensors and live[name].dtype == tensors[name].dtype)
            kept.call(new.write_state, number, {**live, **{name: tensors[name] for name in same}})
    new.set_step_count(number, steps)
