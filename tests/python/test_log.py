"""The logger "lowtide" tells, at INFO, what an optimizer has to step and where its state is."""

import logging
import re
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

import lowtide


@pytest.mark.parametrize("memory", [None, "disk"])
@pytest.mark.parametrize("state", ["fp32", "dynamic8"])
def test_an_optimizer_introduces_itself(
    memory: str | None, state: str, tmp_path: Path, caplog: pytest.LogCaptureFixture, figure: Callable[[str], None]
) -> None:
    params = [torch.nn.Parameter(torch.ones(300, 512)), torch.nn.Parameter(torch.ones(7))]
    frozen = torch.nn.Parameter(torch.zeros(9, dtype=torch.uint8), requires_grad=False)
    caplog.set_level(logging.INFO, "lowtide")
    budget = lowtide.Memory(host="256KiB", disk=str(tmp_path)) if memory else None
    opt = lowtide.AdamW([*params, frozen], state=state, memory=budget)
    for param in params:
        param.grad = torch.ones_like(param)
    for _ in range(2):
        opt.step()
    first, *later = (record.getMessage() for record in caplog.records)
    report = opt.report()
    elements, state_bytes = 300 * 512 + 7 + 9, report["state_bytes"]
    assert first.startswith(f"AdamW on cpu: 3 parameters, {elements} elements, {state_bytes} bytes of state")
    assert first.endswith(f", under {budget}" if budget else " in RAM")
    assert len(later) == bool(memory)
    if memory:
        there, host, disk = map(int, re.findall(r"with (\d+)", later[0]))
        assert (there, disk) == (0, report["disk_bytes"]) and host == max(0, state_bytes - disk) and disk > 0
    figure("; ".join([first, *later]))


def test_nobody_asked(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.WARNING, "lowtide")
    lowtide.AdamW([torch.nn.Parameter(torch.ones(3))])
    assert caplog.text == ""
