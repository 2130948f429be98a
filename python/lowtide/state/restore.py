"""The one way into live state: a plan of what goes where, checked as a whole, and then carried out."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, MutableMapping, Sequence
from typing import Any

import torch

from lowtide.checks.kept_errors import KeptErrors
from lowtide.checks.values import check_moment, expect, read_step
from lowtide.devices.sharding import local_of
from lowtide.engine.cores import Core
from lowtide.engine.elsewhere import Elsewhere
from lowtide.engine.engine import MOMENTUM, RESIDUAL, Engine
from lowtide.state import spread, torch_dict
from lowtide.state.carried import as_now, read_number
from lowtide.state.entries import NOTHING, Entry, ParamSpec, check_values
from lowtide.state.foreign.readers import Reader
from lowtide.state.format import check_entry, residual_bits, take_codec
from lowtide.state.groups import Groups


class States(defaultdict[torch.Tensor, dict[str, torch.Tensor]]):
    """Notes that something was taken out, or replaced by nothing, since a step last looked."""

    removed = True

    def __delitem__(self, key: torch.Tensor) -> None:
        self.removed = True
        super().__delitem__(key)

    def __setitem__(self, key: torch.Tensor, value: dict[str, torch.Tensor]) -> None:
        self.removed = self.removed or not value
        super().__setitem__(key, value)

    def pop(self, *args: Any) -> Any:
        self.removed = True
        return super().pop(*args)

    def popitem(self) -> tuple[torch.Tensor, dict[str, torch.Tensor]]:
        self.removed = True
        return super().popitem()

    def clear(self) -> None:
        self.removed = True
        super().clear()


def plan(
    engine: Engine, entries: Mapping[int, dict[str, Any]], found: Groups, reader: Reader | None = None
) -> dict[int, Entry]:
    """Checks every entry, by parameter number, against the live state. Changes nothing. `found`: the groups of the same
    dict. reader: that of its library, if it is neither Lowtide's nor torch.optim's."""
    made = {}
    options = engine.options_of(found.groups) if found.groups else {}
    of_group = {i: each.of for each in engine.groups for i in each.params} if reader else {}
    for i in range(len(engine.params)):
        where = f"state of parameter {i}"
        if found.spread:
            entry = spread.read_entry(engine, i, entries.get(i), where)
        elif found.codecs is not None:
            entry = _read_own(engine, i, entries.get(i), found.codecs[i], where)
        elif reader:
            param, codec = engine.params[i], engine.core.state_codec(i)
            shape = local_of(param).shape
            spec = ParamSpec(engine.family.rule, param.shape, codec, engine.signed(i), param, found.saved[of_group[i]])
            entry = reader.read_entry(spec, entries.get(i, {}), where)
            if entry.tensors:  # other libraries have no residuals
                live = {name: like for name, like in engine.layout(i).items() if name != RESIDUAL}
                tensors = _local(engine, i, entry.tensors, live, where) if engine.shardings[i] else entry.tensors
                if entry.encode:
                    check_values(tensors, [name for name in live if name in spec.signed], shape, where)
                else:
                    tensors = check_entry({"step": entry.step, **tensors}, live, shape, codec, codec, where)
                entry = entry._replace(tensors=tensors)
        else:
            entry = _read_torch(engine, i, entries.get(i, {}), options[i], where)
        signed = engine.signed(i)
        for name, tensor in entry.tensors.items():
            positive = not signed.get(name, False)  # scales are, too
            check_moment(tensor, f"{where}, {name}", engine.settings.nonfinite, positive)
        if entry.step and entry.carried is None and i in options and engine.core.carried(i):
            entry = entry._replace(carried=as_now(engine.family, options[i], entry.step))
        made[i] = entry
    return made


def _read_own(engine: Engine, number: int, entry: dict[str, Any] | None, codec: str, where: str) -> Entry:
    """An entry of Lowtide's format."""
    if entry is None:
        stepped = engine.core.has_state(number) and engine.params[number].requires_grad
        expect(not stepped, where, "no entry", "one (empty for a frozen parameter)")
    if not entry:
        return NOTHING
    entry, codec = take_codec(entry, codec, where)
    carried = None
    names = engine.core.carried(number).keys()
    if given := names & entry.keys():
        expect(given == names, where, f"no {', '.join(sorted(names - given))} beside {', '.join(sorted(given))}", "all of them")
        carried = {name: read_number(entry[name], name, where) for name in names}
        entry = {name: value for name, value in entry.items() if name not in names}
    live = engine.layout(number)
    if not entry or (MOMENTUM in live and set(entry) == {"step"}):
        return Entry(read_step(entry, where) if entry else 0, {}, False)
    shape = local_of(engine.params[number]).shape
    entry = _local(engine, number, entry, live, where)
    if RESIDUAL in live and isinstance(entry.get(RESIDUAL), torch.Tensor):
        entry[RESIDUAL] = residual_bits(entry[RESIDUAL], live[RESIDUAL].dtype)
    tensors = check_entry(entry, live, shape, codec, engine.core.state_codec(number), where)
    return Entry(read_step(entry, where), tensors, False, carried)


