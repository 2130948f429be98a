"""DeepSpeed's CPUAdam, compiled by DeepSpeed itself when first used (some minutes)."""

from __future__ import annotations

import logging
import os
from pathlib import Path
from typing import Any

import torch
from step.contenders import LEARNING_RATE

PACKAGE = "deepspeed"


def _compiled() -> bool:
    from torch.utils.cpp_extension import _get_build_directory

    return Path(_get_build_directory("cpu_adam", False), "cpu_adam.so").exists()


def why_not(quick: bool) -> str | None:
    os.environ.setdefault("DS_ACCELERATOR", "cpu")
    logging.disable(logging.WARNING)
    try:
        from deepspeed.ops.adam import DeepSpeedCPUAdam

        if quick and not _compiled():
            return "not compiled yet, and --quick does not wait for that"
        param = torch.nn.Parameter(torch.zeros(64))
        param.grad = torch.zeros(64)
        DeepSpeedCPUAdam([param]).step()
    except ImportError as error:
        return f"cannot be imported: {error}"
    except Exception as error:  # its build fails in many types
        return f"cannot be built: {str(error).splitlines()[0] if str(error) else type(error).__name__}"
    finally:
        logging.disable(logging.NOTSET)
    return None


def describe() -> dict[str, Any]:
    return {}


def optimizer(params: list[torch.nn.Parameter], rule: str, options: dict[str, Any]) -> Any:
    from deepspeed.ops.adam import DeepSpeedCPUAdam

    return DeepSpeedCPUAdam(params, lr=LEARNING_RATE[rule], weight_decay=1e-2, adamw_mode=True)
