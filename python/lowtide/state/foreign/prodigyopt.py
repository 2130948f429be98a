"""Reads state dicts of Prodigy from the package prodigyopt.

    {"state": {number: {"step", "s" and "p0": flat, p0 one zero if all weights were, "exp_avg" (none with β1 = 0), "exp_avg_sq"}},
     "param_groups": [{"lr", "betas", "beta3", "eps", "weight_decay", "d0", "d_coef", "growth_rate", "use_bias_correction",
                       "safeguard_warmup", "decouple", "slice_p", "fsdp_in_use", "d", "d_max", "d_numerator", "k": steps, "d_hat",
                       "d_denom", "params"}]}

The state here is p - p0, so reading needs the model's weights that were saved with the dict.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch

from lowtide.checks.values import check_floats, expect, read_step
from lowtide.state.carried import of_group
from lowtide.state.entries import NOTHING, Entry, ParamSpec, check_group, check_keys, weights_of
from lowtide.state.format import ESTIMATE

# Options of prodigyopt that have one value here: that value, and why.
FIXED = {
    "decouple": (True, "weight decay is decoupled"),
    "slice_p": (1, "s and p - p0 have an element for each weight; state=\"dynamic8\" keeps all state in 4.06 bytes per parameter"),
}
_OPTIONS = (
    "lr", "betas", "beta3", "eps", "weight_decay", "d0", "d_coef", "growth_rate", "use_bias_correction", "safeguard_warmup",
)  # fmt: skip
_OWN = (*FIXED, "fsdp_in_use", "d_hat", "d_denom")  # group keys that are no options here


def check_fixed(options: Mapping[str, Any], where: str) -> None:
    """Raises ValueError for prodigyopt's options that have another value than the only one here."""
    for name, (only, why) in FIXED.items():
        expect(options.get(name, only) == only, f"{where}{name}", options.get(name), f"{only}: {why}")


def recognizes(state: dict[Any, Any], groups: list[dict[str, Any]]) -> bool:
    del state  # may be empty
    return any({"d0", "growth_rate", *ESTIMATE} <= set(group) for group in groups)


def read_group(rule: str, group: dict[str, Any], mine: dict[str, Any], where: str) -> dict[str, Any]:
    wanted = "all options of prodigyopt.Prodigy: no other class is read"
    check_group(group, (*_OPTIONS, *ESTIMATE), wanted, rule, ("prodigy",), "the package prodigyopt", where)
    # Without weight decay its two kinds are one.
    check_fixed(group if group["weight_decay"] else {**group, "decouple": True}, f"{where}: ")
    return {**mine, **{key: value for key, value in group.items() if key not in _OWN}}


def read_entry(spec: ParamSpec, entry: dict[str, Any], where: str) -> Entry:
    if not entry:
        return NOTHING
    check_keys(entry, ["step", "s", "p0", "exp_avg", "exp_avg_sq"], where)
    for name in ("step", "s", "p0", "exp_avg_sq"):
        expect(name in entry, where, f"no {name!r}", "'step', 's', 'p0' and 'exp_avg_sq'")
    weights = weights_of(spec, where)
    numel = spec.shape.numel()
    check_floats(entry["s"], f"{where}, s", torch.Size([numel]))
    p0 = entry["p0"]
    check_floats(p0, f"{where}, p0", torch.Size([]) if isinstance(p0, torch.Tensor) and p0.ndim == 0 else torch.Size([numel]))
    second = entry["exp_avg_sq"]
    check_floats(second, f"{where}, exp_avg_sq", spec.shape)
    step = read_step(entry, where)
    expect(step > 0, f"{where}, step", step, "1 or more: there is state")
    numbers = of_group(spec.group, ESTIMATE, where)
    first = p0.detach().to("cpu", torch.float32)
    moments = {
        "exp_avg": entry.get("exp_avg", torch.zeros_like(second)),
        "exp_avg_sq": second,
        "s": entry["s"].reshape(spec.shape),
        "p_minus_p0": weights - (first if first.ndim == 0 else first.reshape(spec.shape)),
    }
    return Entry(step, moments, True, numbers)
