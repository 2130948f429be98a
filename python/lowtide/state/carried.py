"""Numbers that are carried from step to step beside states, in dicts: NAdam's "mu_product" (as in torch.optim),
Schedule-Free's "weight_sum", "lr_max" and "switches" (of its weights since the last step), Prodigy's "d", "d_max",
"d_numerator" and "k", which all its parameters share. They depend on the options of all steps so far. A dict's entries have them,
but those of torch.optim and of earlier versions may lack NAdam's."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import lru_cache
from typing import Any

import torch

from lowtide import _core
from lowtide.checks.values import check_tensor, expect, number
from lowtide.engine.engine import Engine
from lowtide.engine.family import Family

PRODUCT = "mu_product"

Numbers = dict[str, float]


@lru_cache(maxsize=64)
def of_hyper(rule: str, hyper: tuple[tuple[str, float], ...], step: int) -> Numbers:
    """The carried numbers of a rule with these hyper-parameters of the core."""
    return _core.carried_as_now(rule, dict(hyper), step)  # loops over steps; most parameters share the result


def as_now(family: Family, options: Mapping[str, Any], step: int) -> Numbers:
    """A parameter's carried numbers after `step` steps with these options. Empty for most rules."""
    rule = family.core_rule
    return of_hyper(rule, tuple(family.hyper_of(rule, options).items()), step)


def estimate_of(engine: Engine, options: Mapping[str, Any]) -> Numbers:
    """The carried numbers that all parameters share (`Family.sums`), also those that have not been stepped yet. options: of any
    group, whose d0 counts until a step has moved something."""
    number = next((i for i in range(len(engine.params)) if engine.core_of(i).step_count(i)), 0)
    numbers = engine.core_of(number).carried(number)
    return numbers if numbers["k"] else as_now(engine.family, options, 0)


def own_numbers(engine: Engine, groups: Sequence[dict[str, Any]]) -> dict[int, Numbers]:
    """The carried numbers of parameters that have state, by number."""
    found = dict[int, Numbers]()
    shared = estimate_of(engine, groups[0]) if engine.family.sums and engine.params else None
    for each in engine.groups:
        for i in each.params:
            core = engine.core_of(i)
            if not (numbers := core.carried(i)):
                break  # a group's rule has some for all parameters or for none
            if core.has_state(i):
                found[i] = shared or numbers
    return found


def read_number(saved: Any, name: str, where: str) -> float:
    """The number `name` in an entry. Raises ValueError for anything else."""
    where = f"{where}, {name}"
    check_tensor(saved, where)
    one = saved.numel() == 1 and not saved.is_complex()
    expect(one, where, f"a {saved.dtype} tensor of shape {tuple(saved.shape)}", "one real element")
    return _checked(float(saved), name, where)


def read_carried(names: Numbers, entry: Mapping[str, Any], where: str, whole: bool = True) -> Numbers | None:
    """The carried numbers in an entry; None: it has none. names: of those that its parameter has. whole: it has to have those that
    every saved entry has. Raises ValueError if some are missing."""
    missing = [name for name in names if name not in entry]
    if len(missing) == len(names):
        needed = [name for name in names if whole and name != PRODUCT]
        expect(not needed, where, f"no {', '.join(needed)}", "what state_dict() has: the options of all steps so far decide it")
        return None
    expect(not missing, where, f"no {', '.join(missing)} beside {', '.join(sorted(names.keys() - {*missing}))}", "all of them")
    return {name: read_number(entry[name], name, where) for name in names}


def of_group(group: Mapping[str, Any], names: Sequence[str], where: str) -> Numbers:
    """These numbers of a library that keeps them in groups. Raises ValueError or TypeError for anything else."""
    return {name: _checked(number(name, group[name]), name, f"{where}, {name} of its group") for name in names}


def _checked(value: float, name: str, where: str) -> float:
    least, most, whole = _core.carried_range(name)
    valid = least <= value <= most and (not whole or value.is_integer())
    expect(valid, where, repr(value), f"a {'whole ' if whole else ''}number from {least:g} to {most:g}")
    return value


def as_tensors(numbers: Numbers) -> dict[str, torch.Tensor]:
    return {name: torch.tensor(number, dtype=torch.float64) for name, number in numbers.items()}
