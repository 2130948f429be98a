"""Parameters on torch's device type "npu": torch_npu's wheel, with its own torch, on fake_cann.cpp. No operator computes there,
so gradients are copied in. `make soak` runs this file in a process that has torch_npu (tools/run_tests.py)."""

from __future__ import annotations

import contextlib
import ctypes
import itertools
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import lowtide
import movers
import pytest
import torch
import torch.distributed.checkpoint as dcp
import torch_npu
from lowtide.engine.mirrors import MirrorCore
from support import CODECS, DTYPES, RULES
from torch.distributed.checkpoint import state_dict as of_torch
from twins import Count, Twins

Figure = Callable[[str], None]
SHAPES = ((33, 300), (5000,), (7,), ())
NPU = movers.Real("npu")
CANN = ctypes.CDLL("libascendcl.so")
CANN.fake_cann_copied_late.restype = ctypes.c_int64


@contextlib.contextmanager
def late_copies() -> Iterator[None]:
    """Copies on a stream happen only when the stream, or an event after them, is waited for."""
    CANN.fake_cann_be_late(1)
    yield
    CANN.fake_cann_be_late(0)


def on_disk(folder: Path) -> lowtide.Memory:
    return lowtide.Memory(host="256KiB", disk=folder, chunk="16KiB")


@pytest.mark.parametrize("late", [False, True], ids=["at once", "late"])
def test_cells(late: bool, tmp_path: Path, seed: int, figure: Figure) -> None:
    """Every dtype, format and budget, with and without clipping. The rules take turns."""
    rules = itertools.cycle(RULES)
    before = CANN.fake_cann_copied_late()
    cells = compared = 0
    for state, dtype, memory, clips in itertools.product(CODECS, DTYPES, (None, on_disk(tmp_path)), (False, True)):
        with late_copies() if late else contextlib.nullcontext():
            twins = Twins(NPU, SHAPES, next(rules), dtypes=[dtype], lr=1e-2, state=state, memory=memory)
            assert {param.device.type for param in twins.there} == {"npu"}
            for _ in range(3):
                twins.clip(0.1) if clips else twins.step(1)
            twins.compare_state()
        cells, compared = cells + 1, compared + twins.compared
    waited = CANN.fake_cann_copied_late() - before
    assert (waited > 0) == late
    figure(f"torch_npu {torch_npu.__version__}: {cells} cells, {compared} bytes alike, {waited} bytes copied late")


def test_a_dropped_wait_shows(monkeypatch: pytest.MonkeyPatch, seed: int) -> None:
    """Checks that late copies are noticed."""
    monkeypatch.setattr(MirrorCore, "_wait", lambda core, first=None: None)
    with late_copies(), pytest.raises(AssertionError, match="parameter 0 differs"):
        Twins(NPU, SHAPES, lr=1e-2).step()


def test_distributed_checkpoint_goes_on_on_the_cpu(tmp_path: Path, seed: int) -> None:
    def pieces(params: Any, opt: Any) -> dict[str, Any]:
        model = torch.nn.ParameterList(params)
        return {"model": of_torch.get_model_state_dict(model), "optimizer": of_torch.get_optimizer_state_dict(model, opt)}

    twins = Twins(NPU, SHAPES, lr=1e-2)
    twins.step()
    dcp.save(pieces(twins.there, twins.second), checkpoint_id=tmp_path)
    there = [torch.nn.Parameter(torch.zeros_like(param)) for param in twins.here]
    opt = lowtide.AdamW(there, lr=1e-2)
    found = pieces(there, opt)
    dcp.load(found, checkpoint_id=tmp_path)
    of_torch.set_optimizer_state_dict(torch.nn.ParameterList(there), opt, found["optimizer"])
    twins.gradients()
    for param, like in zip(there, twins.here, strict=True):
        param.grad = like.grad
    twins.take()
    opt.step()
    Count().compare(there, twins.there)
    Count().compare_states(opt, twins.second)


@pytest.mark.parametrize("disk", [False, True], ids=["memory", "disk"])
@pytest.mark.parametrize("project", sorted(movers.MOVERS.keys() - movers.BY_CUDA))
def test_hand_over_loops(project: str, disk: bool, tmp_path: Path, seed: int, figure: Figure) -> None:
    memory = on_disk(tmp_path) if disk else None
    figure(movers.hand_over(NPU, movers.MOVERS[project](), memory, state=movers.state_of(project)))
