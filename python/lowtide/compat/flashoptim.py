"""FlashOptim's state dicts. `load_state_dict` of the optimizer with the same rule loads their moments. `master_weights` reads
the low bits of bfloat16 and float16 parameters, which the dicts hold, too."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch

from lowtide.checks.values import expect
from lowtide.state.foreign import flashoptim


def master_weights(params: Iterable[torch.Tensor], state_dict: dict[str, Any]) -> list[torch.Tensor]:
    """Returns new tensors with the float32 value of each parameter, in order, from "error_bits" of a FlashOptim state_dict.
    params: the parameters that were saved with the dict, with the same types and values.

    Raises ValueError for a different number of parameters, and for error bits that do not fit.
    """
    params = list(params)
    groups = enumerate(state_dict["param_groups"])
    numbers = [(number, group, n) for n, group in groups for number in group["params"]]
    expect(len(numbers) == len(params), "params", f"{len(params)} parameters", f"{len(numbers)}, as the dict has")
    out = []
    for i, (param, (number, group, n)) in enumerate(zip(params, numbers, strict=True)):
        errors = state_dict["state"].get(number, {}).get("error_bits")
        if errors is None:
            out.append(param.detach().float().clone())
            continue
        expect("master_bytewidth" in group, f"param_groups[{n}]", "no 'master_bytewidth'", "3 or 4")
        where = f"state of parameter {i}, error_bits"
        out.append(flashoptim.master_weight(param, errors, int(group["master_bytewidth"]), where))
    return out
