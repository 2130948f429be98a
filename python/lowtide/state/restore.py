"""The only way into live state: plans all changes, checks the plan as a whole and then carries it out."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, MutableMapping, Sequence
from typing import Any

import torch

from lowtide import _core
from lowtide.checks.values import check_floats, check_moment, expect, read_step
from lowtide.devices.pieces import local_moments
from lowtide.devices.sharding import ROW_MOMENT, local_of, moment_shape
from lowtide.state.elsewhere import Noting, Shown, as_core
from lowtide.engine.cores import RESIDUAL, KeptErrors
from lowtide.engine.engine import Engine
from lowtide.engine.params import parameter
from lowtide.state import spread, torch_dict, vectors, views
from lowtide.state.carried import as_now, read_carried
from lowtide.state.entries import NOTHING, Entry, ParamSpec, check_values
from lowtide.state.format import ESTIMATE, check_entry, residual_words, take_codec
from lowtide.state.groups import Groups, Reader
from lowtide.state.views import MOMENTUM

_ONCE = "each moment once, as values or as codes: load_state_dict() takes values, reset([p]) starts afresh"


class States(Noting, defaultdict[torch.Tensor, dict[str, Any]]):
    """`Optimizer.state`. Notes whether others have added or removed an entry since a step or a save last looked."""

    changed = True

    def _note(self) -> None:
        self.changed = True

    def __setitem__(self, key: torch.Tensor, value: dict[str, Any]) -> None:
        if not isinstance(value, Shown) or not value.is_of(key):
            self._note()
        super().__setitem__(key, value)


def plan(
    engine: Engine, entries: Mapping[int, dict[str, Any]], found: Groups, reader: Reader | None = None
) -> dict[int, Entry]:
    """Checks every entry, by parameter number, against live state. Changes nothing. found: the groups of the dict with the
    entries. A group without entries starts afresh, as trainers intend when they add one to a dict. reader: reads the library
    that wrote the dict, unless that is Lowtide or torch.optim."""
    made = {}
    options = engine.options_of(found.groups) if found.groups else {}
    of_group = {i: each.of for each in engine.groups for i in each.params}
    rules = {i: each.rule for each in engine.groups for i in each.params}
    in_dict = {of_group.get(i) for i in entries}
    for i in range(len(engine.params)):
        where = f"state of parameter {i}"
        own = entries.get(i, None if of_group.get(i) in in_dict else {})
        has_moments: bool | None = False
        if engine.family.MOMENTS:
            has_moments = engine.family.has_moments(rules[i], options[i]) if i in options else None
            if has_moments and engine.family.MOMENTS not in found.saved[of_group[i]]:
                has_moments = None  # an earlier version's dict: they begin from zeros
        if found.spread:
            entry = spread.read_entry(engine, i, own, where)
        elif found.codecs is not None:
            given, moment = _apart_from_moment(own) if own and ROW_MOMENT in own else (own, None)
            entry = _read_own(engine, i, given, found.codecs[i], where)
            if own and (has_moments is not False or moment is not None):
                entry = _with_moment(engine, i, entry, moment, has_moments, where)
        elif reader:
            param, codec = engine.tensors[i], engine.core_of(i).state_codec(i)
            shape = local_of(param).shape
            spec = ParamSpec(engine.family.rule, param.shape, codec, engine.signed(i), param, found.saved[of_group[i]])
            entry = reader.read_entry(spec, entries.get(i, {}), where)
            if entry.tensors:  # other libraries have no residuals
                given, moment = _apart_from_moment(entry.tensors)
                entry = entry._replace(tensors=given)
                live = {name: like for name, like in views.layout(engine, i).items() if name != RESIDUAL}
                tensors = _local(engine, i, entry.tensors, live, where) if engine.params[i].sharding else entry.tensors
                if entry.encode:
                    check_values(tensors, [name for name in live if name in spec.signed], shape, where)
                else:
                    tensors = check_entry({"step": entry.step, **tensors}, live, shape, codec, codec, where)
                entry = _with_moment(engine, i, entry._replace(tensors=tensors), moment, has_moments, where)
        else:
            entry = _read_torch(engine, i, entries.get(i, {}), options[i], where)
        made[i] = _checked(engine, i, entry, options.get(i), where)
    if engine.family.sums:
        _check_estimate(engine, made, found)
    return made


def _check_estimate(engine: Engine, entries: Mapping[int, Entry], found: Groups) -> None:
    """Raises ValueError unless the entries, and the groups of the dict, have one estimate in common."""
    shared: Mapping[str, float] | None = None

    def check(numbers: Mapping[str, Any], where: str) -> None:
        for name, wanted in (shared or {}).items():
            expect(float(numbers[name]) == wanted, f"{where}, {name}", float(numbers[name]), f"{wanted}: all parameters and groups share it")

    for i, entry in entries.items():
        if entry.tensors:
            where, names = f"state of parameter {i}", ", ".join(ESTIMATE)
            expect(entry.carried is not None, where, f"no {names}", "the numbers that all parameters share")
            shared = shared or entry.carried
            check(entry.carried or {}, where)
    for n, (group, saved) in enumerate(zip(found.groups, found.saved, strict=True)):
        shared = shared or as_now(engine.family, group, 0)
        if saved.keys() >= {*ESTIMATE}:
            check(saved, f"param_groups[{n}]")


def _checked(engine: Engine, number: int, entry: Entry, options: Mapping[str, Any] | None, where: str) -> Entry:
    """An entry from whose values steps can continue. If it carries no numbers, it gets those that its options imply; numbers that all
    parameters share stay as they are."""
    core = engine.core_of(number)
    signed = dict(core.states_of(number))
    for name, tensor in entry.tensors.items():
        positive = not signed.get(name, False)  # scales are positive, too
        check_moment(tensor, f"{where}, {name}", engine.settings.nonfinite, positive)
    if entry.step and entry.carried is None and not engine.family.sums and options is not None and core.carried(number):
        return entry._replace(carried=as_now(engine.family, options, entry.step))
    return entry


def _apart_from_moment(tensors: Mapping[str, Any]) -> tuple[dict[str, Any], Any]:
    """The core's tensors of an entry, and its row moments; None: it has none."""
    return {name: value for name, value in tensors.items() if name != ROW_MOMENT}, tensors.get(ROW_MOMENT)


