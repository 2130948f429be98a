"""Reads and writes state dicts of torch.optim's Adam, AdamW, NAdam, SGD, RMSprop, Adagrad and Muon."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cache
from typing import Any

import torch

from lowtide.checks.values import check_floats, expect, number, read_step
from lowtide.devices.sharding import local_of
from lowtide.engine.engine import Engine
from lowtide.options.hyper import hyper_values
from lowtide.state.carried import PRODUCT, of_hyper, read_number
from lowtide.state.entries import NOTHING, Entry
from lowtide.state.format import OWN_KEYS

# Keys of torch.optim's groups that choose how a step is computed, not its result.
IMPLEMENTATION_KEYS = ("foreach", "fused", "capturable", "differentiable", "decoupled_weight_decay")
_CLASSES = {
    "adam": "Adam", "adamw": "AdamW", "sgd": "SGD", "adagrad": "Adagrad", "rmsprop": "RMSprop",
    "muon": "Muon",  # since torch 2.9
}  # fmt: skip
_UNCOUNTED = ("sgd", "muon")  # rules whose torch classes do not count steps


def class_of(rule: str, group: Mapping[str, Any]) -> str | None:
    """The class of torch.optim that computes the same as `rule` with the options of `group`, or None."""
    cls = "NAdam" if rule in ("adam", "adamw") and group.get("nesterov") else _CLASSES.get(rule, "")
    return cls if hasattr(torch.optim, cls) else None


@cache
def _template(name: str) -> dict[str, Any]:
    """The options of a class's groups."""
    group: dict[str, Any] = getattr(torch.optim, name)([torch.zeros(1, 1)]).state_dict()["param_groups"][0]
    return group


def check_group(engine: Engine, of: int, mine: dict[str, Any], group: dict[str, Any], where: str) -> None:
    """Raises ValueError unless `group` comes from the torch.optim class that computes the same as `mine`, the optimizer's group
    number `of`."""
    rule = engine.family.rule
    cls = class_of(rule, mine)
    expect(cls is not None, where, "a group without 'lowtide_format'", f"a state_dict of lowtide's {rule!r}")
    assert cls is not None
    name = f"a state_dict of Lowtide's or of torch.optim.{cls}"
    wanted = (set(engine.family.option_names()) & set(_template(cls))) - {"maximize"}
    expect(wanted <= set(group), where, f"no {sorted(wanted - set(group))}", name)
    # Classes of torch.optim share keys. These keys tell other classes from this one.
    strange = {"momentum_decay", "centered", "lr_decay", "rho", "dampening"} & set(group) - wanted
    expect(not strange, where, sorted(strange), name)
    decoupled = number("decoupled_weight_decay", group.get("decoupled_weight_decay", rule == "adamw")) != 0
    other = "AdamW" if decoupled else "Adam"
    if cls == "NAdam":
        other = f"NAdam(decoupled_weight_decay={bool(decoupled)})"
    here = (
        f"{rule == 'adamw'}, as weights decay here. Load it into lowtide.{other}; or, to take over the moments alone, delete "
        "that key from its groups"
    )
    expect(bool(decoupled) == (rule == "adamw"), f"{where}['decoupled_weight_decay']", decoupled, here)
    if cls == "Muon":
        _check_muon(engine, of, mine, where)


def _check_muon(engine: Engine, number: int, mine: dict[str, Any], where: str) -> None:
    """Raises ValueError unless torch.optim.Muon supports the parameters and options of this group."""
    parts = [each for each in engine.groups if each.of == number and each.params]
    others = [i for each in parts for i in each.params if not each.rule or engine.tensors[i].ndim != 2]
    alone = "matrices alone (use_muon=True): torch.optim.Muon steps no others"
    expect(not others, where, f"parameters {others[:8]} that AdamW steps, or stacks of matrices", alone)
    maximize = any(each.options_of({number: mine})["maximize"] for each in parts)
    expect(not maximize, f"{where}: maximize", True, "False: torch.optim.Muon does not have it")
    rows = any(engine.family.has_moments(each.rule, each.options_of({number: mine})) for each in parts)
    expect(not rows, f"{where}: row_beta2", mine.get("row_beta2"), "None: torch.optim.Muon has no row moments")
    coefficients = mine["ns_coefficients"]
    alike = not isinstance(coefficients, str) and len(coefficients) == 3 and isinstance(coefficients[0], (int, float))
    expect(alike, f"{where}: ns_coefficients", coefficients, "3 numbers: torch.optim.Muon has the same for each iteration")


