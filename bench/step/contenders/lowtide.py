"""Lowtide. The option "cpu_target" picks an instruction set, as only tests and benchmarks do."""

from __future__ import annotations

from typing import Any

import torch
from step.contenders import LEARNING_RATE

PACKAGE = "lowtide"
CLASSES = {"adamw": "AdamW", "lion": "Lion"}


def why_not(quick: bool) -> str | None:
    try:
        import lowtide  # noqa: F401
    except ImportError as error:
        return f"cannot be imported: {error}"
    return None


def cannot(options: dict[str, Any]) -> str | None:
    """Why these options cannot be measured on this CPU."""
    from lowtide import _core

    target = options.get("cpu_target", "")
    if target and target not in _core.cpu_targets():
        return f"this CPU cannot run {target}"
    if target == _core.cpu_targets()[0]:
        return f"{target} is this CPU's default path: see the row without it"
    return None


def describe() -> dict[str, Any]:
    from lowtide import _core

    return {"cpu_targets": _core.cpu_targets()}


def optimizer(params: list[torch.nn.Parameter], rule: str, options: dict[str, Any]) -> Any:
    import lowtide

    made = getattr(lowtide, CLASSES[rule])(params, lr=LEARNING_RATE[rule], weight_decay=1e-2, **options)
    target = options.get("cpu_target", "")
    if target and made._core.cpu_target() != target:
        raise RuntimeError(f"got the path {made._core.cpu_target()}, wanted {target}")
    return made
