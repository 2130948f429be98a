"""The format of Lowtide's own state dicts.

Format 1 (spread.py has the one for FSDP1's parameters) consists of plain tensors and Python values, which torch.load reads with
weights_only=True:

    {"state": {number: {"step": int64 (), NAME_codes: uint8, NAME_scale: float32 (rows, blocks)}},  # or NAME: values
     "param_groups": [{the group's options, "lowtide_format": 1, "lowtide_rule": rule, "lowtide_seed": seed,
                       "params": [number, ...]}]}

With max_grad_spike the first group also has "lowtide_norms": the norms of recent steps, oldest first (a tuple of floats). An
entry of NAdam, Schedule-Free or Prodigy also has the numbers of carried.py (float64, ()). A matrix of Muon with row_beta2 also
has "row_moment": float32 (..., rows, 1).

The tensors of a moment identify its codec: float32 or bfloat16 values of the parameter's shape, or uint8 codes with scales,
under names that torch.optim does not know, so that it cannot mistake codes for values. Codes under the name of the moment
itself are read, too. Codes (rows, bytes of a row) with half as many bytes as values are dynamic4's, in blocks of 128 within a
row. A vector whose codes a shard would cut has both forms (vectors.py). Codes of the parameter's shape are float8's if the
group's "state" says so, and dynamic8's otherwise, in blocks of 256. If an override makes that wrong, the entry has
"lowtide_state", the parameter's codec (a string). A 16-bit residual is stored as pairs of bytes, uint8 (*the parameter's sizes,
2), lower byte first, because gloo and NCCL do not transfer int16. Before the first step there are no entries. Tensors are views
of the live state, and no two share memory; for a DTensor parameter they are DTensors (devices/sharding.py). Format, rule and
the seed of stochastic rounding, which loading restores, are in the groups, so that they survive tools that take a state_dict
apart and reassemble it.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import torch

from lowtide import _core
from lowtide.checks.values import check_tensor, expect
from lowtide.devices.sharding import is_dtensor, local_of, rows_of
from lowtide.options.options import GROUP_OPTIONS
from lowtide.state.elsewhere import as_shown

FORMAT = 1
SPREAD = "lowtide_spread"  # True in all groups of a dict whose entries come from spread.py
SEED = "lowtide_seed"
STAMP = ("lowtide_format", "lowtide_rule", SEED)
NORMS = "lowtide_norms"  # in the first group, with max_grad_spike: gradient norms of recent steps
NORMS_KEPT = 128
OWN_KEYS = (*STAMP, NORMS, *GROUP_OPTIONS)  # keys of groups that other libraries have no use for
ESTIMATE = tuple(_core.carried_as_now("prodigy", {}, 0))  # keys of Prodigy's groups, as in the package prodigyopt, for users to read
HIDDEN_KEYS = ("params", "param_names", *STAMP, NORMS, *ESTIMATE)
MODE = "train_mode"  # a key of Schedule-Free's groups, as in the package schedulefree
SCALE = "_scale"  # follows the name of a moment: its scales
WANTED = "build the optimizer with the state, min_quantized_numel and overrides of the saved one"
CODEC = "lowtide_state"  # in an entry: the codec, if the group's "state" names another


def stamp(rule: str, seed: int) -> dict[str, Any]:
    """The keys that mark a parameter group as Lowtide's."""
    return {"lowtide_format": FORMAT, "lowtide_rule": rule, SEED: seed}


def is_stamped(group: Any) -> bool:
    return isinstance(group, dict) and not group.keys().isdisjoint(STAMP)


def read_stamp(group: dict[str, Any], first: dict[str, Any], rule: str, mine: int, where: str) -> int:
    """The seed of a saved group, equal in all groups; `mine` if it has none, as in earlier versions. Raises ValueError unless
    the group has this rule and a supported version."""
    version: Any = group.get("lowtide_format")
    expect(isinstance(version, int) and version >= 1, f"{where}['lowtide_format']", repr(version), f"1 to {FORMAT}")
    expect(version <= FORMAT, f"{where}['lowtide_format']", version, f"at most {FORMAT}: a newer version made it")
    wanted = f"{rule!r}: load it into an optimizer of the class that saved it"
    expect(group.get("lowtide_rule") == rule, f"{where}['lowtide_rule']", repr(group.get("lowtide_rule")), wanted)
    seed: Any = group.get(SEED, mine)
    valid = isinstance(seed, int) and not isinstance(seed, bool) and 0 <= seed < 2**63
    expect(valid, f"{where}[{SEED!r}]", repr(seed), "an integer from 0 to 2^63 - 1")
    expect(seed == first.get(SEED, mine), f"{where}[{SEED!r}]", seed, f"{first.get(SEED, mine)} as in the first group")
    return int(seed)