def _read_torch(engine: Engine, number: int, raw: dict[str, Any], options: Mapping[str, Any], where: str) -> Entry:
    """An entry of torch.optim's."""
    if not raw:
        return NOTHING
    live = {name: like for name, like in engine.layout(number).items() if name != RESIDUAL}
    entry = _local(engine, number, raw, live, where)
    signed = engine.signed(number)
    names = [name for name in live if name in signed]
    shape = local_of(engine.params[number]).shape
    return torch_dict.read_entry(entry, names, shape, engine.family.rule, options, where)


def take_assigned(
    engine: Engine, states: MutableMapping[torch.Tensor, dict[str, Any]], groups: Sequence[dict[str, Any]], numbers: Iterable[int]
) -> None:
    """Takes in what was put into `states`, as torch.optim's state, for these parameters in place of their own. ValueError,
    and nothing has changed, if it does not fit, or they have codes: another optimizer's would pass for values."""
    options = engine.options_of(groups)
    taken: dict[int, Entry] = {}
    for i in numbers:
        entry, live = states[engine.params[i]], engine.core.state(i)
        if all(_is_shown(name, value, live) for name, value in entry.items()):
            continue
        where = f"assigned state of parameter {i}"
        codes = [name for name, like in engine.layout(i).items() if name.endswith("_scale")]
        expect(not codes, where, f"it for moments with {codes}", "state='fp32' or another format without scales")
        taken[i] = _read_torch(engine, i, entry, options[i], where)
    with KeptErrors() as kept:
        apply(engine, states, taken, kept)


def _is_shown(name: str, value: Any, live: Mapping[str, torch.Tensor]) -> bool:
    """Whether this is what the engine shows there, and nobody's assignment."""
    if isinstance(value, Elsewhere):
        return True
    return name in live and isinstance(value, torch.Tensor) and value.data_ptr() == live[name].data_ptr()


def _local(
    engine: Engine, number: int, tensors: Mapping[str, Any], live: Mapping[str, torch.Tensor], where: str
) -> dict[str, Any]:
    """This rank's parts of what a DTensor has."""
    of = engine.shardings[number]
    if not of:
        return dict(tensors)
    return {
        name: of.unwrap(name, value, live[name], where) if name in live else local_of(value)
        for name, value in tensors.items()
    }


def copy_in(engine: Engine, states: MutableMapping[torch.Tensor, dict[str, Any]], entries: list[dict[str, torch.Tensor]]) -> None:
    """Puts copies of another optimizer's live state, by parameter number, into one with the same parameters."""
    codecs = [engine.core.state_codec(i) for i in range(len(engine.params))]
    with KeptErrors() as kept:
        apply(engine, states, plan(engine, dict(enumerate(entries)), Groups([], {}, codecs)), kept)


