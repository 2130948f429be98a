"""Reads and writes state dicts of bitsandbytes' optimizers, flat (before 0.49.2) or nested.

    {"state": {number: {"step": int, "__bnb_optimizer_quant_state__": {
        "state1": float32, or uint8 codes, of the parameter's shape (AdEMAMix: (2, *shape)), "state2": likewise,
        "qmap1", "qmap2": float32 [256], "absmax1", "absmax2": float32 [blocks]}}},
     "param_groups": [{"lr", "betas", "eps", "weight_decay", "alpha", "t_alpha", "t_beta3", "params"}]}

Blocks of 256 values, 2048 before 0.44, run flat over the tensor. The dict does not name its optimizer.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import torch

from lowtide.checks.values import check_tensor, expect, number, read_step
from lowtide.devices.sharding import rows_of
from lowtide.engine.engine import Engine
from lowtide.state import blockwise
from lowtide.state.entries import (
    NOTHING, Entry, ParamSpec, Quantized, check_book, check_codes, check_group, check_keys, check_scales, entry_of,
)  # fmt: skip
from lowtide.state.format import OWN_KEYS

NESTED = "__bnb_optimizer_quant_state__"
# The states in state1 and in state2, by rule.
MOMENTS: dict[str, tuple[tuple[str, ...], ...]] = {
    "adam": (("exp_avg",), ("exp_avg_sq",)),
    "adamw": (("exp_avg",), ("exp_avg_sq",)),
    "lamb": (("exp_avg",), ("exp_avg_sq",)),
    "ademamix": (("exp_avg", "exp_avg_slow"), ("exp_avg_sq",)),
    "lion": (("exp_avg",),),
    "sgd": (("momentum_buffer",),),
    "lars": (("momentum_buffer",),),
    "rmsprop": (("square_avg",),),
    "adagrad": (("sum",),),
}
# The options in "betas", in order, by rule. For all other rules they are betas.
_BETAS = {"sgd": ("momentum", "dampening"), "lars": ("momentum", "dampening"), "rmsprop": ("alpha", "momentum")}
_GROUP_KEYS = ("lr", "betas", "eps", "weight_decay")
_SCHEDULES = ("alpha", "t_alpha", "t_beta3")
_BLOCKS = (blockwise.BLOCK, 2048)
_SCRATCH = ("unorm_vec", "gnorm_vec")  # meaningless between two steps
_TENSOR_WISE = ("max1", "max2", "new_max1", "new_max2")


def recognizes(state: dict[Any, Any], groups: list[dict[str, Any]]) -> bool:
    entries = [entry for entry in state.values() if entry]
    if entries:
        return any(NESTED in entry or "state1" in entry for entry in entries)
    others = {"amsgrad", "foreach", "master_bytewidth"}
    return any(set(_GROUP_KEYS) <= set(group) and not others & set(group) for group in groups)


def read_group(rule: str, group: dict[str, Any], mine: dict[str, Any], where: str) -> dict[str, Any]:
    check_group(group, _GROUP_KEYS, f"all of {_GROUP_KEYS}", rule, MOMENTS, "bitsandbytes", where)
    betas = group["betas"]
    wanted = 0 if rule == "adagrad" else 3 if rule == "ademamix" else 2
    counted = isinstance(betas, (tuple, list)) and (not wanted or len(betas) == wanted)
    expect(counted, f"{where}['betas']", repr(betas), f"{wanted} of them, as {rule!r} has")
    if rule == "adam":
        decay, wanted_decay = group["weight_decay"], "0: bitsandbytes' Adam decouples its decay, like lowtide.AdamW"
        expect(decay == 0, f"{where}['weight_decay']", decay, wanted_decay)
    named = ["lr", "weight_decay"]
    if "eps" in mine and rule != "lars":  # here, LARS's eps belongs to norms
        named.append("eps")
        eps = group["eps"]
        expect(number("eps", eps) > 0, f"{where}['eps']", eps, f"more than 0, as {rule!r} has: Lion and SGD have none")
    read = {key: group[key] for key in named}
    if rule == "ademamix":
        read |= {key: group[key] for key in _SCHEDULES if key in group}
    if "betas" in mine:
        read["betas"] = tuple(betas)
    read |= dict(zip(_BETAS.get(rule, ()), betas, strict=False))
    known = (*_GROUP_KEYS, *_SCHEDULES)
    return {**mine, **{key: value for key, value in group.items() if key not in known}, **read}


def read_entry(spec: ParamSpec, entry: dict[str, Any], where: str) -> Entry:
    nested = entry.get(NESTED, {})
    expect(isinstance(nested, dict), f"{where}, {NESTED}", type(nested).__name__, "a dict")
    twice = sorted(str(key) for key in nested if key in entry)
    expect(not twice, where, f"{twice} nested and beside it", "each once")
    flat = {key: value for key, value in [*entry.items(), *nested.items()] if key != NESTED}
    if not flat:
        return NOTHING
    tensor_wise = [key for key in _TENSOR_WISE if key in flat]
    expect(not tensor_wise, where, f"{tensor_wise} of tensor-wise 8-bit state", "block-wise state, or float32")
    states = MOMENTS[spec.rule]
    numbers = range(1, len(states) + 1)
    keys = [f"{part}{k}" for k in numbers for part in ("state", "qmap", "absmax")]
    check_keys(flat, ["step", *keys, *_SCRATCH], where)
    step = read_step(flat, where)
    moments: dict[str, Quantized | torch.Tensor] = {}
    for k, names in zip(numbers, states, strict=True):
        expect(f"state{k}" in flat, where, f"no 'state{k}'", f"one: {spec.rule!r} has {len(states)}")
        parts = _read_state(flat, k, spec.shape, len(names), where)
        moments |= dict(zip(names, parts, strict=True))
    return entry_of(spec, step, moments)


def _read_state(
    flat: dict[str, Any], k: int, shape: torch.Size, parts: int, where: str
) -> list[Quantized] | list[torch.Tensor]:
    """The `parts` moments of this shape in state1 or state2."""
    state, book, absmax = (flat.get(f"{part}{k}") for part in ("state", "qmap", "absmax"))
    text = f"{where}, state{k}"
    check_tensor(state, text)
    assert isinstance(state, torch.Tensor)
    whole = (2, *shape) if parts == 2 else tuple(shape)
    if state.dtype != torch.uint8:
        expect(state.is_floating_point(), text, state.dtype, "float32 values or uint8 codes")
        expect(book is None and absmax is None, text, f"{state.dtype} with qmap or absmax", "uint8 codes with them")
        check_codes(state, state.dtype, whole, text)
        return list(state) if parts == 2 else [state]
    check_codes(state, torch.uint8, whole, text)
    expect(book is not None and absmax is not None, text, "codes without qmap or absmax", "both")
    check_book(book, 256, f"{where}, qmap{k}")
    check_scales(absmax, f"{where}, absmax{k}", state.numel())
    assert isinstance(book, torch.Tensor) and isinstance(absmax, torch.Tensor)
    book, absmax = book.detach().float(), absmax.detach().float()
    counts = {size: parts * math.ceil(state.numel() // parts / size) for size in _BLOCKS}
    wanted = " or ".join(f"{number} (blocks of {size})" for size, number in counts.items())
    fits = [size for size, number in counts.items() if number == absmax.numel()]
    expect(bool(fits), f"{where}, absmax{k}", f"{absmax.numel()} values for {state.numel()} elements", wanted)
    block = fits[0]
    if parts == 1:
        return [Quantized(state, absmax.reshape(-1), book, block)]
    fast, slow = absmax.reshape(-1), absmax.reshape(2, -1)[1]
    count = len(slow)
    # bitsandbytes' CUDA kernels store the scale of block b of the slow average at index (numel + 256 b) / 256. With a short
    # last block that is one index early, where the two averages share one, and the last index is never written.
    last = state[1].reshape(-1)[(count - 1) * block :]
    if (shape.numel() % block) and count and float(slow[-1]) == 0 and bool(last.any()):
        slow = fast[count - 1 : -1]
    return [Quantized(state[0], fast[:count], book, block), Quantized(state[1], slow, book, block)]


def write(engine: Engine, param_groups: Sequence[dict[str, Any]], nested: bool) -> dict[str, Any]:
    """See `Optimizer.bitsandbytes_state_dict`."""
    rule = engine.family.rule
    expect(rule in MOMENTS, "bitsandbytes_state_dict", repr(rule), f"one of {sorted(MOMENTS)}: bitsandbytes has no other")
    plain = not any(param.sharding for param in engine.params)
    expect(plain, "bitsandbytes_state_dict", "DTensor parameters", "plain ones: bitsandbytes has no other")
    groups: list[dict[str, Any]] = []
    state: dict[int, dict[str, Any]] = {}
    for group in param_groups:
        start = sum(len(done["params"]) for done in groups)
        numbers = list(range(start, start + len(group["params"])))
        groups.append({**_write_group(rule, group, engine.family.keys), "params": numbers})
        for i in numbers:
            core = engine.core_of(i)
            if core.has_state(i) and core.step_count(i) > 0:
                tensors = _write_entry(engine, i)
                state[i] = {"step": core.step_count(i), **({NESTED: tensors} if nested else tensors)}
    return {"state": state, "param_groups": groups}


def _write_group(rule: str, group: dict[str, Any], keys: tuple[str, ...]) -> dict[str, Any]:
    for key in ("amsgrad", "nesterov", "centered", "maximize", "lr_decay", "initial_accumulator_value"):
        got = group.get(key)
        expect(not got, f"bitsandbytes_state_dict: {key}", got, "False or 0: bitsandbytes would ignore it silently")
    own = {"betas", *_SCHEDULES, *(key for key in keys if key not in ("lr", "eps", "weight_decay"))}
    rest = {key: value for key, value in group.items() if key not in (*own, *OWN_KEYS, "params", "param_names")}
    betas = [group[key] for key in _BETAS[rule]] if rule in _BETAS else group.get("betas", (0.0, 0.0))
    schedules = {"alpha": 0.0, "t_alpha": None, "t_beta3": None} if len(MOMENTS[rule]) == 2 else {}
    if rule == "ademamix":
        schedules = {"alpha": group["alpha"], "t_alpha": group["t_alpha"] or None, "t_beta3": group["t_beta3"] or None}
    return {**rest, "lr": group["lr"], "betas": tuple(betas), "eps": group.get("eps", 0.0), **schedules}


def _write_entry(engine: Engine, number: int) -> dict[str, torch.Tensor]:
    live = engine.core_of(number).read_state(number)
    names = [name for name in engine.signed(number) if name in live]
    wanted = [name for part in MOMENTS[engine.family.rule] for name in part]
    expect(sorted(names) == sorted(wanted), f"bitsandbytes_state_dict: parameter {number}", names, wanted)
    parts = (part_of(engine, number, live, k) for k in range(1, len(MOMENTS[engine.family.rule]) + 1))
    return {name: tensor for part in parts for name, tensor in part.items()}


def part_of(engine: Engine, number: int, live: Mapping[str, torch.Tensor], k: int) -> dict[str, torch.Tensor]:
    """state1 or state2 of a parameter and, for codes, its qmap and absmax: views of `live` if the memory layout is the same.
    live: all of the parameter's Lowtide tensors, or copies of them. dynamic8 codes stay codes, and are encoded again if rows
    end within blocks that run flat over the tensor; all else becomes float32."""
    signed = engine.signed(number)
    names = MOMENTS[engine.family.rule][k - 1]
    coded = engine.core_of(number).state_codec(number) == "dynamic8"
    rows, length = rows_of(engine.tensors[number].shape)
    aligned = rows == 1 or length % blockwise.BLOCK == 0
    positive = not signed[names[0]]
    book = blockwise.dynamic_map(not positive)
    tensors: list[tuple[torch.Tensor, ...]] = []
    for name in names:
        if coded and aligned:
            tensors.append((live[name].contiguous(), live[f"{name}_scale"].reshape(-1).contiguous()))
            continue
        plain = live[name].dtype == torch.float32
        values = live[name] if plain else engine.core_of(number).export_state(number, list(signed).index(name))
        tensors.append(blockwise.encode(values, book, blockwise.BLOCK, positive) if coded else (values,))
    joined = [torch.stack(each) if len(names) == 2 else each[0] for each in zip(*tensors, strict=True)]
    return {f"state{k}": joined[0], **({f"qmap{k}": book, f"absmax{k}": joined[1]} if coded else {})}
