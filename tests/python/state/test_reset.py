"""`reset` is a fresh start: the bits of a new optimizer of the same weights."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from support import CODECS, RULES, bits, copies_of, make, parameter, step_alike, take_steps

import lowtide
from lowtide.state.elsewhere import as_core


def bits_of(params: list[torch.nn.Parameter], opt: lowtide.Optimizer) -> list[bytes]:
    entries = [as_core(opt.state[param]) for param in params]
    return [*map(bits, params), *(bits(value) for entry in entries for _, value in sorted(entry.items()) if isinstance(value, torch.Tensor))]


@pytest.mark.parametrize("rule", RULES)
@pytest.mark.parametrize("tier", ["RAM", "disk"])
def test_a_reset_is_a_fresh_start(rule: str, tier: str, tmp_path: Path, figure: Callable[[str], None]) -> None:
    compared = 0
    for state in CODECS:
        for dtype, master in ((torch.float32, None), (torch.bfloat16, "residual16")):
            options: dict[str, Any] = {"state": state, "master": master, "seed": 5}
            if tier == "disk":
                options["memory"] = {"host": "64KiB", "disk": tmp_path, "chunk": "8KiB"}
            params = [parameter(40, 256, dtype=dtype), parameter(70, dtype=dtype), parameter(33, 300, dtype=dtype)]
            opt = make(rule, params, **options)
            take_steps(params, opt, 2)
            others = copies_of(params)
            fresh = make(rule, others, **options)
            opt.reset()
            assert len(opt.state) == 0 and opt.state_dict()["state"] == {} and opt.report()["steps"] == 0
            for _ in range(2):
                step_alike((params, opt), (others, fresh))
            found = bits_of(params, opt)
            assert found == bits_of(others, fresh), (state, dtype)
            compared += sum(map(len, found))
    figure(f"{rule}, {tier}: {len(CODECS)} formats, 2 dtypes: {compared} bytes compared, 0 differ")


def test_a_part_can_be_reset(figure: Callable[[str], None]) -> None:
    params = [parameter(40, 256), parameter(30, 200)]
    others = copies_of(params)
    opt = lowtide.AdamW([{"params": params[:1]}, {"params": params[1:]}], lr=1e-2)
    same = lowtide.AdamW(others, lr=1e-2)
    step_alike((params, opt), (others, same))
    with pytest.raises(ValueError, match=r"reset: params\[1\]: got a Parameter of no group"):
        opt.reset([params[0], others[0]])
    assert bits_of(params, opt) == bits_of(others, same), "a refusal changes nothing"
    opt.reset(opt.param_groups[1]["params"])
    assert params[1] not in opt.state and int(opt.state[params[0]]["step"]) == 1
    step_alike((params, opt), (others, same))
    assert bits_of(params[:1], opt) == bits_of(others[:1], same)
    assert [int(opt.state[param]["step"]) for param in params] == [2, 1]
    figure("one group afresh, the other goes on; a tensor of no group is refused")
