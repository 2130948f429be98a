"""Loading a state_dict: check everything first, then copy."""

from __future__ import annotations

from collections.abc import Callable, MutableMapping, Sequence
from typing import Any

import torch

from lowtide.checks.kept_errors import KeptErrors
from lowtide.checks.values import expect
from lowtide.engine.engine import Engine
from lowtide.state import restore
from lowtide.state.foreign import READERS
from lowtide.state.groups import read_groups


def check_dict(state_dict: Any) -> None:
    expect(isinstance(state_dict, dict), "state_dict", type(state_dict).__name__, "a dict")


def load(
    engine: Engine,
    groups: Sequence[dict[str, Any]],
    states: MutableMapping[torch.Tensor, dict[str, Any]],
    state_dict: Any,
    taken: Callable[[list[dict[str, Any]]], None],
) -> None:
    """Copies `state_dict` into live state; then `taken` gets the new parameter groups. ValueError: nothing has changed."""
    check_dict(state_dict)
    for key, kind in (("state", dict), ("param_groups", list)):
        expect(key in state_dict, "state_dict", f"keys {sorted(map(str, state_dict))}", f"{key!r} among them")
        expect(isinstance(state_dict[key], kind), key, type(state_dict[key]).__name__, f"a {kind.__name__}")
    state, saved = state_dict["state"], state_dict["param_groups"]
    dicts = all(isinstance(part, dict) for part in [*state.values(), *saved])
    ours = not dicts or any("lowtide_format" in group for group in saved)
    reader = None if ours else next((each for each in READERS if each.recognizes(state, saved)), None)
    found = read_groups(engine, groups, state_dict, reader)
    entries: dict[int, dict[str, Any]] = {}
    for key, entry in state_dict["state"].items():
        expect(key in found.numbers, "state", f"an entry {key!r}", "only ids that stand in param_groups")
        expect(isinstance(entry, dict), f"state[{key!r}]", type(entry).__name__, "a dict")
        entries[found.numbers[key]] = entry
    plan = restore.plan(engine, entries, found, reader)
    with KeptErrors() as kept:
        restore.apply(engine, states, plan, kept)
        taken(found.groups)
