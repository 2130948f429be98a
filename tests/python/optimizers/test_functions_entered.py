"""A plain model on the CPU takes a short path. Counts the functions of Lowtide that Python enters, each once, including
comprehensions and lambdas."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from types import FrameType

import lowtide
import torch

ROOT = str(Path(lowtide.__file__).parent)
# A change that needs another function says why here.
MOST = {"construct": 45, "step": 12, "load": 40}


def entered(call: Callable[[], object]) -> int:
    """The distinct functions that `call` enters."""
    found: set[object] = set()

    def note(frame: FrameType, event: str, argument: object) -> None:
        if event == "call" and frame.f_code.co_filename.startswith(ROOT):
            found.add(frame.f_code)

    sys.setprofile(note)
    try:
        call()
    finally:
        sys.setprofile(None)
    return len(found)


def test_functions_that_are_entered(figure: Callable[[str], None]) -> None:
    params = [torch.nn.Parameter(torch.randn(8, 8)) for _ in range(2)]
    cls = lowtide.AdamW  # the first use of a name imports the package
    made: list[lowtide.AdamW] = []
    counts = {"construct": entered(lambda: made.append(cls(params)))}
    opt = made[0]
    for param in params:
        param.grad = torch.ones_like(param)
    opt.step()
    opt.step()
    counts["step"] = entered(opt.step)
    saved = opt.state_dict()
    counts["load"] = entered(lambda: opt.load_state_dict(saved))
    assert {name: count for name, count in counts.items() if count > MOST[name]} == {}, "more than the most"
    figure(", ".join(f"{name} {count} of {MOST[name]}" for name, count in counts.items()))
