"""Workers that have gone apart: a checksum of the parameters names the one that differs, errors say which vote is the last
complete one, and resync() brings workers together in a new group, to where they would be without the loss."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import lowtide.distributed as votes
import pytest
import torch
import torch.distributed as dist
from distributed_support import shared_ranks
from torch.nn.parallel import DistributedDataParallel
from vote_jobs import raised


def parameters(dtype: torch.dtype = torch.float32) -> list[torch.nn.Parameter]:
    torch.manual_seed(0)
    return [torch.nn.Parameter(torch.randn(shape).to(dtype)) for shape in ((40, 30), (7,))]


def gradients(params: list[torch.nn.Parameter], step: int) -> None:
    torch.manual_seed(1000 * step + dist.get_rank())
    for param in params:
        param.grad = torch.randn(param.shape).to(param.dtype)


def bits(params: list[torch.nn.Parameter]) -> list[bytes]:
    return [param.detach().contiguous().view(torch.uint8).numpy().tobytes() for param in params]


def changed_on_one(kind: str, every: int) -> tuple[int, tuple[str, str]]:
    """How many votes there were when a worker changed its parameters after the first and the others learnt of it."""
    options: dict[str, Any] = {"check_every": every}
    model = torch.nn.Linear(30, 40)
    torch.manual_seed(0)
    for param in model.parameters():
        torch.nn.init.normal_(param)
    forward: Any = model
    if kind == "hook":
        forward = DistributedDataParallel(model)
        hook = votes.SignVote(forward, **options)
        hook.register(forward)
        opt: torch.optim.Optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
    else:
        opt = {"lion": votes.DistributedLion, "signum": votes.Signum}[kind](model.parameters(), lr=1e-3, vote=options)
    for step in range(8):

        def whole(step: int = step) -> None:
            torch.manual_seed(1000 * step + dist.get_rank())
            opt.zero_grad()
            forward(torch.randn(4, 30)).square().mean().backward()
            opt.step()

        found = raised(whole)
        if found[0] != "nothing":
            return step, found
        if step == 0 and dist.get_rank() == 1:
            with torch.no_grad():
                model.bias[3] += 1e-3
    return 8, ("nothing", "")


def brought_together(kind: str, dtype: torch.dtype, master: str | None) -> dict[str, Any]:
    """Vote 3 is applied on the last rank and not on the others, whose group is lost; resync() and three more votes. Beside
    it the same without a loss."""
    rank, last = dist.get_rank(), dist.get_world_size() - 1
    made = []
    for _ in range(2):
        params = parameters(dtype)
        cls = {"lion": votes.DistributedLion, "signum": votes.Signum}[kind]
        made.append((params, cls(params, lr=1e-3, master=master, state="fp32")))
    (params, opt), (whole, undisturbed) = made
    for step in range(4):
        before = bits(params)
        residual = {p: opt.state[p]["residual"].clone() for p in params if "residual" in opt.state[p]}
        for each, group in ((opt, params), (undisturbed, whole)):
            gradients(group, step)
            each.step()
    if rank != last:
        for param, old in zip(params, before, strict=True):
            param.data.copy_(torch.frombuffer(bytearray(old), dtype=dtype).view(param.shape))
            if param in residual:
                opt.state[param]["residual"].copy_(residual[param])
        opt.param_groups[0]["votes"] = 3
        opt._collective.completed = 2
    opt._collective.lost("vote 3", RuntimeError("connection closed"))
    refused = raised(opt.step)
    apart = bits(params) != bits(whole)
    reached = opt.resync(group=dist.new_group())
    together = bits(params) == bits(whole)
    for step in range(4, 7):
        for each, group in ((opt, params), (undisturbed, whole)):
            gradients(group, step)
            each.step()
    return {
        "refused": refused, "apart": apart, "reached": reached, "together": together, "bits": bits(params),
        "undisturbed": bits(whole), "votes": opt.param_groups[0]["votes"],
    }  # fmt: skip


def joined() -> tuple[int, bool, int]:
    """A worker that begins takes the parameters of those that are there."""
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
    reached = opt.resync()
    for step in range(3, 5):
        gradients(params, step)
        opt.step()
    flat = torch.cat([param.detach().reshape(-1) for param in params])
    every = [torch.empty_like(flat) for _ in range(dist.get_world_size())]
    dist.all_gather(every, flat)
    return reached, all(torch.equal(one, flat) for one in every), opt.param_groups[0]["votes"]


@pytest.mark.parametrize("kind", ["lion", "signum", "hook"])
def test_a_worker_that_changes_its_parameters_is_named(kind: str, figure: Callable[[str], None]) -> None:
    """Changed after vote 0, on rank 1: found in vote 3 with check_every=3, never with 0, which is the default."""
    answers = shared_ranks().run(3, changed_on_one, kind, 3)
    for votes, (name, text) in answers:
        assert votes == 3 and name == ("RuntimeError" if kind == "hook" else "ValueError"), (votes, name, text)
        assert "the parameters' values" in text and "ranks [1] from rank 0" in text, text
    assert shared_ranks().run(3, changed_on_one, kind, 0) == [(8, ("nothing", ""))] * 3
    figure(f"{kind}: rank 1 is named on all of 3 workers in the first vote that compares")


@pytest.mark.parametrize(
    ("kind", "dtype", "master"),
    [("lion", torch.float32, None), ("signum", torch.float32, None), ("lion", torch.bfloat16, "residual16")],
)
def test_survivors_a_step_apart_are_brought_together(
    kind: str, dtype: torch.dtype, master: str | None, figure: Callable[[str], None]
) -> None:
    """The loss is played: vote 3 is taken back on all ranks but the last, as if its commit had not arrived. Each keeps
    its momentum, which has taken the gradient in on all of them: so the bits are those of workers that lost nothing."""
    answers = shared_ranks().run(3, brought_together, kind, dtype, master)
    for rank, found in enumerate(answers):
        name, text = found["refused"]
        last = f"vote {3 if rank == 2 else 2} is the last one that is complete on rank {rank}"
        assert name == "ConnectionError" and last in text and "resync()" in text, text
        assert found["apart"] == (rank != 2) and found["together"] and found["reached"] == 4
        assert found["bits"] == found["undisturbed"] and found["votes"] == 7
    figure(f"{kind}, {dtype}, master {master}: 3 workers, one a vote ahead: 0 bits differ after resync() and 3 votes")


def test_a_worker_that_begins_takes_the_others_parameters() -> None:
    assert shared_ranks().run(3, joined) == [(3, True, 5)] * 3
