"""The logger "lowtide" says, at INFO, what an optimizer steps and where its state is."""

import copy
import logging
import re
import warnings
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


def test_skipped_steps_are_noticed(caplog: pytest.LogCaptureFixture) -> None:
    """The first skipped step warns, and the tenth in a row. Each is in the log. A finite gradient ends the row."""
    param = torch.nn.Parameter(torch.zeros(4))
    optimizer = lowtide.AdamW([("layer.bias", param)])
    with caplog.at_level(logging.WARNING, logger="lowtide"), warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        for number in range(25):
            param.grad = torch.full_like(param, 1.0 if number == 3 else float("nan"))
            optimizer.step()
    assert optimizer.skipped_steps == 24
    assert [record.levelno for record in caplog.records] == [logging.WARNING] * 24
    assert [str(one.message).partition(" skipped")[0] for one in caught] == ["a step was", "10 steps in a row were"]
    assert all(one.category is RuntimeWarning and one.filename == __file__ for one in caught)
    for said, steps in ((caught[0].message, 0), (caught[1].message, 1), (caplog.records[-1].getMessage(), 1)):
        assert "the gradient of parameter 0 (layer.bias) is" in str(said) and f"after step {steps}" in str(said)
    copied = copy.deepcopy(optimizer)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        copied.param_groups[0]["params"][0].grad = torch.ones(4)
        copied.step()


def test_a_scaler_looks_for_its_scale_in_quiet(caplog: pytest.LogCaptureFixture) -> None:
    param = torch.nn.Parameter(torch.zeros(4))
    optimizer = lowtide.AdamW([param], amp_scaling=True)
    optimizer.found_inf, optimizer.grad_scale = torch.tensor(1.0), torch.tensor(2.0)
    param.grad = torch.full_like(param, float("inf"))
    with caplog.at_level(logging.WARNING, logger="lowtide"), warnings.catch_warnings():
        warnings.simplefilter("error")
        optimizer.step()
    assert not caplog.records and optimizer.skipped_steps == 1


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_weights_of_16_bits_without_a_master_warn_once(dtype: torch.dtype) -> None:
    """In bitsandbytes' classes, which have no master by default."""
    cls = lowtide.compat.bitsandbytes.optim.AdamW8bit
    params = [torch.nn.Parameter(torch.zeros(4, 4, dtype=dtype)) for _ in range(3)]
    with pytest.warns(UserWarning, match='Pass master="auto"') as caught:
        optimizer = cls(params[:1])
        optimizer.add_param_group({"params": params[1:2]})
    assert len(caught) == 1 and caught[0].filename == __file__
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        cls(params, master=None)
        cls([{"params": params, "master": None}])
        cls([torch.nn.Parameter(torch.zeros(4, 4))])
        cls([params[0].detach().requires_grad_(False)])
        copy.deepcopy(optimizer)
        for master in ("auto", "residual16", "stochastic", None):
            lowtide.AdamW(params, master=master)
        lowtide.AdamW(params)
        lowtide.Muon(params)
        lowtide.override(params[2], master=None)
        cls(params[2:])
