"""`Optimizer.state` as a state_dict has it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch

from lowtide.engine.engine import Engine
from lowtide.state.format import CODEC, eight_bits


def saved_entries(
    engine: Engine, groups: Sequence[dict[str, Any]], states: Mapping[torch.Tensor, dict[str, Any]]
) -> dict[torch.Tensor, dict[str, Any]] | None:
    """The entries to save by parameter; None where they are those of `states`, what users see."""
    core, params = engine.core, engine.params
    saved: dict[torch.Tensor, dict[str, Any]] = {}
    if any(map(core.is_paged, range(len(params)))):
        saved = {param: engine.live(i) for i, param in enumerate(params)}
    for core_group in engine.groups:
        told = eight_bits(str(groups[core_group.of]["state"]))
        for i in core_group.params:
            if eight_bits(codec := core.state_codec(i)) == told:
                continue
            saved = saved or dict(states)
            entry = saved.get(params[i], {})
            if any(name.endswith("_scale") for name in entry):
                saved[params[i]] = {**entry, CODEC: codec}
    return saved or None
