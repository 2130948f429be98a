"""Replaces the core and carries its state over, when overrides change, parameters become steppable, wrappers swap tensors,
or an option changes which states exist."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from lowtide.checks.kept_errors import KeptErrors
from lowtide.checks.values import expect
from lowtide.devices.sharding import Recut
from lowtide.engine.cores import Core, Cores
from lowtide.engine.engine import RESIDUAL, Engine
from lowtide.engine.examined import Examined, Registered, examine
from lowtide.engine.groups import fixed_options
from lowtide.memory.budgets import Memory
from lowtide.options.overrides import look


def add_group(
    engine: Engine, groups: Sequence[dict[str, Any]], memory: Memory | None, show: Callable[[], None]
) -> None:
    """Takes in the last one of the parameter groups, whose own budget is `memory`. Where it changes what devices have of the
    optimizer's, the cores are built anew, and `show` is called. On an error nothing has changed."""
    of, shares = engine.settle(groups, engine.with_group(groups, memory), len(engine.params))
    before = engine.shares.of_all
    if all(share == before[place] for place, share in shares.of_all.items() if place in before):
        engine.add(groups, of, shares)
        return
    got = "parameters on another device after a step was captured in a graph"
    expect(not engine.captured, "add_param_group", got, "them before: replays find state where it was")
    added = len(of.overridden) - len(engine.params)
    rebuild(engine, groups, of, [*range(len(engine.params)), *[-1] * added])
    show()


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
    if wanted == now or not engine.cores:
        return
    got = "another one after a step was captured in a graph"
    expect(not engine.captured, "override", got, "it before: replays find state where it was")
    rebuild(engine, groups, engine.registered())
    show()


def take_in(
    engine: Engine, groups: Sequence[dict[str, Any]], numbers: Sequence[int], show: Callable[[], None]
) -> None:
    """Has the core step foreign parameters that have a gradient now, if they have become such that it can; `show` is
    called then. ValueError, TypeError or NotImplementedError, naming the parameter, if not: nothing has changed."""
    now = Examined(list(engine.places), list(engine.shardings))
    names = [name for group in groups for name in group.get("param_names", [""] * len(group["params"]))]
    for number in numbers:
        name = f" ({names[number]})" if names[number] else ""
        where = f"parameter {number}{name}, which has a gradient"
        now.shardings[number], now.places[number] = examine(engine.params[number], where)
    expect(not engine.captured, f"parameter {numbers[0]}", "its first gradient after a step was captured", "it before")
    rebuild(engine, groups, engine.registered()._replace(params=now))
    show()


def follow_moves(engine: Engine, groups: Sequence[dict[str, Any]], show: Callable[[], None]) -> bool:
    """Builds the cores anew for parameters that are on other devices or of another dtype than at registration, and calls
    `show`; whether there are any. Only before the first step, as torch.optim follows them: state does not move by itself, and
    a dtype decides what `master` keeps. ValueError, TypeError or NotImplementedError for one that cannot be stepped there:
    nothing has changed."""
    if engine.captured or any(map(engine.core.step_count, range(len(engine.params)))):
        return False
    now = Examined(list(engine.places), list(engine.shardings))
    for number, param in enumerate(engine.params):
        if now.places[number]:
            now.shardings[number], now.places[number] = examine(param, f"parameter {number}")
    of, _ = engine.settle(groups, engine.registered()._replace(params=now))
    if of.params.places == engine.places and [param.dtype for param in engine.params] == engine.dtypes:
        return False
    rebuild(engine, groups, of)
    show()
    return True


def follow_states(engine: Engine, groups: Sequence[dict[str, Any]], carry: bool) -> Callable[[], None]:
    """Builds the cores anew for options of these groups that decide which states there are (amsgrad, centered, nesterov, a
    momentum). carry: with the state that there is, else without any. Returns what goes back to the cores of before. On an
    error nothing has changed."""
    got = "amsgrad, centered, nesterov or momentum changed after a step was captured in a graph"
    expect(not engine.captured, "param_groups", got, "them as they were: replays find state where it was")
    before, same = (engine.cores, engine.groups, engine.shares, engine.core), engine.registered()
    counts, dtypes = (engine.steps_before, engine.skipped_before), engine.dtypes
    rebuild(engine, groups, same, None if carry else [-1] * len(engine.params))

    def back() -> None:
        engine.adopt(before[0], same.params, *before[1:3])
        engine.core = before[3]
        engine.steps_before, engine.skipped_before = counts
        engine.dtypes = dtypes

    return back


def rebuild(
    engine: Engine, groups: Sequence[dict[str, Any]], of: Registered, sources: Sequence[int] | None = None
) -> None:
    """Gives `engine` other cores, and these parameters. sources: the numbers that they have had, in order, whose state and
    steps go with them; None: the same ones. Numbers of -1 begin anew. On an error nothing has changed."""
    of, shares = engine.settle(groups, of)
    now = of.params
    sources = range(len(of.overridden)) if sources is None else sources
    old = engine.core
    cores = {place: engine.new_core(engine.threads, place, shares) for place in engine.wanted_places(now.places)}
    core_groups = engine.register(cores, len(cores) > 1, groups, of, shares)
    core = Cores(cores, now.places, core_groups, False, shares.told) if len(cores) > 1 else next(iter(cores.values()))
    old.onload()
    with KeptErrors() as kept:
        for number, source in enumerate(sources):
            if source >= 0:
                recut = Recut(engine.shardings[source], now.shardings[number], f"state of parameter {number}")
                _carry_over(old, source, core, number, recut, kept)
        report = old.report()
        engine.steps_before += report["steps"]
        engine.skipped_before += report["skipped_steps"]
        engine.members, engine.overridden, engine.memories = [*map(list, of.members)], of.overridden, of.memories
        engine.fixed = [fixed_options(engine.family, group) for group in groups]
        engine.adopt(cores, now, core_groups, shares)


def _carry_over(
    old: Core, source: int, new: Core, number: int, recut: Recut, kept: KeptErrors
) -> None:
    """Gives a parameter the state that it, or another one, has in another core, decoded and encoded if its format is another
    one. ValueError if it has other states there."""
    steps = old.step_count(source)
    if old.has_state(source) and steps > 0:
        had, wanted = ([name for name, _ in core.states_of(n)] for core, n in ((old, source), (new, number)))
        expect(had == wanted, f"override of parameter {number}, which has {', '.join(had)}", "an option that makes it "
               f"{', '.join(wanted)}", "amsgrad, centered and momentum as they were at the first step")  # fmt: skip
        tensors = old.read_state(source)
        if len(tensors) > 1:  # with buffers
            new.allocate_state(number)
            live = new.read_state(number)
            taken = [name for name in tensors if name != "step"]
            if old.state_codec(source) != new.state_codec(number):
                taken = [name for name in taken if name == RESIDUAL]
                for k, name in enumerate(had):
                    if name not in tensors or name not in live:  # SGD's buffer: with a residual as the momentum says
                        continue
                    kept.call(new.import_state, number, k, recut(name, old.export_state(source, k)))
                live = new.read_state(number)
            same = (name for name in taken if name in live and live[name].dtype == tensors[name].dtype)
            kept.call(new.write_state, number, {**live, **{name: recut(name, tensors[name], live[name]) for name in same}})
    new.set_step_count(number, steps)
    if numbers := old.carried(source):
        new.set_carried(number, numbers)
    if beta1 := old.evaluating_beta1(source):
        new.mark_evaluating(number, True, beta1)
