"""What `state_dict()` returns, and reading it back: check everything first, then copy.

Format 1, in plain tensors and Python values that torch.load reads with weights_only=True:

    {"state": {number: {"step": int64 (), NAME: codes, NAME_scale: float32 (rows, blocks)}},
     "param_groups": [{the group's options, "lowtide_format": 1, "lowtide_rule": rule, "lowtide_seed": seed,
                       "params": [number, ...]}]}

The codec of a moment is seen in its tensors: float32 or bfloat16 values of the parameter's shape, or uint8 codes with
scales. Codes (rows, bytes of a row) of half as many bytes as values are dynamic4's, in blocks of 128 within a row; codes
of the parameter's shape are float8's if the group's "state" says so, else dynamic8's, in blocks of 256. Where that is not
so, for an override, the entry has "lowtide_state": the parameter's codec (a string). A parameter without state yet has an
empty entry. Tensors are views of the live state and no two share memory; of a parameter that is a DTensor they are
DTensors (sharding.py). Format, rule and the seed of stochastic rounding, which loading restores, stand in the groups, so
that they survive tools that take a state_dict apart and put it together again.
"""

from __future__ import annotations

import copy
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any, NamedTuple

import torch

from lowtide import _core
from lowtide.checks.kept_errors import KeptErrors
from lowtide.checks.values import check_moment, check_tensor, expect, read_step
from lowtide.devices.sharding import local_of, rows_of
from lowtide.options.options import check_kinds
from lowtide.state import foreign, torch_dict
from lowtide.state.foreign.entries import STORED_CODEC, Stored, Values, read_values
from lowtide.state.states import States, live_entry, shown_entry

if TYPE_CHECKING:
    from lowtide.optimizers.core_groups import CoreGroup
    from lowtide.optimizers.optimizer import Optimizer

FORMAT = 1
SEED = "lowtide_seed"
STAMP = ("lowtide_format", "lowtide_rule", SEED)
FIXED = ("state", "min_quantized_numel", "master")  # belong to the live tensors; loading never changes them
CODEC = "lowtide_state"  # beside a parameter's tensors: its codec, where the group's "state" would say another one
EIGHT_BITS = {"dynamic4": "dynamic8", "mixed12": "dynamic8"}  # of a codec that has 4 bits: what it has besides, or instead
RESIDUAL = "residual"  # of weights, beside the moments in a parameter's state
MOMENTUM = "momentum_buffer"  # comes and goes with SGD's momentum
HIDDEN_KEYS = ("params", "param_names", *STAMP)


class Restore(NamedTuple):
    """What to do with one parameter: zero its state (no tensors), copy tensors into it, or encode floats into it."""

    number: int
    step: int
    tensors: dict[str, torch.Tensor]
    encode: bool


def stamp(rule: str, seed: int) -> dict[str, Any]:
    """What every parameter group carries to say what it is."""
    return {"lowtide_format": FORMAT, "lowtide_rule": rule, SEED: seed}


def take_groups(optimizer: Optimizer, groups: list[dict[str, Any]]) -> None:
    """Makes the groups that `check_groups` gave the optimizer's, and their seed its seed."""
    optimizer.param_groups = groups
    if groups and groups[0][SEED] != optimizer._seed:
        optimizer._seed = groups[0][SEED]
        optimizer._core.set_seed(optimizer._seed)
        optimizer.defaults[SEED] = optimizer._seed


