"""State dicts of torch.optim's Adam, AdamW, NAdam, SGD, RMSprop, Adagrad and Muon: reading them and writing them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cache
from typing import TYPE_CHECKING, Any

import torch

from lowtide.checks.values import check_tensor, expect, read_step
from lowtide.devices.sharding import local_of
from lowtide.options.hyper import group_key, hyper_values

if TYPE_CHECKING:
    from lowtide.optimizers.optimizer import Optimizer

# Keys of torch.optim's groups that say how a step is carried out, not what it computes.
IMPLEMENTATION_KEYS = ("foreach", "fused", "capturable", "differentiable", "decoupled_weight_decay")
_CLASSES = {
    "adam": "Adam", "adamw": "AdamW", "sgd": "SGD", "adagrad": "Adagrad", "rmsprop": "RMSprop",
    "muon": "Muon",  # since torch 2.9
}  # fmt: skip
_UNCOUNTED = ("sgd", "muon")  # of classes that keep no number of steps
# NAdam's product of μ is kept by torch in float32, and computed here: by how much they may differ.
_PRODUCT_TOLERANCE = 1e-4


def class_of(rule: str, group: Mapping[str, Any]) -> str | None:
    """The class of torch.optim that computes what `rule` does with the options of `group`; None if there is none."""
    cls = "NAdam" if rule in ("adam", "adamw") and group["nesterov"] else _CLASSES.get(rule, "")
    return cls if hasattr(torch.optim, cls) else None


def option_names(optimizer: Optimizer) -> list[str]:
    """Of the hyper-parameters in its groups."""
    return list(dict.fromkeys([*map(group_key, optimizer._hyper_keys), *optimizer._overridable()]))


def options_of(optimizer: Optimizer, groups: Sequence[dict[str, Any]]) -> dict[int, Mapping[str, Any]]:
    """Of each parameter, by number: what holds for it with these groups and its overrides."""
    return {i: each.options(groups) for each in optimizer._core_groups for i in each.params}


@cache
def _template(name: str) -> dict[str, Any]:
    """The options of that class's groups."""
    group: dict[str, Any] = getattr(torch.optim, name)([torch.zeros(1, 1)]).state_dict()["param_groups"][0]
    return group


def check_group(optimizer: Optimizer, number: int, group: dict[str, Any], where: str) -> None:
    """Raises ValueError unless `group` comes from the torch.optim class that computes what the optimizer's group of this
    number does."""
    mine, rule = optimizer.param_groups[number], optimizer._rule
    cls = class_of(rule, mine)
    expect(cls is not None, where, "a group without 'lowtide_format'", f"a state_dict of lowtide's {rule!r}")
    assert cls is not None
    name = f"a state_dict of Lowtide's or of torch.optim.{cls}"
    wanted = (set(option_names(optimizer)) & set(_template(cls))) - {"maximize"}
    expect(wanted <= set(group), where, f"no {sorted(wanted - set(group))}", name)
    # torch.optim's classes share keys: what tells another one from this.
    strange = {"momentum_decay", "centered", "lr_decay", "rho", "dampening"} & set(group) - wanted
    expect(not strange, where, sorted(strange), name)
    decoupled = group.get("decoupled_weight_decay", rule == "adamw")
    expect(bool(decoupled) == (rule == "adamw"), f"{where}['decoupled_weight_decay']", decoupled, rule == "adamw")
    if cls == "Muon":
        _check_muon(optimizer, number, where)


def _check_muon(optimizer: Optimizer, number: int, where: str) -> None:
    """Raises ValueError unless torch.optim.Muon can have the parameters and options of this group."""
    parts = [each for each in optimizer._core_groups if each.of == number and each.params]
    others = [i for each in parts if not each.rule for i in each.params]
    alone = "matrices with use_muon=True alone: torch.optim.Muon steps no others"
    expect(not others, where, f"parameters {others[:8]} that AdamW steps", alone)
    maximize = any(each.options(optimizer.param_groups)["maximize"] for each in parts)
    expect(not maximize, f"{where}: maximize", True, "False: torch.optim.Muon does not have it")