def read_entry(
    entry: dict[str, Any], names: list[str], shape: torch.Size, rule: str, group: Mapping[str, Any], where: str
) -> Entry:
    """Reads the entry of a parameter of this shape, with states of these `names`, in a group with these options. Raises
    ValueError if it does not fit."""
    if rule == "muon":
        names = ["momentum_buffer"]  # torch has it even if momentum is 0
    if rule in ("adam", "adamw") and "max_exp_avg_sq" not in names:
        expect("max_exp_avg_sq" not in entry, where, "'max_exp_avg_sq' of amsgrad", "an optimizer without amsgrad")
    if rule == "sgd":
        present = {name for name, value in entry.items() if value is not None and name != "step"}
        expect(present <= {"momentum_buffer"}, where, sorted(map(str, entry)), ["momentum_buffer"])
        names = sorted(present)
    else:
        beside = [] if rule in _UNCOUNTED else ["step", PRODUCT] if class_of(rule, group) == "NAdam" else ["step"]
        wanted = sorted([*beside, *names])
        expect(set(entry) == set(wanted), where, sorted(map(str, entry)), wanted)
    for name in names:
        check_floats(entry[name], f"{where}, {name}", shape)
    # If steps are not counted, it only matters whether the first one, which sets the buffer, has been taken.
    step = int(bool(names)) if rule in _UNCOUNTED else read_step(entry, where)
    carried = _read_product(entry[PRODUCT], step, group, where) if PRODUCT in entry else None
    if rule == "adagrad" and step == 0:  # torch fills the sum before the first step, the core in it
        initial = group["initial_accumulator_value"]
        expect(bool((entry["sum"] == initial).all()), f"{where}, sum", "other values before the first step", initial)
        return NOTHING
    if rule == "muon":
        rest = _rest(group)
        return NOTHING if rest == 1 else Entry(step, {name: entry[name].float() / rest for name in names}, True)
    return Entry(step, {name: entry[name] for name in names}, True, carried)


def _rest(group: Mapping[str, Any]) -> float:
    """1 - μ. torch.optim.Muon's buffer is this times the core's."""
    return 1 - hyper_values(("momentum",), group)[0]


def _read_product(saved: Any, step: int, group: Mapping[str, Any], where: str) -> dict[str, float] | None:
    """NAdam's product of μ, or None if the options imply it, up to the float32 rounding of each of torch's steps."""
    beta, decay = hyper_values(("beta1", "momentum_decay"), {**group, "betas": tuple(group["betas"])[:1]})
    product = read_number(saved, PRODUCT, where)
    as_now = of_hyper("adamw", (("beta1", beta), ("momentum_decay", decay), ("nesterov", True)), step)[PRODUCT]
    return None if abs(product - as_now) <= step * 2.0**-23 * as_now + 1e-30 else {PRODUCT: product}


def write(engine: Engine, param_groups: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """See `Optimizer.torch_state_dict`."""
    rule = engine.family.rule
    classes = {class_of(rule, group) for group in param_groups}
    own = engine.options_of(param_groups)
    expect(len(classes) <= 1, "torch_state_dict", f"groups of {sorted(map(str, classes))}", "one class")
    cls = classes.pop()
    wanted = f"one of {sorted(_CLASSES)}: torch.optim has no {rule!r}"
    expect(cls is not None, "torch_state_dict", repr(rule), wanted)
    assert cls is not None
    template = _template(cls)
    foreign = {*OWN_KEYS, *(set(engine.family.option_names()) - set(template))}
    groups: list[dict[str, Any]] = []
    state: dict[int, dict[str, torch.Tensor]] = {}
    for n, group in enumerate(param_groups):
        if cls == "Muon":
            _check_muon(engine, n, group, f"torch_state_dict: group {n}")
        start = sum(len(done["params"]) for done in groups)
        numbers = list(range(start, start + len(group["params"])))
        options = {key: value for key, value in group.items() if key not in foreign}
        if cls == "NAdam":
            options["decoupled_weight_decay"] = rule == "adamw"
        groups.append({**template, **options, "params": numbers})
        for i in numbers:
            if entry := _entry(engine, i, group):
                if cls == "NAdam":
                    entry[PRODUCT] = torch.tensor(engine.core_of(i).carried(i)[PRODUCT])
                if cls == "Muon":
                    entry["momentum_buffer"] *= _rest(own[i])
                state[i] = entry
    return {"state": state, "param_groups": groups}


def _entry(engine: Engine, number: int, group: Mapping[str, Any]) -> dict[str, torch.Tensor]:
    """The entry of one parameter; empty if torch would have none."""
    core, of, rule = engine.core_of(number), engine.params[number].sharding, engine.family.rule
    steps = core.step_count(number)
    if core.has_state(number) and steps > 0:
        live = core.state(number)
        names = [name for name, _ in core.states_of(number)]
        entry = {
            name: core.export_state(number, k)
            for k, name in enumerate(names)
            if core.is_paged(number) or name in live
        }
    elif rule == "adagrad" and number not in engine.foreign:  # torch has state from the start
        shape = local_of(engine.tensors[number]).shape
        entry = {"sum": torch.full(shape, float(group["initial_accumulator_value"]))}
    else:
        return {}
    if of:
        entry = of.wrap(entry)
    if rule not in _UNCOUNTED:
        entry["step"] = torch.tensor(float(steps))
    return entry