def load(optimizer: Optimizer, state_dict: dict[str, Any]) -> None:
    """Checks all of `state_dict`, then copies it into the optimizer. ValueError: nothing has changed."""
    expect(isinstance(state_dict, dict), "state_dict", type(state_dict).__name__, "a dict")
    state_dict = state_dict.copy()
    for pre_hook in optimizer._optimizer_load_state_dict_pre_hooks.values():
        replaced = pre_hook(optimizer, state_dict)
        if replaced is not None:
            state_dict = replaced
    other = foreign.format_of(state_dict)
    if other:
        state_dict["param_groups"] = [
            {**other.read_group(optimizer, group, mine, f"param_groups[{n}]"), **stamp(optimizer._rule, optimizer._seed)}
            for n, (group, mine) in enumerate(zip(state_dict["param_groups"], optimizer.param_groups, strict=False))
        ] + state_dict["param_groups"][len(optimizer.param_groups) :]
    groups, numbers, ours = _read_groups(optimizer, state_dict)
    entries = _read_entries(state_dict["state"], numbers)
    if other:
        entries = {i: other.read_entry(optimizer, i, entry, f"state of parameter {i}") for i, entry in entries.items()}
    plan = _plan(optimizer, entries, _codings(state_dict) if ours and not other else None, groups)
    with KeptErrors() as kept:
        _apply(optimizer, plan, kept)
        take_groups(optimizer, groups)
        for post_hook in optimizer._optimizer_load_state_dict_post_hooks.values():
            post_hook(optimizer)


def copy_in(optimizer: Optimizer, entries: list[dict[str, torch.Tensor]]) -> None:
    """Puts copies of another optimizer's live state, by parameter number, into one with the same parameters."""
    with KeptErrors() as kept:
        codings = [optimizer._core.state_codec(i) for i in range(len(optimizer._params))]
        _apply(optimizer, _plan(optimizer, dict(enumerate(entries)), codings, []), kept)


def restart_removed(optimizer: Optimizer) -> None:
    """Zeroes the state of parameters that were removed from `optimizer.state`, as torch.optim would."""
    states = optimizer.state
    if type(states) is not States:
        optimizer.state = states = States(dict, states)
    gone = [i for i, param in enumerate(optimizer._params) if not states.get(param)]
    with KeptErrors() as kept:
        _apply(optimizer, [Restore(i, 0, {}, False) for i in gone], kept)
        states.removed = False


def carry_over(old: _core.Optimizer, new: _core.Optimizer, number: int, kept: KeptErrors) -> None:
    """Gives a parameter the state that it has in another core; where its format is another one, decoded and encoded.
    ValueError if it has other states there."""
    steps = old.step_count(number)
    if old.has_state(number) and steps > 0:
        had, wanted = ([name for name, _ in core.states_of(number)] for core in (old, new))
        expect(had == wanted, f"override of parameter {number}, which has {', '.join(had)}", "an option that makes it "
               f"{', '.join(wanted)}", "amsgrad, centered and momentum as they were at the first step")  # fmt: skip
        tensors = old.read_state(number)
        if len(tensors) > 1:  # with buffers
            new.allocate_state(number)
            taken = list(tensors)
            if old.state_codec(number) != new.state_codec(number):
                taken = [RESIDUAL]
                for k in range(len(old.states_of(number))):
                    kept.call(new.import_state, number, k, old.export_state(number, k))
            live = new.read_state(number)
            same = (name for name in taken if name in live and name in tensors and live[name].dtype == tensors[name].dtype)
            kept.call(new.write_state, number, {**live, **{name: tensors[name] for name in same}})
    new.set_step_count(number, steps)


def check_groups(optimizer: Optimizer, state_dict: dict[str, Any]) -> list[dict[str, Any]]:
    """The optimizer's groups with the options of `state_dict`'s; ValueError if they do not fit."""
    return _read_groups(optimizer, state_dict)[0]


def show_state(optimizer: Optimizer) -> None:
    """Puts into `optimizer.state` what the core has."""
    core = optimizer._core
    here = [core.has_state(i) for i in range(len(optimizer._params))]
    optimizer.state = States(dict)
    for i, param in enumerate(optimizer._params):
        shown = here[i] or param.requires_grad or core.step_count(i) > 0  # frozen ones may have gradients all the same
        optimizer.state[param] = shown_entry(optimizer, i) if shown else {}
    optimizer._awaited = [i for i, has in enumerate(here) if not has]
    optimizer.state.removed = False