def _with_moment(engine: Engine, number: int, entry: Entry, moment: Any, wanted: bool | None, where: str) -> Entry:
    """An entry with row moments, checked. wanted: whether it must have some; None: it may."""
    where, of, whole = f"{where}, {ROW_MOMENT}", engine.params[number].sharding, moment_shape(engine.tensors[number].shape)
    if moment is None:
        option, of_group = engine.family.MOMENTS, engine.params[number].group
        begin = f"to begin from zeros, load with {option}=None, then set param_groups[{of_group}][{option!r}]"
        expect(not (wanted and entry.step), where, "none", f"one for each row, as {option} of its group is set; {begin}")
        return entry
    expect(wanted is not False, where, type(moment).__name__, "none: row_beta2 of its group is None")
    local = of.unwrap(ROW_MOMENT, moment, torch.empty(0), where.rpartition(",")[0]) if of else moment
    check_floats(local, where, local_moments(engine.tensors[number], of) if of else whole)
    expect(local.dtype == torch.float32, where, local.dtype, torch.float32)
    return entry._replace(tensors={**entry.tensors, ROW_MOMENT: local})


def _read_own(
    engine: Engine, number: int, entry: dict[str, Any] | None, codec: str, where: str, live: dict[str, torch.Tensor] | None = None
) -> Entry:
    """An entry in Lowtide's format, without row moments. None: missing, while others exist. live: its other required tensors;
    None: all."""
    if entry is None:
        stepped = engine.core_of(number).has_state(number) and engine.tensors[number].requires_grad
        expect(not stepped, where, "no entry", "one (empty for a frozen parameter)")
    if not entry:
        return NOTHING
    given, codec = take_codec(entry, codec, where)
    if engine.tensors[number].ndim < 2:
        given = vectors.in_one_form(engine, number, given, codec, where)
    entry = as_core(given)
    expect(len(entry) == len(given), where, f"keys {sorted(map(str, given))}", _ONCE)
    names = engine.core_of(number).carried(number)
    carried = read_carried(names, entry, where, live is None) if names else None
    entry = {name: value for name, value in entry.items() if name not in carried} if carried else entry
    live = views.layout(engine, number) if live is None else live
    if not entry or (MOMENTUM in live and set(entry) == {"step"}):
        return Entry(read_step(entry, where) if entry else 0, {}, False)
    if isinstance(entry.get(RESIDUAL), torch.Tensor):
        entry = {**entry, RESIDUAL: residual_words(entry[RESIDUAL])}
    shape = engine.tensors[number].shape
    if engine.params[number].sharding:
        shape, entry = local_of(engine.tensors[number]).shape, _local(engine, number, entry, live, where)
    tensors = check_entry(entry, live, shape, codec, engine.core_of(number).state_codec(number), where)
    return Entry(read_step(entry, where), tensors, False, carried)


