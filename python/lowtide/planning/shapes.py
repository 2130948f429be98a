"""The shapes of parameters, from whatever describes a model: nothing is materialized and no data is read."""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import torch

from lowtide.checks.values import number
from lowtide.devices import sharding
from lowtide.devices.parameters import check_parameter
from lowtide.memory.budgets import Memory
from lowtide.options.hyper import BETAS, hyper_values
from lowtide.options.options import check_kinds
from lowtide.options.overrides import options_of

Shape = tuple[int, ...]
_WANTED = "wanted a module, tensors, groups of them (dicts with 'params') or shapes (tuples of sizes)"
_COLUMNS = 4096  # of the matrices that a bare number of parameters is taken for


class ShapedParam(NamedTuple):
    """A parameter as one process has it; `whole`: (shape of the whole, whether rows are cut) of a DTensor."""

    shape: Shape
    whole: tuple[list[int], bool] | None = None
    dtype: str = "float32"


class Variant(NamedTuple):
    """The hyper-parameters that decide which states a rule has, how often a step reads them, and whether they can have 4
    bits, which takes short averages."""

    momentum: float = 0.0
    amsgrad: bool = False
    centered: bool = False
    max_unorm: float = 0.0
    betas: tuple[float, ...] | None = None  # None: the rule's
    alpha: float | None = None  # likewise

    def hyper(self, rule: str) -> dict[str, float]:
        """As the core takes them. TypeError or ValueError for betas that the rule does not have."""
        hyper = {key: value for key, value in self._asdict().items() if key != "betas" and value is not None}
        keys = BETAS[: 3 if rule == "ademamix" else 2] if self.betas is not None else ()
        return {**hyper, **dict(zip(keys, hyper_values(keys, {"betas": self.betas}), strict=True))}


@dataclass(frozen=True)
class ShapedGroup:
    """Parameters with the options of their group that decide about memory."""

    params: tuple[ShapedParam, ...]
    state: str
    min_quantized_numel: int
    variant: Variant
    memory: Memory | None = None
    number: int = 0  # of the parameter group
    rule: str = ""  # the core's, where it is another than that of all
    master: str = ""
    shares: int = -1  # place of the group whose budget it has; -1: its own (memory), or that of all


def groups_of(source: Any, defaults: ShapedGroup, muon: bool = False) -> list[ShapedGroup]:
    """The groups that an optimizer would make of `source`, in order, cut where options or rule change. `defaults` give
    the options that a group lacks. muon: matrices have its rule.

    Frozen parameters (`torch.nn.Parameter`s that require no gradient) are left out: they never get state.
    Raises ValueError or TypeError for what an optimizer would refuse, wherever the tensors are.
    """
    if isinstance(source, torch.nn.Module):
        source = source.parameters()
    if isinstance(source, (torch.Tensor, str, bytes, Mapping)) or not isinstance(source, Iterable):
        raise TypeError(f"got {type(source).__name__}, {_WANTED}")
    entries = list(source)
    if not any(isinstance(entry, Mapping) for entry in entries):
        entries = [{"params": entries}]
    seen: set[int] = set()
    groups: list[ShapedGroup] = []
    for n, entry in enumerate(entries):
        groups += _groups(entry, defaults, n, seen, muon, len(groups))
    return groups


def _groups(
    entry: Any, defaults: ShapedGroup, number: int, seen: set[int], muon: bool, first: int
) -> list[ShapedGroup]:
    """The parameters of one group; first: place of the first one."""
    where = f"parameter group {number}"
    if not isinstance(entry, Mapping) or "params" not in entry:
        raise TypeError(f"{where}: got {type(entry).__name__}, wanted a dict with 'params', as all groups are")
    check_kinds(entry, where)
    params = entry["params"]
    if isinstance(params, torch.nn.Module):
        params = params.parameters()
    members = [params] if isinstance(params, torch.Tensor) else list(params)
    members = [m[1] if isinstance(m, tuple) and len(m) == 2 and isinstance(m[0], str) else m for m in members]
    tensors = [member for member in members if isinstance(member, torch.Tensor)]
    overrides = {id(member): own for member, own in zip(tensors, options_of(tensors), strict=True)}
    shaped: list[tuple[Mapping[str, Any], str, list[ShapedParam]]] = [({}, "", [])]

    def add(own: Mapping[str, Any], param: ShapedParam) -> None:
        matrix = len(param.whole[0] if param.whole else param.shape) == 2
        rule = "sgd" if muon and matrix and {**entry, **own}.get("use_muon", True) else ""
        if (own, rule) != shaped[-1][:2]:
            shaped.append((own, rule, []))
        shaped[-1][2].append(param)

    for place, member in enumerate(members):
        here = f"{where}, parameter {place}"
        if isinstance(member, torch.Tensor):
            if id(member) in seen:
                raise ValueError(f"{here}: got the same parameter more than once, wanted each once")
            seen.add(id(member))
            local = sharding.local_of(member)
            check_parameter(local, here, anywhere=True)
            if isinstance(member, torch.nn.Parameter) and not member.requires_grad:
                continue
            shards = sharding.sharding_of(member, here)
            own = overrides[id(member)]
            check_kinds(own, f"{here}: override")
            dtype = str(local.dtype).removeprefix("torch.")
            add(own, ShapedParam(tuple(local.shape), shards.whole if shards else None, dtype))
        else:
            add({}, ShapedParam(_shape(member, here)))
    groups: list[ShapedGroup] = []
    budgets: list[Memory | None] = []  # of these
    for options, rule, params in shaped:
        merged: dict[str, Any] = {"memory": None, **entry, **options}
        shares = first + budgets.index(merged["memory"]) if merged["memory"] in budgets else -1
        budgets.append(merged["memory"])
        groups.append(
            ShapedGroup(
                tuple(params),
                merged.get("state", defaults.state),
                int(merged.get("min_quantized_numel", defaults.min_quantized_numel)),
                variant_of(merged, defaults.variant),
                merged["memory"] if shares < 0 else None,
                number,
                rule,
                merged.get("master", defaults.master) or "",
                shares,
            )
        )
    return groups


