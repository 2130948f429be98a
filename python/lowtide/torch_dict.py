"""State dicts of torch.optim.Adam, AdamW and SGD: reading them and writing them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import torch

from lowtide.checks import check_tensor, expect, group_key, read_step

if TYPE_CHECKING:
    from lowtide.optimizer import Optimizer

# Keys of torch.optim's groups that say how a step is carried out, not what it computes.
IMPLEMENTATION_KEYS = ("foreach", "fused", "capturable", "differentiable", "amsgrad", "decoupled_weight_decay")
_CLASSES: dict[str, type[torch.optim.Adam] | type[torch.optim.SGD]] = {
    "adam": torch.optim.Adam,
    "adamw": torch.optim.AdamW,
    "sgd": torch.optim.SGD,
}


def check_group(group: dict[str, Any], rule: str, hyper_keys: Sequence[str], where: str) -> None:
    """Raises ValueError unless `group` comes from the torch.optim class of `rule`."""
    expect(rule in _CLASSES, where, "a group without 'lowtide_format'", f"a state_dict of lowtide's {rule!r}")
    name = f"a state_dict of Lowtide's or of torch.optim.{_CLASSES[rule].__name__}"
    wanted = {group_key(key) for key in hyper_keys} - {"maximize"} | ({"amsgrad"} if rule != "sgd" else set())
    expect(wanted <= set(group), where, f"no {sorted(wanted - set(group))}", name)
    expect(not group.get("amsgrad"), f"{where}['amsgrad']", "True", "False: the running maximum is not kept")
    decoupled = group.get("decoupled_weight_decay", rule == "adamw")
    wanted_decoupled = rule == "adamw"
    expect(bool(decoupled) == wanted_decoupled, f"{where}['decoupled_weight_decay']", decoupled, wanted_decoupled)


def read_entry(
    entry: dict[str, Any], live: dict[str, torch.Tensor], param: torch.Tensor, where: str
) -> tuple[int, dict[str, torch.Tensor]]:
    """Checks one parameter's entry against its live state; returns the number of steps and the moments."""
    expect("max_exp_avg_sq" not in entry, where, "'max_exp_avg_sq' of amsgrad", "an optimizer without amsgrad")
    momentum_only = "exp_avg" not in live
    names = [name for name in live if name != "step" and not name.endswith("_scale")]
    if momentum_only:
        present = {name for name, value in entry.items() if value is not None and name != "step"}
        expect(present <= {"momentum_buffer"}, where, sorted(map(str, entry)), ["momentum_buffer"])
        names = sorted(present)
    else:
        expect(set(entry) == {"step", *names}, where, sorted(map(str, entry)), sorted(["step", *names]))
    for name in names:
        check_tensor(entry[name], f"{where}, {name}")
        expect(entry[name].is_floating_point(), f"{where}, {name}", entry[name].dtype, "a floating-point tensor")
        expect(entry[name].shape == param.shape, f"{where}, {name}", tuple(entry[name].shape), tuple(param.shape))
    # torch.optim.SGD does not count steps; all that matters is whether the first one, which sets the buffer, is done.
    step = int(bool(names)) if momentum_only else read_step(entry, where)
    return step, {name: entry[name] for name in names}


def write(optimizer: Optimizer, hidden: Sequence[str]) -> dict[str, Any]:
    """See `Optimizer.torch_state_dict`. `hidden`: keys of Lowtide's groups that torch has no use for."""
    core, rule = optimizer._core, optimizer._rule
    if rule not in _CLASSES:
        raise ValueError(
            f"torch_state_dict: got {rule!r}, wanted one of {sorted(_CLASSES)}: torch.optim has no {rule!r}"
        )
    template = _CLASSES[rule]([torch.zeros(1)]).state_dict()["param_groups"][0]
    groups: list[dict[str, Any]] = []
    state: dict[int, dict[str, torch.Tensor]] = {}
    for group in optimizer.param_groups:
        start = sum(len(done["params"]) for done in groups)
        numbers = list(range(start, start + len(group["params"])))
        options = {key: value for key, value in group.items() if key not in hidden}
        groups.append({**template, **options, "params": numbers})
        for i in numbers:
            live = core.state(i) if core.has_state(i) else {}
            if live and int(live["step"]) > 0:
                names = [name for name in core.state_names() if core.is_paged(i) or name in live]
                entry = {name: core.export_state(i, k) for k, name in enumerate(names)}
                if of := optimizer._shardings[i]:
                    entry = of.wrap(entry)
                if rule != "sgd":
                    entry["step"] = torch.tensor(float(live["step"]))
                state[i] = entry
    return {"state": state, "param_groups": groups}