def saved_entries(optimizer: Optimizer) -> dict[torch.Tensor, dict[str, Any]] | None:
    """`optimizer.state` as a state_dict has it; None where that is the same."""
    core, params = optimizer._core, optimizer._params
    saved: dict[torch.Tensor, dict[str, Any]] = {}
    if any(map(core.is_paged, range(len(params)))):
        saved = {param: live_entry(optimizer, i) for i, param in enumerate(params)}
    for core_group in optimizer._core_groups:
        told = _eight_bits(str(optimizer.param_groups[core_group.of]["state"]))
        for i in core_group.params:
            if _eight_bits(codec := core.state_codec(i)) == told:
                continue
            saved = saved or dict(optimizer.state)
            entry = saved.get(params[i], {})
            if any(name.endswith("_scale") for name in entry):
                saved[params[i]] = {**entry, CODEC: codec}
    return saved or None


def to_torch(optimizer: Optimizer) -> dict[str, Any]:
    """See `Optimizer.torch_state_dict`."""
    return torch_dict.write(optimizer, (*STAMP, *FIXED, "rounding"))


def to_bitsandbytes(optimizer: Optimizer, nested: bool) -> dict[str, Any]:
    """See `Optimizer.bitsandbytes_state_dict`."""
    return foreign.bitsandbytes.write(optimizer, nested, (*STAMP, *FIXED, "rounding"))


def _read_groups(optimizer: Optimizer, state_dict: Any) -> tuple[list[dict[str, Any]], dict[Any, int], bool]:
    """The new param_groups, the parameter number of every id in the dict, and whether the dict is one of Lowtide's."""
    expect(isinstance(state_dict, dict), "state_dict", type(state_dict).__name__, "a dict")
    for key, kind in (("state", dict), ("param_groups", list)):
        expect(key in state_dict, "state_dict", f"keys {sorted(map(str, state_dict))}", f"{key!r} among them")
        expect(isinstance(state_dict[key], kind), key, type(state_dict[key]).__name__, f"a {kind.__name__}")
    saved = state_dict["param_groups"]
    live = optimizer.param_groups
    expect(len(saved) == len(live), "param_groups", f"{len(saved)} groups", f"{len(live)}")
    ours = any(isinstance(group, dict) and any(key in group for key in STAMP) for group in saved)
    groups: list[dict[str, Any]] = []
    numbers: dict[Any, int] = {}
    for n, (group, mine) in enumerate(zip(saved, live, strict=True)):
        where = f"param_groups[{n}]"
        expect(isinstance(group, dict), where, type(group).__name__, "a dict")
        params = group.get("params")
        expect(isinstance(params, list), f"{where}['params']", type(params).__name__, "a list")
        got, wanted = len(group["params"]), len(mine["params"])
        expect(got == wanted, f"{where}['params']", f"{got} parameters", wanted)
        for key in group["params"]:
            expect(isinstance(key, (int, str)) and key not in numbers, f"{where}['params']", repr(key), "distinct ids")
            numbers[key] = len(numbers)
        if ours:
            _check_stamp(group, optimizer._rule, where)
        else:
            torch_dict.check_group(optimizer, n, group, where)
        drop = ("params", *STAMP, *FIXED, *(() if ours else torch_dict.IMPLEMENTATION_KEYS))
        new = {key: copy.deepcopy(value) for key, value in group.items() if key not in drop}
        if not ours:
            for key in torch_dict.option_names(optimizer):
                new.setdefault(key, mine[key])
        kept = {key: mine[key] for key in ("params", *STAMP, *FIXED, "rounding")}
        kept[SEED] = _read_seed(group, saved[0], where, mine[SEED])
        if "param_names" in mine:
            new.setdefault("param_names", mine["param_names"])
        groups.append({**kept, **new})
        try:
            for core_group in (each for each in optimizer._core_groups if each.of == n):
                options = core_group.options({n: groups[-1]})
                check_kinds({"rounding": options["rounding"]}, where)
                hyper = optimizer._hyper_of(core_group.rule, options)
                core = _core_with_group(optimizer, core_group, options["rounding"])
                if core_group.params:  # what decides which states there are is fixed then; its format bears some betas
                    like = (i for i in core_group.params if optimizer._core.state_codec(i) == core_group.format[0])
                    _add_like(optimizer, next(like, core_group.params[0]), core, False)
                core.set_hyper(0, hyper)
        except (TypeError, ValueError) as error:
            raise ValueError(f"{where}: {error}") from error
    return groups, numbers, ours