def _read_torch(engine: Engine, number: int, raw: dict[str, Any], options: Mapping[str, Any], where: str) -> Entry:
    """Reads an entry in torch.optim's format."""
    if not raw:
        return NOTHING
    live = {name: like for name, like in views.layout(engine, number).items() if name != RESIDUAL}
    entry = _local(engine, number, raw, live, where)
    signed = engine.signed(number)
    names = [name for name in live if name in signed]
    shape = local_of(engine.tensors[number]).shape
    return torch_dict.read_entry(entry, names, shape, engine.family.rule, options, where)


def follow(engine: Engine, groups: Sequence[dict[str, Any]], states: MutableMapping[torch.Tensor, dict[str, Any]]) -> States:
    """Applies changes that others made in `states`. Removed entries start afresh, as in torch.optim. Assignments are adopted:
    tensors with Lowtide's names, or torch.optim's values, which are encoded. Returns all entries as the engine shows them.
    After a ValueError, for an entry that does not fit, nothing has changed."""
    whole = states if isinstance(states, States) else States(dict, states)
    if not whole.changed and not engine.assigned:
        return whole
    options = engine.options_of(groups)
    taken: dict[int, Entry] = {}
    others: dict[torch.Tensor, dict[str, Any]] = {}  # entries added by wrappers
    zeros: list[int] = []  # assigned parameters for which `states` may have shown zeros
    for i, param in enumerate(engine.tensors):
        entry = whole.get(param)
        if not entry:
            if engine.has_entry(i):
                taken[i] = NOTHING
        elif i in engine.assigned or not isinstance(entry, Shown) or not entry.is_of(param):
            known = {"step", ROW_MOMENT, *views.layout(engine, i), *engine.signed(i), *engine.core_of(i).carried(i)}
            if isinstance(entry, Shown) and entry.is_of(param):
                entry.take_copied_step(engine.core_of(i).state(i)["step"])
                if entry.keeps(known):
                    continue  # only entries of wrappers are new
            codec, where = vectors.codec_in_dicts(engine, i), f"assigned state of parameter {i}"
            if i in engine.aside:
                zeros.append(i)
                continue
            one = dict(entry) if param.ndim > 1 else vectors.in_one_form(engine, i, entry, codec, where)
            given = as_core(one)
            expect(len(given) == len(one), where, f"keys {sorted(map(str, one))}", _ONCE)
            taken[i] = _read_assigned(engine, i, {name: given[name] for name in given if name in known} or given, options[i])
            others[param] = {name: value for name, value in given.items() if name not in known}
    for i in zeros:
        dict.__setitem__(whole, engine.tensors[i], views.shown(engine, i))
        engine.assigned.discard(i)
    if zeros:
        raise ValueError(
            f"assigned state of {parameter(groups, zeros[0])}: got values after offload() had put the state aside, when `state` showed zeros; "
            "wanted onload() before"
        )
    with KeptErrors() as kept:
        if taken:
            apply(engine, whole, taken, kept)
        for param, beside in others.items():
            dict.update(whole.get(param, {}), beside)
        whole.changed = False
        engine.showed()
    return whole


