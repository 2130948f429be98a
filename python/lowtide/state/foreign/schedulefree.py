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

from lowtide.checks.values import check_floats, expect, read_step
from lowtide.options.hyper import hyper_values
from lowtide.state.carried import of_group
from lowtide.state.entries import NOTHING, Entry, ParamSpec, check_group, check_keys, weights_of

_OPTIONS = ("lr", "betas", "eps", "weight_decay", "warmup_steps", "r", "weight_lr_power", "train_mode")
_NUMBERS = ("weight_sum", "lr_max")  # per group in the dict, per parameter here
_OWN = ("k", *_NUMBERS, "scheduled_lr", "foreach")  # group keys that are not options here


def recognizes(state: dict[Any, Any], groups: list[dict[str, Any]]) -> bool:
    del state  # may be empty, or have only "exp_avg_sq", as others do
    return any({"k", *_NUMBERS} <= set(group) for group in groups)


def read_group(rule: str, group: dict[str, Any], mine: dict[str, Any], where: str) -> dict[str, Any]:
    wanted = "all options of schedulefree.AdamWScheduleFree: no other class is read"
    check_group(group, (*_OPTIONS, "k", *_NUMBERS), wanted, rule, ("schedulefree",), "the package schedulefree", where)
    return {**mine, **{key: value for key, value in group.items() if key not in _OWN}}


def read_entry(spec: ParamSpec, entry: dict[str, Any], where: str) -> Entry:
    if not entry:
        return NOTHING
    check_keys(entry, ["z", "exp_avg_sq"], where)
    for name in ("z", "exp_avg_sq"):
        expect(name in entry, where, f"no {name!r}", "'z' and 'exp_avg_sq'")
    check_floats(entry["z"], f"{where}, z", spec.shape)
    weights, group = weights_of(spec, where), spec.group
    step = read_step({"step": group["k"]}, f"{where}, k of its group")
    expect(step > 0, f"{where}, k of its group", step, "1 or more: there is state")
    numbers = of_group(group, _NUMBERS, where)
    share = 1.0 if group["train_mode"] else hyper_values(("beta1", "beta2"), group)[0]
    z_minus_y = share * (entry["z"].detach().to("cpu", torch.float32) - weights)
    moments = {"z_minus_y": z_minus_y, "exp_avg_sq": entry["exp_avg_sq"]}
    # "switches" separates the random bits of switches between two steps. Weights x mean that there was one switch.
    return Entry(step, moments, True, {**numbers, "switches": float(not group["train_mode"])})
