"""Reads state dicts of Muon and NorMuon from the package dion.

    {"state": {number: {"momentum": of the parameter's shape} of a matrix, with NorMuon also "variance_neuron": (..., rows, 1),
                       {"momentum", "variance": of the parameter's shape} of what AdamW steps},
     "param_groups": [{"algorithm": "muon", "normuon" or "adamw", "step": steps, "lr", "mu", "beta1", "beta2", "weight_decay",
                       "epsilon", "nesterov", "adjust_lr", "flatten", "params", with NorMuon also "muon_beta2"}]}

"momentum" of a matrix is μ times itself plus the gradient, as Lowtide's "momentum_buffer".
"""

from __future__ import annotations

from typing import Any

from lowtide.checks.values import check_floats, expect, read_step
from lowtide.devices.sharding import ROW_MOMENT, moment_shape
from lowtide.state.entries import NOTHING, Entry, ParamSpec, check_group, check_keys, entry_of

_OPTIONS = ("algorithm", "step", "lr", "mu", "beta1", "beta2", "weight_decay", "epsilon", "nesterov", "adjust_lr")
_NORMUON = "normuon"
_ADJUSTMENTS = {"spectral_norm": "spectral_unclamped", "rms_norm": "match_rms_adamw"}
_NAMES = {"momentum_buffer": "momentum", "exp_avg": "momentum", "exp_avg_sq": "variance"}  # dion's names of states


def recognizes(state: dict[Any, Any], groups: list[dict[str, Any]]) -> bool:
    del state  # others have "momentum", too
    return any({"algorithm", "mu"} <= set(group) for group in groups)


def read_group(rule: str, group: dict[str, Any], mine: dict[str, Any], where: str) -> dict[str, Any]:
    check_group(group, _OPTIONS, "all options of dion's Muon", rule, ("muon",), "the package dion", where)
    algorithm, adjustment = group["algorithm"], group["adjust_lr"]
    known, wanted = ("muon", _NORMUON) if mine["use_muon"] else ("adamw",), "'muon' or 'normuon' in groups with use_muon, 'adamw' in others"
    expect(algorithm in known, f"{where}['algorithm']", repr(algorithm), wanted)
    expect(not group.get("cautious_wd"), f"{where}['cautious_wd']", True, "False: Lowtide's weight decay has no conditions")
    made = {**mine, "lr": group["lr"], "adamw_lr": None, "weight_decay": group["weight_decay"]}
    if algorithm == "adamw":
        return {**made, "betas": (group["beta1"], group["beta2"]), "adamw_eps": group["epsilon"]}
    expect(adjustment in _ADJUSTMENTS, f"{where}['adjust_lr']", repr(adjustment), f"one of {sorted(_ADJUSTMENTS)}")
    own = {"momentum": group["mu"], "nesterov": group["nesterov"], "eps": group["epsilon"]}
    if algorithm == _NORMUON:
        expect("muon_beta2" in group, where, "no 'muon_beta2'", "all options of dion's NorMuon")
    own["row_beta2"] = group["muon_beta2"] if algorithm == _NORMUON else None
    return {**made, **own, "adjust_lr_fn": _ADJUSTMENTS[adjustment]}


def read_entry(spec: ParamSpec, entry: dict[str, Any], where: str) -> Entry:
    step = read_step(spec.group, f"{where}, step of its group")
    if not entry or step == 0:  # dion has state from the start
        return NOTHING
    names = {name: _NAMES[name] for name in spec.signed if name in _NAMES}
    shapes = dict.fromkeys(names, spec.shape)
    if "momentum_buffer" in names and spec.group["algorithm"] == _NORMUON:
        shapes[ROW_MOMENT] = moment_shape(spec.shape)
        names[ROW_MOMENT] = "variance_neuron"
    check_keys(entry, [*names.values()], where)
    for name, there in names.items():
        expect(there in entry, where, f"no {there!r}", f"{' and '.join(map(repr, names.values()))}")
        check_floats(entry[there], f"{where}, {there}", shapes[name])
    moments = {name: entry[there] for name, there in names.items()}
    if ROW_MOMENT in moments:
        moments[ROW_MOMENT] = moments[ROW_MOMENT].float()
    return entry_of(spec, step, moments)