def variant_of(given: Mapping[str, Any], defaults: Variant = Variant()) -> Variant:
    """The variant that a group's options, or arguments, select. TypeError or ValueError for a wrong type or value."""
    merged = {**defaults._asdict(), **{key: given[key] for key in Variant._fields if key in given}}
    momentum, amsgrad, centered, max_unorm = hyper_values(Variant._fields[:4], merged)
    betas, alpha = merged["betas"], merged["alpha"]  # betas: how many there must be, the rule says
    return Variant(
        momentum, bool(amsgrad), bool(centered), max_unorm,
        tuple(betas) if isinstance(betas, list) else betas,
        None if alpha is None else number("alpha", alpha),
    )  # fmt: skip


def most_of(variants: Iterable[Variant]) -> Variant:
    """Whose step takes the most: the largest of each hyper-parameter."""
    given = ([value for value in values if value is not None] for values in zip(*variants, strict=True))
    return Variant._make(max(values, default=None) for values in given)


def _shape(value: Any, where: str) -> Shape:
    if not isinstance(value, (tuple, list)):
        raise TypeError(f"{where}: got {value!r} ({type(value).__name__}), {_WANTED}")
    for size in value:
        if not isinstance(size, int) or isinstance(size, bool):
            raise TypeError(f"{where}: got a size of {size!r} ({type(size).__name__}), wanted an int")
        if not 0 <= size < 2**63:
            raise ValueError(f"{where}: got a size of {size}, wanted 0 to 2^63 - 1")
    return tuple(value)


def of_count(params: int) -> list[Shape]:
    """A model of `params` parameters: matrices of 4096 by 4096, the rest in rows of 4096 and one vector."""
    if not 0 < params < 2**63:
        raise ValueError(f"got {params} parameters, wanted 1 to 2^63 - 1")
    whole, rest = divmod(params, _COLUMNS * _COLUMNS)
    if whole > 1 << 22:
        raise ValueError(f"got {params} parameters, wanted {_COLUMNS * _COLUMNS << 22} at most")
    rows, vector = divmod(rest, _COLUMNS)
    shapes: list[Shape] = [(_COLUMNS, _COLUMNS)] * whole
    return shapes + ([(rows, _COLUMNS)] if rows else []) + ([(vector,)] if vector else [])


def of_file(path: str | os.PathLike[str]) -> list[Shape]:
    """From JSON: a list of shapes, or an object of name: shape."""
    content = _json(path)
    shapes = list(content.values()) if isinstance(content, dict) else content
    if not isinstance(shapes, list):
        raise ValueError(f"{path}: got {type(content).__name__}, wanted a list of shapes or an object of name: shape")
    return [_shape(shape, f"{path}, shape {n}") for n, shape in enumerate(shapes)]


def of_hf_config(path: str | os.PathLike[str]) -> list[Shape]:
    """Shapes of the causal language model that a `config.json` of transformers describes; needs that package."""
    content = _json(path)
    if not isinstance(content, dict) or not isinstance(content.get("model_type"), str):
        raise ValueError(f"{path}: got no model_type, wanted the config.json of a transformers model")
    try:
        from transformers import AutoConfig, AutoModelForCausalLM
    except ImportError as error:
        raise ValueError(f"{path}: transformers is not installed: pip install transformers, or use shapes") from error
    kind = content.pop("model_type")
    try:
        config = AutoConfig.for_model(kind, **content)
        build: Any = AutoModelForCausalLM.from_config  # untyped there
        with torch.device("meta"):
            model = build(config)
    except Exception as error:  # whatever that package raises for a config that it cannot use
        reason = (str(error).strip() or type(error).__name__).splitlines()[0]
        raise ValueError(f"{path}: transformers cannot make a causal language model of it: {reason[:200]}") from error
    return [tuple(param.shape) for param in model.parameters() if param.requires_grad]


def _json(path: str | os.PathLike[str]) -> Any:
    try:
        return json.loads(Path(path).read_text(encoding="utf-8"))
    except (ValueError, RecursionError) as error:  # also bytes that are no text, and numbers that are too long
        raise ValueError(f"{path}: got what is not JSON: {error}") from error
