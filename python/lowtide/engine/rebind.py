"""Other tensors in the place of parameters: wrappers shard a model, move it or give it other weights, and put what they made
into the groups of an optimizer that was there before."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import torch

from lowtide.checks.values import expect
from lowtide.engine.engine import Engine
from lowtide.engine.examined import Registered, examine_all
from lowtide.engine.rebuild import rebuild
from lowtide.options.overrides import Overridden, look

_ADVICE = "use add_param_group, or build a new optimizer and load the state_dict"


def list_params(groups: Sequence[dict[str, Any]]) -> None:
    """Makes lists of other collections of parameters, which torch makes of those that an optimizer is built with."""
    for number, group in enumerate(groups):
        where, params = f"param_groups[{number}]", group.get("params")
        expect("params" in group, where, f"keys {sorted(map(str, group))}", "'params' among them")
        if not isinstance(params, Iterable) or isinstance(params, (str, set)):
            raise TypeError(f"{where}['params']: got {type(params).__name__}, wanted a list of tensors")
        group["params"] = [params] if isinstance(params, torch.Tensor) else list(params)


def check_tensors(groups: Sequence[dict[str, Any]]) -> None:
    for number, group in enumerate(groups):
        for i, param in enumerate(group["params"]):
            if not isinstance(param, torch.Tensor):
                raise TypeError(f"param_groups[{number}]['params'][{i}]: got {type(param).__name__}, wanted a tensor")


def heirs(engine: Engine, groups: Sequence[dict[str, Any]], kept: Sequence[int]) -> list[int]:
    """The number of the parameter that each tensor in the groups, in order, stands for: the one that it is, else the one
    whose place it has. kept: each group's number when it was added. ValueError if there are other numbers of tensors,
    or one of another shape."""
    known = {id(param): number for number, param in enumerate(engine.params)}
    first = [sum(map(len, engine.members[:number])) for number in kept]
    found: list[int] = []
    for number, group in enumerate(groups):
        where, tensors, before = f"param_groups[{number}]['params']", group["params"], engine.members[kept[number]]
        expect(len(tensors) == len(before), where, f"{len(tensors)} tensors", f"{len(before)} as registered: {_ADVICE}")
        for i, tensor in enumerate(tensors):
            source = known.get(id(tensor), first[number] + i)
            got, wanted = (tuple(each.shape) for each in (tensor, engine.params[source]))
            expect(got == wanted, f"{where}[{i}]", f"other tensors than those registered, of shape {got}",
                   f"shape {wanted}: {_ADVICE}")  # fmt: skip
            found.append(source)
    distinct = len(set(found)) == len(found)
    expect(distinct, "param_groups", "other tensors beside ones that have changed places", f"either alone: {_ADVICE}")
    return found


def rebind(
    engine: Engine, groups: Sequence[dict[str, Any]], kept: Sequence[int], sources: Sequence[int] | None
) -> None:
    """Goes on with the tensors that are in the groups now. sources: see `heirs`; each tensor has the state, the steps and
    the overrides of that parameter. None: all begin anew; overrides stay in groups of as many tensors. Ranks that have
    parts of a parameter must all make the call.

    ValueError, TypeError, NotImplementedError, MemoryError or OSError: nothing has changed."""
    members = [list(group["params"]) for group in groups]
    where = [f"param_groups[{n}]['params'][{i}]" for n, each in enumerate(members) for i in range(len(each))]
    params = [param for each in members for param in each]
    expect(len({*map(id, params)}) == len(params), "param_groups", "the same tensor more than once", "each once")
    got = "other tensors than those registered after a step was captured in a graph"
    expect(not engine.captured, "param_groups", got, "them before: replays find memory where it was")
    overridden: list[Overridden] = []
    found = iter(look(params))
    for number, each in enumerate(members):
        first = sum(map(len, engine.members[: kept[number]]))
        alike = len(each) == len(engine.members[kept[number]])
        for i in range(len(each)):
            source = sources[len(overridden)] if sources else first + i
            had = engine.overridden[source] if sources or alike else Overridden()
            overridden.append(had.passed_on(next(found)))
    now = examine_all(params, where, (), engine.family.MAY_WAIT)
    for i, source in enumerate(sources or ()):
        got = f"a {params[i].dtype} tensor on {params[i].device} in the place of one that has taken steps"
        wanted = "one that can be stepped, whose state stays, or a new optimizer without it"
        expect(now.places[i] is not None or not engine.core.step_count(source), where[i], got, wanted)
    memories = [engine.memories[number] for number in kept]
    rebuild(engine, groups, Registered(members, now, overridden, memories), sources or [-1] * len(params))