def read_norms(group: dict[str, Any], where: str) -> tuple[float, ...]:
    """The gradient norms in a saved group; none if it was saved without max_grad_spike."""
    norms: Any = group.get(NORMS, ())
    few = isinstance(norms, (tuple, list)) and len(norms) <= NORMS_KEPT
    fits = few and all(isinstance(norm, float) and 0 < norm < math.inf for norm in norms)
    expect(fits, f"{where}[{NORMS!r}]", repr(norms)[:80], f"{NORMS_KEPT} positive finite floats at most")
    return tuple(norms)


def eight_bits(codec: str) -> str:
    """The codec of a parameter's one-byte uint8 codes."""
    return "dynamic8" if codec == "dynamic4" else codec  # dynamic4 stores rows of odd length as dynamic8


def take_codec(entry: dict[str, Any], of_group: str, where: str) -> tuple[dict[str, Any], str]:
    """The tensors of an entry, and the codec of its uint8 codes, if any."""
    own = CODEC in entry
    codec: Any = entry.get(CODEC, of_group)
    if codec not in (names := _core.codec_names()):
        # Codes of an unknown format, from another version, may have the shapes of a known one.
        coded = any(isinstance(value, torch.Tensor) and value.dtype == torch.uint8 for value in entry.values())
        expect(not own and not coded, f"{where}, {CODEC if own else 'state of its group'}", repr(codec), f"one of {names}")
    return ({name: value for name, value in entry.items() if name != CODEC} if own else entry), codec


def residual_bytes(residual: torch.Tensor) -> torch.Tensor:
    """A residual in the form of dicts; a view."""
    return _viewed(residual, lambda words: words.unsqueeze(-1).view(torch.uint8)) if residual.dtype == torch.int16 else residual


def residual_words(residual: torch.Tensor) -> torch.Tensor:
    """A dict's residual in the core's form; a view. Earlier versions saved 16-bit residuals in the weight's type."""
    if residual.dtype == torch.uint8 and residual.shape[-1:] == (2,):
        return _viewed(residual, lambda pairs: pairs.contiguous().view(torch.int16).squeeze(-1))
    halves = residual.is_floating_point() and residual.itemsize == 2
    return _viewed(residual, lambda half: half.view(torch.int16)) if halves else residual


def _viewed(tensor: torch.Tensor, view: Callable[[torch.Tensor], torch.Tensor]) -> torch.Tensor:
    """Applies `view` to a tensor, or to a DTensor whose cut dimensions it keeps."""
    if not is_dtensor(tensor):
        return view(tensor.detach())
    of: Any = tensor
    like = view(torch.empty(of.shape, dtype=of.dtype, device="meta"))
    meta = of._spec.tensor_meta._replace(shape=like.shape, stride=like.stride(), dtype=like.dtype)
    made: torch.Tensor = type(of)(view(local_of(of)), replace(of._spec, tensor_meta=meta), requires_grad=False)
    return made


def check_entry(
    entry: dict[str, Any], live: dict[str, torch.Tensor], shape: torch.Size, codec: str, live_codec: str, where: str
) -> dict[str, torch.Tensor]:
    """The tensors of an entry whose uint8 codes use `codec`. Raises ValueError unless they match the live tensors of a
    parameter of this shape."""
    tensors: dict[str, torch.Tensor] = {}
    for name, like in live.items():
        if name not in entry:
            break
        if name == "step":
            continue
        here, tensor, scale = f"{where}, {name}", entry[name], f"{name}{SCALE}"
        check_tensor(tensor, here)
        alike = tensor.dtype == like.dtype and (scale in entry) == (scale in live)
        if not alike or (tensor.dtype == torch.uint8 and (codec, tensor.shape) != (live_codec, like.shape)):
            got, wanted = _told_by(entry, name, shape, codec), _told_by(live, name, shape, live_codec)
            expect(got == wanted or name.endswith(SCALE), here, got, f"{wanted}: {WANTED}")
        expect(tensor.dtype == like.dtype, here, tensor.dtype, like.dtype)
        expect(tensor.shape == like.shape, here, tuple(tensor.shape), tuple(like.shape))
        tensors[name] = tensor
    if entry.keys() != live.keys():
        raise ValueError(f"{where}: got keys {sorted(map(str, as_shown(entry)))}, wanted {sorted(as_shown(live))}")
    return tensors


def _told_by(tensors: dict[str, torch.Tensor], name: str, shape: torch.Size, codec: str) -> str:
    """The codec that a moment's tensors identify, or their dtype."""
    dtype, coded = tensors[name].dtype, tensors[name].dtype == torch.uint8
    if coded != (f"{name}{SCALE}" in tensors):
        return f"{dtype} {'without' if coded else 'with'} scales"
    rows, length = rows_of(shape)
    packed = length % 2 == 0 and tuple(tensors[name].shape) == (rows, length // 2)
    of_codes = "dynamic4" if packed else eight_bits(codec)
    return {torch.float32: "fp32", torch.bfloat16: "bf16", torch.uint8: of_codes}.get(dtype, str(dtype))