def _read_seed(group: dict[str, Any], first: dict[str, Any], where: str, mine: int) -> int:
    """The seed of a saved group; one for all. Without one (torch.optim, earlier versions) ours stays."""
    seed: Any = group.get(SEED, mine)
    valid = isinstance(seed, int) and not isinstance(seed, bool) and 0 <= seed < 2**63
    expect(valid, f"{where}[{SEED!r}]", repr(seed), "an integer from 0 to 2^63 - 1")
    expect(seed == first.get(SEED, mine), f"{where}[{SEED!r}]", seed, f"{first.get(SEED, mine)} as in the first group")
    return int(seed)


def _check_stamp(group: dict[str, Any], rule: str, where: str) -> None:
    version: Any = group.get("lowtide_format")
    expect(isinstance(version, int) and version >= 1, f"{where}['lowtide_format']", repr(version), f"1 to {FORMAT}")
    expect(version <= FORMAT, f"{where}['lowtide_format']", version, f"at most {FORMAT}: a newer version made it")
    expect(group.get("lowtide_rule") == rule, f"{where}['lowtide_rule']", repr(group.get("lowtide_rule")), repr(rule))


def _read_entries(state: dict[Any, Any], numbers: dict[Any, int]) -> dict[int, dict[str, Any]]:
    """The dict's entries by parameter number."""
    entries: dict[int, dict[str, Any]] = {}
    for key, entry in state.items():
        expect(key in numbers, "state", f"an entry {key!r}", "only ids that stand in param_groups")
        expect(isinstance(entry, dict), f"state[{key!r}]", type(entry).__name__, "a dict")
        entries[numbers[key]] = entry
    return entries


def _codings(state_dict: dict[str, Any]) -> list[str]:
    """For each parameter of a dict of Lowtide's, the codec of its group: that of uint8 codes, if it has any and its entry
    says nothing else."""
    return [str(group.get("state")) for group in state_dict["param_groups"] for _ in group["params"]]


def _plan(
    optimizer: Optimizer,
    entries: dict[int, dict[str, Any]],
    codings: list[str] | None,
    groups: list[dict[str, Any]],
) -> list[Restore]:
    """Checks every entry against the live state and says what is to be copied where. Changes nothing. codings: see
    `_codings`; None: the entries are those of a class of torch.optim, or of another library's, with these groups."""
    ours = codings is not None
    plan = []
    options = torch_dict.options_of(optimizer, groups) if groups else {}
    for i, param in enumerate(optimizer._params):
        where = f"state of parameter {i}"
        has_state = optimizer._core.has_state(i)
        entry = entries.get(i)
        if ours and entry is None:
            expect(not (has_state and param.requires_grad), where, "no entry", "one (empty for a frozen parameter)")
        coding = codings[i] if codings is not None else STORED_CODEC
        if ours and entry and CODEC in entry:
            coding = entry[CODEC]
            expect(coding in _core.codec_names(), f"{where}, {CODEC}", repr(coding), f"one of {_core.codec_names()}")
            entry = {name: value for name, value in entry.items() if name != CODEC}
        if not entry:
            plan.append(Restore(i, 0, {}, False))
            continue
        live = _layout(optimizer, i)
        if ours and MOMENTUM in live and set(entry) == {"step"}:
            plan.append(Restore(i, read_step(entry, where), {}, False))
            continue
        if of := optimizer._shardings[i]:
            entry = {
                name: of.unwrap(name, value, live[name], where) if name in live else local_of(value)
                for name, value in entry.items()
            }
        stored = ours or isinstance(entries[i], Stored)
        of_rule = live if ours else {name: value for name, value in live.items() if name != RESIDUAL}
        if stored:
            mine = optimizer._core.state_codec(i)
            step, tensors = _read_entry(entry, of_rule, local_of(param).shape, coding, mine, where)
        elif isinstance(entries[i], Values):
            step, tensors = read_values(entry, of_rule, local_of(param), where)
        else:
            step, tensors = torch_dict.read_entry(
                entry, of_rule, local_of(param), where, optimizer._rule, options[i]
            )
        signed = dict(optimizer._core.states_of(i))
        for name, tensor in tensors.items():
            positive = not signed.get(name, False)  # scales are, too
            check_moment(tensor, f"{where}, {name}", optimizer._nonfinite, positive)
        plan.append(Restore(i, step, tensors, not stored))
    return plan