def _read_assigned(engine: Engine, number: int, given: dict[str, Any], options: Mapping[str, Any]) -> Entry:
    """Reads an entry assigned in `Optimizer.state`. Before the first step it may contain only a residual, from master.split;
    moments are then zeros."""
    where, live = f"assigned state of parameter {number}", views.layout(engine, number)
    given, moment = _apart_from_moment(given)
    if RESIDUAL in given and given.keys() <= {"step", RESIDUAL} and not engine.has_entry(number):
        live = {name: like for name, like in live.items() if name in ("step", RESIDUAL)}
    given.setdefault("step", engine.core_of(number).step_count(number))
    names = [] if MOMENTUM in live and given.keys() == {"step"} else live.keys() - {"step"}
    own = all(isinstance(given.get(name), torch.Tensor) and given[name].dtype == live[name].dtype for name in names)
    if own or RESIDUAL in live:
        read = _read_own(engine, number, given, engine.core_of(number).state_codec(number), where, live)
    else:
        read = _read_torch(engine, number, given, options, where)
    rule = next(each.rule for each in engine.groups if each.has(number))
    wanted, had = engine.family.has_moments(rule, options), engine.row_moment(number)
    if not wanted and had is not None and isinstance(moment, torch.Tensor) and local_of(moment).data_ptr() == had.data_ptr():
        moment = None  # shown until a step drops them
    read = _with_moment(engine, number, read, moment, wanted, where)
    core = engine.core_of(number)
    if read.carried is None and read.step == core.step_count(number):  # loops that move state know only what it shows
        read = read._replace(carried=core.carried(number) or None)
    return _checked(engine, number, read, options, where)


def _local(
    engine: Engine, number: int, tensors: Mapping[str, Any], live: Mapping[str, torch.Tensor], where: str
) -> dict[str, Any]:
    """This rank's parts of a DTensor's entry."""
    of = engine.params[number].sharding
    if not of:
        return dict(tensors)
    return {
        name: of.unwrap(name, value, live[name], where) if name in live else local_of(value)
        for name, value in tensors.items()
    }


def copied_in(engine: Engine, entries: list[dict[str, torch.Tensor]]) -> States:
    """Copies another optimizer's live state, by parameter number, into one with the same parameters, and shows it."""
    codecs, states = [engine.core_of(i).state_codec(i) for i in range(len(engine.params))], States(dict)
    with KeptErrors() as kept:
        apply(engine, states, plan(engine, dict(enumerate(entries)), Groups([], {}, codecs)), kept)
    states.changed = False
    engine.showed()
    return states


def shown_states(engine: Engine) -> States:
    """All state as users see it, with an entry for each parameter that has taken a step."""
    states = States(dict, {param: views.shown(engine, i) for i, param in enumerate(engine.tensors) if engine.has_entry(i)})
    engine.await_states(i for i, param in enumerate(engine.tensors) if param not in states)
    states.changed = False
    engine.showed()
    return states


