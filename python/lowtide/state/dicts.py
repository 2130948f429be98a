"""Loads a state_dict: checks everything, then copies. Also finds the entries to save."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch

from lowtide.checks.values import expect
from lowtide.devices.sharding import ROW_MOMENT
from lowtide.engine.cores import RESIDUAL, KeptErrors
from lowtide.engine.engine import Engine
from lowtide.state import restore, vectors, views
from lowtide.state.carried import as_tensors, own_numbers
from lowtide.state.format import CODEC, eight_bits, is_stamped, residual_bytes
from lowtide.state.groups import READERS, read_groups


@contextmanager
def refusals() -> Iterator[None]:
    """Turns any exception that a foreign value causes in torch or Python into a ValueError, for use while nothing has changed.
    Errors of the machine stay as they are."""
    try:
        yield
    except (ValueError, OSError, MemoryError, torch.OutOfMemoryError):
        raise
    except Exception as error:
        wanted = "plain tensors and numbers, as Lowtide or the other library saves"
        raise ValueError(f"state_dict: got unreadable entries ({type(error).__name__}: {error}), wanted {wanted}") from None


def load(
    engine: Engine,
    groups: Sequence[dict[str, Any]],
    states: restore.States,
    state_dict: Any,
    kept: KeptErrors,
) -> list[dict[str, Any]]:
    """Copies `state_dict` into live state, and returns the new parameter groups. After a ValueError nothing has changed."""
    expect(isinstance(state_dict, dict), "state_dict", type(state_dict).__name__, "a dict")
    for key, kind in (("state", dict), ("param_groups", list)):
        expect(key in state_dict, "state_dict", f"keys {sorted(map(str, state_dict))}", f"{key!r} among them: is it an optimizer's?")
        expect(isinstance(state_dict[key], kind), key, type(state_dict[key]).__name__, f"a {kind.__name__}")
    state, saved = state_dict["state"], state_dict["param_groups"]
    with refusals():
        reader = None
        if not any(map(is_stamped, saved)) and all(isinstance(part, dict) for part in [*state.values(), *saved]):
            reader = next((each for each in READERS if each.recognizes(state, saved)), None)
        found = read_groups(engine, groups, state_dict, reader)
        entries: dict[int, dict[str, Any]] = {}
        for key, entry in state.items():
            expect(key in found.numbers, "state", f"an entry {key!r}", "only ids from param_groups")
            expect(isinstance(entry, dict), f"state[{key!r}]", type(entry).__name__, "a dict")
            entries[found.numbers[key]] = entry
        back = engine.follow_states(found.groups, carry=False) if found.anew else None
        try:
            plan = restore.plan(engine, entries, found, reader)
        except BaseException:
            if back:
                back()
            raise
    engine.show_unstepped(False)  # entries without steps were only needed for this dict
    restore.apply(engine, states, plan, kept)
    states.changed = False
    engine.showed()
    return found.groups


def saved_entries(engine: Engine, groups: Sequence[dict[str, Any]]) -> dict[torch.Tensor, dict[str, Any]]:
    """The entries of a state_dict, by parameter, in the core's form: views, or copies of state that streams or has not stepped.
    No entries before the first step, as in torch.optim."""
    params = engine.tensors
    if not any(engine.has_entry(i) for i in range(len(params))):
        return {}
    saved: dict[torch.Tensor, dict[str, Any]] = {}
    with_moments = engine.with_moments(groups)
    for i, param in enumerate(params):
        if engine.has_entry(i) or (param.requires_grad and i not in engine.foreign):
            entry: dict[str, Any] = vectors.as_saved(engine, i, views.live(engine, i, i in with_moments))
            saved[param] = entry if engine.core_of(i).step_count(i) else {name: value.clone() for name, value in entry.items()}
    for i in with_moments:
        if saved.get(params[i]) and ROW_MOMENT not in saved[params[i]]:
            of, moment = engine.params[i].sharding, engine.no_moment(i).cpu()
            saved[params[i]][ROW_MOMENT] = of.whole_of(ROW_MOMENT, moment) if of else moment
    for entry in saved.values():
        if RESIDUAL in entry:
            entry[RESIDUAL] = residual_bytes(entry[RESIDUAL])
    for core_group in engine.groups:
        told = eight_bits(str(groups[core_group.of]["state"]))
        for i in core_group.params:
            entry = saved.get(params[i], {})
            if any(name.endswith("_scale") for name in entry) and eight_bits(codec := vectors.codec_in_dicts(engine, i)) != told:
                entry[CODEC] = codec
    for i, numbers in own_numbers(engine, groups).items():
        if params[i] in saved:
            saved[params[i]] |= as_tensors(numbers)
    return saved
