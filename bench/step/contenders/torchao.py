"""torchao's AdamW with state of 8 or 4 bits (option "bits"): torch.compile makes its step, on a CPU with a C++ compiler."""

from __future__ import annotations

import logging
from typing import Any

import torch
from step.contenders import LEARNING_RATE

PACKAGE = "torchao"


def why_not(quick: bool) -> str | None:
    logging.disable(logging.WARNING)
    try:
        import torchao.optim  # noqa: F401

        if quick:
            return "torch.compile makes its step, and --quick does not wait for that"
        param = torch.nn.Parameter(torch.zeros(16, 256))
        param.grad = torch.zeros(16, 256)
        optimizer([param], "adamw", {}).step()
    except ImportError as error:
        return f"cannot be imported: {error}"
    except Exception as error:  # torch.compile fails in many types
        return f"cannot be compiled: {str(error).splitlines()[0] if str(error) else type(error).__name__}"
    finally:
        logging.disable(logging.NOTSET)
    return None


def describe() -> dict[str, Any]:
    return {}


def optimizer(params: list[torch.nn.Parameter], rule: str, options: dict[str, Any]) -> Any:
    import torchao.optim

    made = {8: torchao.optim.AdamW8bit, 4: torchao.optim.AdamW4bit}[options.get("bits", 8)]
    return made(params, lr=LEARNING_RATE[rule], weight_decay=1e-2)