def apply(
    engine: Engine, states: dict[torch.Tensor, dict[str, Any]], entries: Mapping[int, Entry], kept: KeptErrors
) -> None:
    """Carries out a checked plan, by parameter number: zeroes state (for entries without tensors), copies tensors into it, or
    encodes floats into it. All allocation comes first, so that a MemoryError leaves the state unchanged."""
    if engine.copies.waits:
        engine.copies.read(engine)
    if engine.away or engine.aside:
        bring_back(engine, states)
    moments: dict[int, torch.Tensor] = {}
    plain: dict[int, Entry] = {}
    for i, entry in entries.items():
        plain[i] = entry
        if ROW_MOMENT in entry.tensors:
            tensors, moment = _apart_from_moment(entry.tensors)
            plain[i] = entry._replace(tensors=tensors)
            moments[i] = moment.detach().to(local_of(engine.tensors[i]).device, copy=True).contiguous()
    entries = plain
    waiting = {*engine.awaited}
    for i, entry in entries.items():
        if entry.tensors:
            engine.core_of(i).allocate_state(i)
    in_place = True  # whether every tensor is the live one that it would be copied to
    for i, entry in entries.items():
        live = engine.core_of(i).state(i) if entry.tensors else {}
        for name, tensor in entry.tensors.items():
            like = live.get(name)
            in_place &= like is not None and (tensor.data_ptr(), tensor.stride()) == (like.data_ptr(), like.stride())
    if not in_place:
        entries = _apart(engine, entries)
    for i, entry in entries.items():
        core = engine.core_of(i)
        live, paged = core.state(i), core.is_paged(i)
        whole = dict(core.states_of(i)).keys() <= entry.tensors.keys()
        if entry.encode or not whole:
            _import_states(engine, i, entry, live, kept)
        if RESIDUAL not in entry.tensors and (paged or RESIDUAL in live) and core.has_state(i):
            _clear_residual(core, i, live)
        if paged and entry.tensors and not entry.encode:
            there = {} if whole else core.read_state(i)
            copies = {name: tensor for name, tensor in there.items() if name != "step"}
            copies |= {name: tensor.detach().cpu().contiguous() for name, tensor in entry.tensors.items()}
            kept.call(core.write_state, i, copies)
        elif not entry.encode:
            for name, tensor in entry.tensors.items():
                live[name].copy_(tensor.detach())
        core.set_step_count(i, entry.step if entry.tensors else 0)  # 0 also marks empty buffers
        if not entry.tensors:
            live["step"].fill_(entry.step)
        elif entry.carried is not None:
            core.set_carried(i, dict(entry.carried))
        if engine.family.MOMENTS:
            engine.moments.put(i, moments.get(i))
        if engine.has_entry(i):
            dict.__setitem__(states, engine.tensors[i], views.shown(engine, i))
            waiting.discard(i)
        else:
            states.pop(engine.tensors[i], None)
            waiting.add(i)
    engine.await_states(waiting)


def bring_back(engine: Engine, states: Mapping[torch.Tensor, dict[str, Any]]) -> None:
    """Brings back what `Optimizer.offload` has put aside, or users have moved in `states`."""
    engine.core.onload()
    for number in engine.away:
        entry = states.get(engine.tensors[number])
        if isinstance(entry, Shown):
            entry.come_home()
    engine.away, engine.aside = set(), set()


def _apart(engine: Engine, entries: Mapping[int, Entry]) -> dict[int, Entry]:
    """The entries, with copies of all views of live state. Swapped or transposed state would change before it is read."""
    cores = [engine.core_of(i) for i in range(len(engine.params))]
    memory = {each.untyped_storage().data_ptr() for i, core in enumerate(cores) for each in core.state(i).values() if each.numel()}
    found = {}
    for i, entry in entries.items():
        shared = {name: value.clone() for name, value in entry.tensors.items() if value.untyped_storage().data_ptr() in memory}
        found[i] = entry._replace(tensors={**entry.tensors, **shared})
    return found


def _import_states(engine: Engine, number: int, entry: Entry, live: dict[str, torch.Tensor], kept: KeptErrors) -> None:
    """Encodes the values of an entry. States that the entry lacks become zeros."""
    core, paged = engine.core_of(number), engine.core_of(number).is_paged(number)
    names = [name for name, _ in core.states_of(number)]
    there = core.read_state(number) if paged and MOMENTUM in names and MOMENTUM not in entry.tensors else {}
    names = [name for name in names if name in live or (paged and (not there or name in there))]
    for k, name in enumerate(names):
        if name not in entry.tensors:
            kept.call(core.import_state, number, k, torch.zeros(local_of(engine.tensors[number]).shape))
        elif entry.encode:
            kept.call(core.import_state, number, k, entry.tensors[name].detach().to("cpu", torch.float32).contiguous())


def _clear_residual(core: _core.Optimizer, number: int, live: dict[str, torch.Tensor]) -> None:
    """Clears a parameter's residual, if it has one, so that its weights lose that part of their values."""
    if RESIDUAL in live:
        live[RESIDUAL].zero_()
    elif core.is_paged(number) and RESIDUAL in (copies := core.read_state(number)):
        copies[RESIDUAL].zero_()
        core.write_state(number, {name: value for name, value in copies.items() if name != "step"})