def _layout(optimizer: Optimizer, index: int) -> dict[str, torch.Tensor]:
    """Tensors like those of the state that a parameter has or, having none, can be given."""
    core = optimizer._core
    live = core.state(index)
    if core.has_state(index) and len(live) > 1:
        return live
    live = _template(optimizer, index)  # SGD without momentum shows no buffer, and can be given one,
    if RESIDUAL in live and MOMENTUM in live:  # but a residual keeps to the states that it lies with
        there = core.read_state(index) if core.has_state(index) else _template(optimizer, index, fullest=False)
        live = {name: like for name, like in live.items() if name in there}
    return live


def _template(optimizer: Optimizer, index: int, fullest: bool = True) -> dict[str, torch.Tensor]:
    """All the state that the core can allocate for a parameter, whatever its momentum; or what it has with that."""
    core = _core_with_group(optimizer, next(group for group in optimizer._core_groups if index in group.params))
    _add_like(optimizer, index, core, not fullest)
    if fullest:
        core.allocate_state(0)
    return core.state(0)


def _core_with_group(optimizer: Optimizer, group: CoreGroup, rounding: str | None = None) -> _core.Optimizer:
    """A core on the host that has nothing but a group like this one of the optimizer, if not rounded otherwise."""
    core = _core.Optimizer(optimizer._core_rule, threads=1)
    state, least, master = group.format
    core.add_group(group.pushed, state, least, None, group.rounding if rounding is None else rounding, master, -1, group.rule)
    return core


def _add_like(optimizer: Optimizer, index: int, core: _core.Optimizer, with_state: bool) -> None:
    """Gives `core`, one on the host with one group, a parameter of the optimizer."""
    of = optimizer._shardings[index]
    core.add_param(0, _param_on_host(optimizer, index), with_state, of.shard if of else None)


def _param_on_host(optimizer: Optimizer, index: int) -> torch.Tensor:
    """A parameter, or, if it is on a device, one like it of which no memory is used."""
    param = optimizer._params[index]
    if optimizer._place is None or optimizer._place.on_host:
        return param
    local = torch.empty(local_of(param).shape, dtype=param.dtype)
    of = optimizer._shardings[index]
    return of.whole_of("param", local) if of else local


def _eight_bits(codec: str) -> str:
    """The codec of a parameter's uint8 codes that are a byte each."""
    return EIGHT_BITS.get(codec, codec)