def restart_removed(engine: Engine, states: Mapping[torch.Tensor, dict[str, Any]]) -> States:
    """Zeroes the state of parameters that were removed from `states`, as torch.optim would. Returns all others' with
    theirs."""
    whole = states if isinstance(states, States) else States(dict, states)
    gone = [i for i, param in enumerate(engine.params) if not whole.get(param)]
    with KeptErrors() as kept:
        apply(engine, whole, dict.fromkeys(gone, NOTHING), kept)
        whole.removed = False
    return whole


def shown_states(engine: Engine) -> States:
    """All state as users see it."""
    core = engine.core
    here = [core.has_state(i) for i in range(len(engine.params))]
    states = States(dict)
    for i, param in enumerate(engine.params):
        shown = here[i] or (param.requires_grad and i not in engine.foreign) or core.step_count(i) > 0  # frozen ones may have gradients all the same
        states[param] = engine.shown(i) if shown else {}
    engine.awaited = [i for i, has in enumerate(here) if not has]
    states.removed = False
    return states


def apply(
    engine: Engine, states: MutableMapping[torch.Tensor, dict[str, Any]], entries: Mapping[int, Entry], kept: KeptErrors
) -> None:
    """Carries a checked plan out, by parameter number: zeroes state (no tensors), copies tensors into it, or encodes
    floats into it. All allocation comes first, so that a MemoryError finds the state as it was."""
    core = engine.core
    core.onload()
    # SGD without momentum, with a residual, keeps to the states that its residual lies with.
    if any(set(entry.tensors) == {RESIDUAL} and not core.has_state(i) for i, entry in entries.items()):
        core.place_states()  # as the options say: allocating would put a momentum buffer beside the residual
    for i, entry in entries.items():
        if entry.tensors:
            core.allocate_state(i)
    for i, entry in entries.items():
        live, paged = core.state(i), core.is_paged(i)
        names = [name for name, _ in core.states_of(i)]
        there = core.read_state(i) if paged and MOMENTUM in names and MOMENTUM not in entry.tensors else {}
        names = [name for name in names if name in live or (paged and (not there or name in there))]
        for k, name in enumerate(names):
            if name not in entry.tensors:
                kept.call(core.import_state, i, k, torch.zeros(local_of(engine.params[i]).shape))
            elif entry.encode:
                values = entry.tensors[name].detach().to("cpu", torch.float32).contiguous()
                kept.call(core.import_state, i, k, values)
        if RESIDUAL not in entry.tensors and core.has_state(i):
            _clear_residual(core, i, live)
        if paged and entry.tensors and not entry.encode:
            copies = {name: tensor for name, tensor in there.items() if name != "step"}
            copies |= {name: tensor.detach().cpu().contiguous() for name, tensor in entry.tensors.items()}
            kept.call(core.write_state, i, copies)
        elif not entry.encode:
            for name, tensor in entry.tensors.items():
                live[name].copy_(tensor.detach())
        core.set_step_count(i, entry.step if entry.tensors else 0)  # 0 also says: nothing is in the buffers yet
        if not entry.tensors:
            live["step"].fill_(entry.step)
        elif entry.carried is not None:
            core.set_carried(i, dict(entry.carried))
        states[engine.params[i]] = engine.shown(i) if core.is_paged(i) or engine.live(i) else {}
    engine.awaited = [i for i in engine.awaited if not core.has_state(i)]


def _clear_residual(core: Core, number: int, live: dict[str, torch.Tensor]) -> None:
    """Makes the weights of a parameter what they are without residual, if it has one."""
    if RESIDUAL in live:
        live[RESIDUAL].zero_()
    elif core.is_paged(number) and RESIDUAL in (copies := core.read_state(number)):
        copies[RESIDUAL].zero_()
        core.write_state(number, {name: value for name, value in copies.items() if name != "step"})
