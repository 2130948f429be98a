"""Parameter groups that wrappers, above all DeepSpeed's ZeRO, show to an optimizer part by part.

Before the first step ZeRO replaces a group's parameters by flat float32 partitions. Stages 1 and 2 put one into each group and
step one group at a time, when `param_groups` has no other. Stage 3 puts one partition at a time into its group, none between
steps, and all of them for a state_dict.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterator, Mapping, Sequence
from itertools import chain
from typing import Any

import torch

from lowtide import _core
from lowtide.checks.values import expect
from lowtide.engine.engine import Engine


def is_partition(tensor: torch.Tensor) -> bool:
    """True for a partition of ZeRO-3, which names each after its first and last parameters."""
    return isinstance(getattr(tensor, "ds_id", None), str)


def are_all(groups: Sequence[dict[str, Any]]) -> bool:
    """True if these groups contain only partitions of ZeRO-3."""
    return all(map(is_partition, chain.from_iterable(group["params"] for group in groups)))


def numbers_of(groups: Sequence[dict[str, Any]], members: Sequence[Sequence[torch.Tensor]]) -> list[int] | None:
    """The numbers that these groups had when their parameters were `members`, if ZeRO has put its partitions there. None
    otherwise, or if a partition of stages 1 and 2 has the shape of the parameter it replaced. DeepSpeed drops groups without
    parameters."""
    numbers = [number for number, params in enumerate(members) if params or len(groups) == len(members)]
    if len(groups) != len(numbers) or not groups:
        return None
    flat = [len(group["params"]) == 1 and _is_flat(group["params"][0]) for group in groups]
    pairs = [(_shapes(group["params"]), _shapes(members[number])) for number, group in zip(numbers, groups, strict=True)]
    cut = all(flat) and any(shapes != before for shapes, before in pairs)
    return numbers if cut or are_all(groups) else None


def _shapes(tensors: Sequence[torch.Tensor]) -> list[torch.Size]:
    return [tensor.shape for tensor in tensors]


def assigned(engine: Engine, states: Mapping[torch.Tensor, dict[str, Any]]) -> dict[torch.Tensor, dict[str, Any]]:
    """State that `states` assigns to unregistered tensors, as universal checkpoints of ZeRO do."""
    known = set(map(id, engine.tensors))
    return {tensor: entry for tensor, entry in states.items() if entry and id(tensor) not in known}


def _is_flat(tensor: torch.Tensor) -> bool:
    return type(tensor) is torch.Tensor and tensor.ndim == 1


def check(engine: Engine, groups: Sequence[dict[str, Any]]) -> None:
    """Raises ValueError unless partitions can replace the parameters of this engine. Warns of overrides."""
    stepped = engine.has_stepped()
    wanted = "them before the first step and load_state_dict: call deepspeed.initialize first"
    expect(not stepped, "param_groups", "partitions of ZeRO in place of parameters that have state", wanted)
    for number, group in enumerate(groups):
        where, family = f"parameter group {number}, in partitions of ZeRO", engine.family
        got, wanted = f"{family.name}, which takes matrices whole", "a rule that steps element by element, like AdamW"
        expect(not family.rule_for(torch.empty(1, 1), group), where, got, wanted)
        expect(not family.sums, where, f"{family.name}, whose d needs whole parameters on every rank", wanted)
        try:  # a partition does not know which parameter it belongs to
            _core.state_layout(
                family.core_rule, family.hyper_of("", group), family.core_options("", group), [1], "float32", ([2], True, [0]), False
            )  # fmt: skip
        except ValueError as error:
            raise family.error(where, family.core_rule, error) from None
    if any(param.override for param in engine.params):
        warnings.warn(
            "lowtide.override has no effect in ZeRO's partitions, which cross the bounds of parameters: give these parameters "
            "a group of their own, with the options in it",
            stacklevel=5,
        )


def are_part(engine: Engine, groups: Sequence[dict[str, Any]], added: Sequence[dict[str, Any]]) -> bool:
    """True if groups with parameters are missing, or if `groups` are copies with some of the parameters, as wrappers make that
    step in parts. added: the optimizer's own groups."""
    here = {*map(id, groups)}
    if here.issubset(map(id, added)):
        return any(each.tensors and id(group) not in here for group, each in zip(added, engine.members))
    shown = [id(param) for group in groups if isinstance(group.get("params"), list) for param in group["params"]]
    fewer = len(shown) < len(engine.tensors) or len(groups) != len(added)
    return fewer and {*map(id, engine.tensors)}.issuperset(shown)


def check_part(part: Sequence[dict[str, Any]], groups: Sequence[dict[str, Any]]) -> bool:
    """True if any of these parameter groups is a copy. Raises ValueError unless each is one of `groups`, or has its options and
    some of its parameters."""
    known, copies = set(map(id, groups)), False
    owners = {id(param): number for number, group in enumerate(groups) for param in group["params"]}
    for number, group in enumerate(part):
        if id(group) in known or not group["params"]:
            continue
        copies, of = True, {owners.get(id(param), -1) for param in group["params"]}
        got = f"{len(part)} groups, and not number {number} among the {len(groups)}"
        expect(len(of) == 1 and -1 not in of, "param_groups", got, "groups that were added")
        own = groups[of.pop()]
        others = sorted(key for key in own if key != "params" and group.get(key) is not own[key] and group.get(key) != own[key])
        wanted = "the group's own: change options in the group itself"
        expect(not others, f"param_groups[{number}], a copy", f"other values of {', '.join(others)}", wanted)
    return copies


def unknown(engine: Engine, groups: Sequence[dict[str, Any]]) -> Iterator[tuple[int, torch.Tensor]]:
    """Unregistered parameters in these groups, each with the number of its group."""
    known = set(map(id, engine.tensors))
    for number, group in enumerate(groups):
        for param in group["params"]:
            if id(param) not in known:
                yield number, param


def shown(engine: Engine, groups: Sequence[dict[str, Any]]) -> list[int]:
    """The numbers of the parameters that are in these groups now."""
    numbers = {id(param): number for number, param in enumerate(engine.tensors)}
    return [numbers[id(param)] for param in chain.from_iterable(group["params"] for group in groups)]