def _codec(entry: dict[str, Any], name: str, shape: torch.Size, coding: str) -> str:
    """The codec of a moment of a parameter of this shape, as its tensors tell, or what its dtype is. coding: the
    parameter's, for uint8 codes."""
    dtype = entry[name].dtype
    if (dtype == torch.uint8) != (f"{name}_scale" in entry):
        return f"{dtype} {'without' if dtype == torch.uint8 else 'with'} scales"
    rows, length = rows_of(shape)
    packed = length % 2 == 0 and tuple(entry[name].shape) == (rows, length // 2)
    of_codes = "dynamic4" if packed else _eight_bits(coding)
    return {torch.float32: "fp32", torch.bfloat16: "bf16", torch.uint8: of_codes}.get(dtype, str(dtype))


def _read_entry(
    entry: dict[str, Any], live: dict[str, torch.Tensor], shape: torch.Size, coding: str, live_coding: str, where: str
) -> tuple[int, dict[str, torch.Tensor]]:
    for name in (key for key in live if key != "step" and not key.endswith("_scale")):
        expect(name in entry, where, f"keys {sorted(map(str, entry))}", sorted(live))
        check_tensor(entry[name], f"{where}, {name}")
        got, wanted = _codec(entry, name, shape, coding), _codec(live, name, shape, live_coding)
        expect(
            got == wanted,
            f"{where}, {name}",
            got,
            f"{wanted}: build the optimizer with the state, min_quantized_numel and overrides of the saved one",
        )
    expect(set(entry) == set(live), where, f"keys {sorted(map(str, entry))}", sorted(live))
    tensors = {name: entry[name] for name in live if name != "step"}
    for name, tensor in tensors.items():
        check_tensor(tensor, f"{where}, {name}")
        expect(tensor.dtype == live[name].dtype, f"{where}, {name}", tensor.dtype, live[name].dtype)
        expect(tensor.shape == live[name].shape, f"{where}, {name}", tuple(tensor.shape), tuple(live[name].shape))
    return read_step(entry, where), tensors


def clear_residual(core: _core.Optimizer, index: int, live: dict[str, torch.Tensor]) -> None:
    """Makes the weights of a parameter what they are without residual, if it has one."""
    if RESIDUAL in live:
        live[RESIDUAL].zero_()
    elif core.is_paged(index) and RESIDUAL in (copies := core.read_state(index)):
        copies[RESIDUAL].zero_()
        core.write_state(index, {name: value for name, value in copies.items() if name != "step"})


def _has_residual_alone(restore: Restore) -> bool:
    """Whether it is of SGD without momentum, with a residual, which keeps to the states that it lies with."""
    return set(restore.tensors) == {RESIDUAL}


def _apply(optimizer: Optimizer, plan: Iterable[Restore], kept: KeptErrors) -> None:
    """Carries a checked plan out. All allocation comes first, so that a MemoryError finds the state as it was."""
    plan = list(plan)
    core = optimizer._core
    core.onload()
    if any(_has_residual_alone(restore) and not core.has_state(restore.number) for restore in plan):
        core.place_states()  # as the options say: allocating would put a momentum buffer beside a residual
    for restore in plan:
        if restore.tensors:
            core.allocate_state(restore.number)
    for restore in plan:
        i, param = restore.number, optimizer._params[restore.number]
        live, paged = core.state(i), core.is_paged(i)
        names = [name for name, _ in core.states_of(i)]
        there = core.read_state(i) if paged and MOMENTUM in names and MOMENTUM not in restore.tensors else {}
        names = [name for name in names if name in live or (paged and (not there or name in there))]
        for k, name in enumerate(names):
            if name not in restore.tensors:
                kept.call(core.import_state, i, k, torch.zeros(local_of(param).shape))
            elif restore.encode:
                values = restore.tensors[name].detach().to("cpu", torch.float32).contiguous()
                kept.call(core.import_state, i, k, values)
        if RESIDUAL not in restore.tensors and core.has_state(i):
            clear_residual(core, i, live)
        if paged and restore.tensors and not restore.encode:
            copies = {name: tensor for name, tensor in there.items() if name != "step"}
            copies |= {name: tensor.detach().cpu().contiguous() for name, tensor in restore.tensors.items()}
            kept.call(core.write_state, i, copies)
        elif not restore.encode:
            for name, tensor in restore.tensors.items():
                live[name].copy_(tensor.detach())
        core.set_step_count(i, restore.step if restore.tensors else 0)  # 0 also says: nothing is in the buffers yet
        if not restore.tensors:
            live["step"].fill_(restore.step)
        optimizer.state[param] = shown_entry(optimizer, i) if paged else live_entry(optimizer, i)
    optimizer._awaited = [i for i in optimizer._awaited if not core.has_state(i)]