def read_entry(
    entry: dict[str, Any],
    live: dict[str, torch.Tensor],
    param: torch.Tensor,
    where: str,
    rule: str,
    group: Mapping[str, Any],
) -> tuple[int, dict[str, torch.Tensor]]:
    """Checks one parameter's entry, of a group with these options, against its live state; returns the number of steps
    and the moments (none: the state holds nothing yet)."""
    names = [name for name in live if name != "step" and not name.endswith("_scale")]
    if rule == "muon":
        names = ["momentum_buffer"]  # also where momentum is 0, and there is none here
    if rule in ("adam", "adamw") and "max_exp_avg_sq" not in names:
        expect("max_exp_avg_sq" not in entry, where, "'max_exp_avg_sq' of amsgrad", "an optimizer without amsgrad")
    if rule == "sgd":
        present = {name for name, value in entry.items() if value is not None and name != "step"}
        expect(present <= {"momentum_buffer"}, where, sorted(map(str, entry)), ["momentum_buffer"])
        names = sorted(present)
    else:
        beside = [] if rule in _UNCOUNTED else ["step", "mu_product"] if class_of(rule, group) == "NAdam" else ["step"]
        wanted = sorted([*beside, *names])
        expect(set(entry) == set(wanted), where, sorted(map(str, entry)), wanted)
    for name in names:
        check_tensor(entry[name], f"{where}, {name}")
        expect(entry[name].is_floating_point(), f"{where}, {name}", entry[name].dtype, "a floating-point tensor")
        expect(entry[name].shape == param.shape, f"{where}, {name}", tuple(entry[name].shape), tuple(param.shape))
    # Where steps are not counted, all that matters is whether the first one, which sets the buffer, is done.
    step = int(bool(names)) if rule in _UNCOUNTED else read_step(entry, where)
    if "mu_product" in entry:
        _check_product(entry["mu_product"], step, group, where)
    if rule == "adagrad" and step == 0:  # torch fills the sum before the first step, the core in it
        initial = group["initial_accumulator_value"]
        expect(bool((entry["sum"] == initial).all()), f"{where}, sum", "other values before the first step", initial)
        return 0, {}
    if rule == "muon":
        rest = _rest(group)
        return (0, {}) if rest == 1 else (step, {name: entry[name].float() / rest for name in names})
    return step, {name: entry[name] for name in names}


def _rest(group: Mapping[str, Any]) -> float:
    """1 - μ: torch.optim.Muon's buffer is the core's times that."""
    return 1 - hyper_values(("momentum",), group)[0]


def _product(group: Mapping[str, Any], step: int) -> float:
    """NAdam's μ₁ … μₜ."""
    beta, decay = hyper_values(("beta1", "momentum_decay"), {**group, "betas": tuple(group["betas"])[:1]})
    product = 1.0
    for t in range(1, step + 1):
        product *= beta * (1 - 0.5 * 0.96 ** (t * decay))
        if product < 2.0**-60:
            break
    return product


def _check_product(saved: Any, step: int, group: Mapping[str, Any], where: str) -> None:
    check_tensor(saved, f"{where}, mu_product")
    expect(saved.numel() == 1, f"{where}, mu_product", tuple(saved.shape), "one element")
    wanted = _product(group, step)
    expect(
        abs(float(saved) - wanted) <= _PRODUCT_TOLERANCE,
        f"{where}, mu_product",
        float(saved),
        f"{wanted} after {step} steps: beta1 and momentum_decay must have been the same in all of them",
    )


def write(optimizer: Optimizer, hidden: Sequence[str]) -> dict[str, Any]:
    """See `Optimizer.torch_state_dict`. `hidden`: keys of Lowtide's groups that torch has no use for."""
    rule = optimizer._rule
    classes = {class_of(rule, group) for group in optimizer.param_groups}
    own = options_of(optimizer, optimizer.param_groups)
    if len(classes) > 1:
        raise ValueError(f"torch_state_dict: got groups of {sorted(map(str, classes))}, wanted one class")
    cls = classes.pop()
    if cls is None:
        raise ValueError(
            f"torch_state_dict: got {rule!r}, wanted one of {sorted(_CLASSES)}: torch.optim has no {rule!r}"
        )
    template = _template(cls)
    foreign = {*hidden, *(set(option_names(optimizer)) - set(template))}
    groups: list[dict[str, Any]] = []
    state: dict[int, dict[str, torch.Tensor]] = {}
    for n, group in enumerate(optimizer.param_groups):
        if cls == "Muon":
            _check_muon(optimizer, n, f"torch_state_dict: group {n}")
        start = sum(len(done["params"]) for done in groups)
        numbers = list(range(start, start + len(group["params"])))
        options = {key: value for key, value in group.items() if key not in foreign}
        if cls == "NAdam":
            options["decoupled_weight_decay"] = rule == "adamw"
        groups.append({**template, **options, "params": numbers})
        for i in numbers:
            if entry := _entry(optimizer, i, rule, group):
                if cls == "NAdam":
                    entry["mu_product"] = torch.tensor(_product(own[i], int(entry["step"])))
                if cls == "Muon":
                    entry["momentum_buffer"] *= _rest(own[i])
                state[i] = entry
    return {"state": state, "param_groups": groups}


def _entry(optimizer: Optimizer, number: int, rule: str, group: Mapping[str, Any]) -> dict[str, torch.Tensor]:
    """Of one parameter; empty if torch would have none."""
    core, of = optimizer._core, optimizer._shardings[number]
    steps = core.step_count(number)
    if core.has_state(number) and steps > 0:
        live = core.state(number)
        names = [name for name, _ in core.states_of(number)]
        entry = {
            name: core.export_state(number, k)
            for k, name in enumerate(names)
            if core.is_paged(number) or name in live
        }
    elif rule == "adagrad":  # torch's has state from the start
        shape = local_of(optimizer._params[number]).shape
        entry = {"sum": torch.full(shape, float(group["initial_accumulator_value"]))}
    else:
        return {}
    if of:
        entry = of.wrap(entry)
    if rule not in _UNCOUNTED:
        entry["step"] = torch.tensor(float(steps))
    return entry
