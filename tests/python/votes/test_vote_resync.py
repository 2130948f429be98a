"""Workers that have gone apart: a checksum of the parameters names the one that differs, errors say which vote is the last
complete one, and resync() brings workers together in a new group, to where they would be without the loss."""

from __future__ import annotations

from typing import Any

import lowtide.distributed as votes
import pytest
import torch
import torch.distributed as dist
from distributed_support import alike, on_ranks
from torch.nn.parallel import DistributedDataParallel
from support import raised
from vote_jobs import CLASSES, snapshot


def parameters(dtype: torch.dtype = torch.float32) -> list[torch.nn.Parameter]:
    torch.manual_seed(0)
    return [torch.nn.Parameter(torch.randn(shape).to(dtype)) for shape in ((40, 30), (7,))]


def gradients(params: list[torch.nn.Parameter], step: int) -> None:
    torch.manual_seed(1000 * step + dist.get_rank())
    for param in params:
        param.grad = torch.randn(param.shape).to(param.dtype)


@pytest.mark.parametrize("every", [3, 0])
@pytest.mark.parametrize("kind", ["lion", "signum", "hook"])
@on_ranks(3)
def test_a_worker_that_changes_its_parameters_is_named(kind: str, every: int) -> str:
    """Changed after vote 0, on rank 1: found in vote 3 with check_every=3, never with 0, which is the default."""
    options: dict[str, Any] = {"check_every": every}
    model = torch.nn.Linear(30, 40)
    torch.manual_seed(0)
    for param in model.parameters():
        torch.nn.init.normal_(param)
    forward: Any = model
    if kind == "hook":
        forward = DistributedDataParallel(model)
        votes.SignVote(forward, **options).register(forward)
        opt: torch.optim.Optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
    else:
        opt = CLASSES[kind](model.parameters(), lr=1e-3, vote=options)

    def whole(step: int) -> None:
        torch.manual_seed(1000 * step + dist.get_rank())
        opt.zero_grad()
        forward(torch.randn(4, 30)).square().mean().backward()
        opt.step()

    for step in range(8):
        name, text = raised(lambda: whole(step))
        if every and step == every:
            assert name == ("RuntimeError" if kind == "hook" else "ValueError"), (name, text)
            assert "the parameters' values" in text and "ranks [1] from rank 0" in text, text
            break
        assert name == "nothing", (step, text)
        if step == 0 and dist.get_rank() == 1:
            with torch.no_grad():
                model.bias[3] += 1e-3
    return f"{kind}: rank 1 is named on all of 3 workers in the first vote that compares" if every else ""


@pytest.mark.parametrize(
    ("kind", "dtype", "master"),
    [("lion", torch.float32, None), ("signum", torch.float32, None), ("lion", torch.bfloat16, "residual16")],
)
@on_ranks(3)
def test_survivors_a_step_apart_are_brought_together(kind: str, dtype: torch.dtype, master: str | None) -> str:
    """The loss is played: vote 3 is taken back on all ranks but the last, as if its commit had not arrived. Each keeps
    its momentum, which has taken the gradient in on all of them: so the bits are those of workers that lost nothing."""
    rank = dist.get_rank()
    made = []
    for _ in range(2):
        params = parameters(dtype)
        made.append((params, CLASSES[kind](params, lr=1e-3, master=master, state="fp32")))
    (params, opt), (whole, _) = made

    def steps(numbers: range) -> None:
        for step in numbers:
            for group, each in made:
                gradients(group, step)
                each.step()

    steps(range(3))
    before = [param.detach().clone() for param in params]
    residual = {p: opt.state[p]["residual"].clone() for p in params if "residual" in opt.state[p]}
    steps(range(3, 4))
    if rank != 2:
        for param, old in zip(params, before, strict=True):
            param.data.copy_(old)
            if param in residual:
                opt.state[param]["residual"].copy_(residual[param])
        opt.param_groups[0]["votes"] = 3
        opt._collective.completed = 2
    opt._collective.lost("vote 3", RuntimeError("connection closed"))
    name, text = raised(opt.step)
    last = f"vote {3 if rank == 2 else 2} is the last one that is complete on rank {rank}"
    assert name == "ConnectionError" and last in text and "resync()" in text, text
    assert (snapshot(params) != snapshot(whole)) == (rank != 2)
    assert opt.resync(group=dist.new_group()) == 4 and snapshot(params) == snapshot(whole)
    steps(range(4, 7))
    assert snapshot(params) == snapshot(whole) and opt.param_groups[0]["votes"] == 7
    return f"{kind}, {dtype}, master {master}: 3 workers, one a vote ahead: 0 bits differ after resync() and 3 votes"


@on_ranks(3)
def test_a_worker_that_begins_takes_the_others_parameters() -> None:
    params = parameters()
    inside = dist.new_group([0, 1])
    if dist.get_rank() < 2:
        opt = votes.DistributedLion(params, lr=1e-3, vote={"group": inside})
        for step in range(3):
            gradients(params, step)
            opt.step()
    else:
        params = [torch.nn.Parameter(torch.zeros_like(param)) for param in params]
        opt = votes.DistributedLion(params, lr=1e-3, vote={"group": dist.new_group([2], use_local_synchronization=True)})
    assert opt.resync() == 3
    for step in range(3, 5):
        gradients(params, step)
        opt.step()
    alike(snapshot(params))
    assert opt.param_groups[0]["votes"] == 5
