"""Checks parameter groups of a state_dict from any library, and converts them to this optimizer's groups."""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, Protocol

from lowtide import _core
from lowtide.checks.values import expect
from lowtide.engine.engine import Engine
from lowtide.options.options import FIXED, check_kinds
from lowtide.state import torch_dict
from lowtide.state.entries import Entry, ParamSpec
from lowtide.state.foreign import bitsandbytes, dion, flashoptim, prodigyopt, schedulefree, torchao
from lowtide.state.format import MODE, NORMS, OWN_KEYS, SEED, SPREAD, STAMP, is_stamped, read_norms, read_stamp


class Reader(Protocol):
    """A module of `state.foreign`. Functions raise ValueError with the value and what was wanted."""

    def recognizes(self, state: dict[Any, Any], groups: list[dict[str, Any]]) -> bool:
        """True if the two halves of a state_dict come from this library."""

    def read_group(self, rule: str, group: dict[str, Any], mine: dict[str, Any], where: str) -> dict[str, Any]:
        """The options of `group` under Lowtide's names. mine: hyper-parameters of the optimizer's group, for those that `group`
        lacks."""

    def read_entry(self, spec: ParamSpec, entry: dict[str, Any], where: str) -> Entry:
        """The state of one parameter."""


READERS: tuple[Reader, ...] = (dion, schedulefree, prodigyopt, bitsandbytes, torchao, flashoptim)


class Groups(NamedTuple):
    """The checked groups of a dict."""

    groups: list[dict[str, Any]]  # the optimizer's new groups
    numbers: dict[Any, int]  # the parameter number of every id in the dict
    codecs: list[str] | None  # the format of each parameter's uint8 codes; None: not Lowtide's dict
    spread: bool = False  # the dict contains FSDP1's parameters
    saved: Sequence[dict[str, Any]] = ()  # the groups in the dict
    anew: bool = False  # options of a torch.optim dict require states other than the current ones


def read_groups(
    engine: Engine,
    live: Sequence[dict[str, Any]],
    state_dict: dict[str, Any],
    reader: Reader | None = None,
    copied: Callable[[Any], Any] = copy.deepcopy,
) -> Groups:
    """Raises ValueError, naming the difference, for groups that do not fit the live ones. reader: reads the dict's library,
    unless that is Lowtide or torch.optim. copied: copies an option of the dict, for the groups to own; copying millions of
    values takes seconds."""
    saved = state_dict["param_groups"]
    expect(len(saved) == len(live), "param_groups", f"{len(saved)} groups", f"{len(live)}")
    ours = reader is None and any(map(is_stamped, saved))
    groups: list[dict[str, Any]] = []
    numbers: dict[Any, int] = {}
    saved_codecs: list[str] = []
    spread: set[bool] = set()
    anew = False
    for n, (group, mine) in enumerate(zip(saved, live, strict=True)):
        where = f"param_groups[{n}]"
        expect(isinstance(group, dict), where, type(group).__name__, "a dict")
        params: Any = group.get("params")
        expect(isinstance(params, (list, range)), f"{where}['params']", type(params).__name__, "a list")
        expect(len(params) == len(mine["params"]), f"{where}['params']", f"{len(params)} parameters", len(mine["params"]))
        for key in params:
            expect(isinstance(key, (int, str)) and key not in numbers, f"{where}['params']", repr(key), "distinct ids")
            numbers[key] = len(numbers)
        made: dict[str, Any] = {}
        fixed = (*FIXED, *engine.family.FIXED)  # these options belong to the live tensors
        for key in ("params", *OWN_KEYS, *fixed):
            if key in mine:
                made[key] = mine[key]
        if reader:
            names = engine.family.option_names()
            group = reader.read_group(engine.family.rule, group, {name: mine[name] for name in names}, where)
        elif ours:
            made[SEED] = read_stamp(group, saved[0], engine.family.rule, mine[SEED], where)
            saved_codecs += [str(group.get("state"))] * len(params)
            spread.add(bool(group.get(SPREAD, False)))
        else:
            torch_dict.check_group(engine, n, mine, group, where)
            made |= {name: mine[name] for name in engine.family.option_names()}
        of_torch = () if ours or reader else torch_dict.IMPLEMENTATION_KEYS
        drop = ("params", SPREAD, NORMS, *STAMP, *fixed, *of_torch)
        for key, value in group.items():
            if key not in drop:
                made[key] = copied(value)
        for key in ("maximize", engine.family.MOMENTS):
            if key in mine:
                made.setdefault(key, mine[key])  # older dicts lack it, and torch accepts them
        if "param_names" in mine:
            made.setdefault("param_names", mine["param_names"])
        if NORMS in mine:
            made[NORMS] = read_norms(group, where)
        if MODE in mine:
            made.setdefault(MODE, True)
            expect(isinstance(made[MODE], bool), f"{where}['{MODE}']", repr(made[MODE]), "True or False")
        groups.append(made)
        try:
            for core_group in engine.groups:
                if core_group.of != n:
                    continue
                options = core_group.options_of({n: made})
                check_kinds({"rounding": options["rounding"]}, where)
                hyper, rounding = engine.family.hyper_of(core_group.rule, options), core_group.options["rounding"]
                if hyper == core_group.pushed and options["rounding"] == rounding:  # the core has accepted these
                    continue
                rule = core_group.rule or engine.family.core_rule
                codecs = [engine.core_of(i).state_codec(i) for i in core_group.params]
                common = (rule, hyper, {**core_group.options, "rounding": options["rounding"]})
                try:
                    _core.check_group(*common, core_group.pushed, codecs)
                except ValueError:
                    if not of_torch or not engine.family.changed_states(core_group.pushed, hyper):
                        raise
                    _core.check_group(*common, hyper, codecs)
                    anew = True
        except (TypeError, ValueError) as error:
            raise ValueError(f"{where}: {error}") from None
        except KeyError as error:
            raise ValueError(f"{where}: got no {error}, wanted all options of {engine.family.name}") from None
    if engine.family.sums:
        engine.family.check_groups(groups)
    expect(len(spread) < 2, "param_groups", f"{SPREAD!r} in some groups", "it in all or none")
    return Groups(groups, numbers, saved_codecs if ours else None, True in spread, saved, anew)
