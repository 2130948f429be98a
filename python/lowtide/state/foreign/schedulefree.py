"""Reads state dicts of AdamWScheduleFree from the package schedulefree.

    {"state": {number: {"z": of the parameter's shape, "exp_avg_sq": likewise}},
     "param_groups": [{"lr", "betas", "eps", "weight_decay", "warmup_steps", "r", "weight_lr_power", "train_mode",
                       "k": steps, "weight_sum", "lr_max", "scheduled_lr", "foreach", "params"}]}

The state here is z - y, so reading needs the model's weights that were saved with the dict. They are y while train_mode is
True, and x otherwise, with z - y = β1 (z - x).
"""

from __future__ import annotations

from typing import Any

import torch

from lowtide.devices.sharding import local_of
from lowtide.checks.values import check_floats, expect, number, read_step
from lowtide.options.hyper import hyper_values
from lowtide.state.carried import checked
from lowtide.state.entries import NOTHING, Entry, ParamSpec, check_keys

_RULE = "schedulefree"
_OPTIONS = ("lr", "betas", "eps", "weight_decay", "warmup_steps", "r", "weight_lr_power", "train_mode")
_NUMBERS = ("weight_sum", "lr_max")  # per group in the dict, per parameter here
_OWN = ("k", *_NUMBERS, "scheduled_lr", "foreach")  # group keys that are not options here


def recognizes(state: dict[Any, Any], groups: list[dict[str, Any]]) -> bool:
    del state  # may be empty, or have only "exp_avg_sq", as others do
    return any({"k", *_NUMBERS} <= set(group) for group in groups)


def read_group(rule: str, group: dict[str, Any], mine: dict[str, Any], where: str) -> dict[str, Any]:
    expect(rule == _RULE, where, "a group from the package schedulefree", f"a state_dict of lowtide's {rule!r}")
    missing = [key for key in (*_OPTIONS, "k", *_NUMBERS) if key not in group]
    expect(
        not missing, where, f"no {missing}", "all options of schedulefree.AdamWScheduleFree: no other class is read"
    )
    return {**mine, **{key: value for key, value in group.items() if key not in _OWN}}


def read_entry(spec: ParamSpec, entry: dict[str, Any], where: str) -> Entry:
    if not entry:
        return NOTHING
    check_keys(entry, ["z", "exp_avg_sq"], where)
    for name in ("z", "exp_avg_sq"):
        expect(name in entry, where, f"no {name!r}", "'z' and 'exp_avg_sq'")
    check_floats(entry["z"], f"{where}, z", spec.shape)
    expect(not spec.param.is_meta, where, "weights on meta", "the weights that were saved with this dict: load the model first")
    whole = type(local_of(spec.param)) is type(spec.param)
    expect(whole, where, "a DTensor parameter", "a whole one: load before the model is sharded, and carry on by Lowtide's state_dict")
    group = spec.group
    step = read_step({"step": group["k"]}, f"{where}, k of its group")
    expect(step > 0, f"{where}, k of its group", step, "1 or more: there is state")
    numbers: dict[str, float] = {}
    for name in _NUMBERS:
        numbers |= checked({name: number(name, group[name])}, (name,), f"{where}, {name} of its group")
    share = 1.0 if group["train_mode"] else hyper_values(("beta1", "beta2"), group)[0]
    weights = spec.param.detach().to("cpu", torch.float32)  # a device may lack room for all weights at once
    z_minus_y = share * (entry["z"].detach().to("cpu", torch.float32) - weights)
    moments = {"z_minus_y": z_minus_y, "exp_avg_sq": entry["exp_avg_sq"]}
    # "switches" separates the random bits of switches between two steps. Weights x mean that there was one switch.
    return Entry(step, moments, True, {**numbers, "switches": float(not group["train_mode"])})
