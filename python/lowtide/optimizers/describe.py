"""Describes an optimizer: its line in the log, its `repr`, and advice about its weights."""

from __future__ import annotations

import inspect
from collections.abc import Mapping, Sequence
from operator import attrgetter
from typing import Any

import torch

from lowtide import _core
from lowtide.devices import sharding
from lowtide.engine.engine import Engine
from lowtide.options.options import DEFAULTS
from lowtide.report.log import logger, warn
from lowtide.report.text import size_text
from lowtide.state import views
from lowtide.state.format import HIDDEN_KEYS

HALVES = {torch.bfloat16, torch.float16}
DTYPE = attrgetter("dtype")


def introduce(engine: Engine) -> None:
    """Logs the parameters and their state."""
    dist = torch.distributed
    rank = f", rank {dist.get_rank()}" if dist.is_available() and dist.is_initialized() else ""
    memory = f", under {engine.settings.memory}" if engine.settings.memory else " in RAM" if engine.in_ram else ""
    logger.info(
        "%s on %s%s: %d parameters, %d elements, %d bytes of state%s", engine.family.name,
        ", ".join(str(place.device) for place in engine.cores) or "no device yet", rank, len(engine.params),
        sum(sharding.local_of(tensor).numel() for tensor in engine.tensors), sum(views.wanted_bytes(engine)), memory,
    )  # fmt: skip


def warn_of_master(engine: Engine, first: int) -> bool:
    """Warns, and returns True, if trained 16-bit weights among the parameters from number `first` on have no master."""
    without = [group for group in engine.groups if not group.options["master"] and "master" not in group.overrides]
    trained = [engine.tensors[i] for group in without for i in group.params if i >= first and engine.tensors[i].requires_grad]
    kinds = HALVES & {param.dtype for param in trained}
    if kinds:
        kind = "bfloat16" if torch.bfloat16 in kinds else "float16"
        warn(
            f"{engine.family.name}: got {kind} weights without master=: they round to nearest, so updates below half of their last "
            'bit are lost, most of them at the learning rates of fine-tuning. Pass master="auto", or master=None to keep this'
        )
    return bool(kinds)


def description(cls: type, engine: Engine, groups: Sequence[Mapping[str, Any]]) -> str:
    """One line for the optimizer, which is of class `cls`, and one per group. See `Optimizer.__repr__`."""
    words = [f"lowtide {_core.__version__}", engine.core.cpu_target()]
    words += [f"{p.kind.backend} for {p.device}" for p in engine.cores if p.mirrored or not p.on_host]
    words += _differing(vars(engine.settings), DEFAULTS)
    lines = [f"{cls.__name__}({', '.join(words)})"]
    signature = inspect.signature(cls).parameters
    defaults = {**DEFAULTS, **{name: one.default for name, one in signature.items() if name != "lr"}}
    sizes = views.wanted_bytes(engine)
    for number, (group, of) in enumerate(zip(groups, engine.members)):  # wrappers may omit groups
        options = {"lr": group.get("lr"), **group, **({"memory": of.memory} if of.memory else {})}
        count = len(group["params"])
        words = [f"{count} tensor{'s' * (count != 1)}", f"{size_text(sizes[number])} of state" if sizes[number] else "no state"]
        words += _differing({name: value for name, value in options.items() if name not in HIDDEN_KEYS}, defaults)
        lines.append(f"  group {number}: {', '.join(words)}")
    return "\n".join(lines)


def _differing(options: Mapping[str, Any], defaults: Mapping[str, Any]) -> list[str]:
    """NAME=VALUE for each option that differs from its default. Compares texts, because tensors do not compare like numbers."""
    return [f"{name}={value!r}" for name, value in options.items() if repr(value) != repr(defaults.get(name, options))]
