"""DeepSpeed's CPU Adam (AVX, fp32 state), built by DeepSpeed at first use."""

from __future__ import annotations

import contextlib
import io
from collections.abc import Callable, Sequence

import torch

from . import Unavailable


def make(params: Sequence[torch.Tensor]) -> Callable[[], object]:
    """A step of DeepSpeedCPUAdam(params, lr=1e-4, adamw_mode=True)."""
    try:
        with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(io.StringIO()):
            from deepspeed.ops.adam import DeepSpeedCPUAdam

            return DeepSpeedCPUAdam(params, lr=1e-4, adamw_mode=True).step
    except BaseException as error:  # a failed build may raise SystemExit
        if isinstance(error, KeyboardInterrupt):
            raise
        raise Unavailable(f"DeepSpeedCPUAdam: {type(error).__name__}: {str(error).splitlines()[0] if str(error) else ''}") from error
