"""Every worker refuses bad input to votes by name; the others hear of a worker that cannot vote."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import lowtide.distributed as votes
import pytest
import torch
import torch.distributed as dist
from distributed_support import alike, on_ranks
from lowtide.distributed.buffers import SignBuffers
from torch.nn.parallel import DistributedDataParallel
from support import raised
from vote_jobs import snapshot

Lion = votes.DistributedLion


def Vote(**options: Any) -> votes.ShardVote:  # noqa: N802 - stands where the class does
    """A vote of all ranks."""
    return votes.ShardVote(group=dist.group.WORLD, **options)


def ones(*shape: int, **options: Any) -> torch.nn.Parameter:
    return torch.nn.Parameter(torch.ones(*shape, **options), requires_grad=True)


def integers() -> torch.nn.Module:
    model = torch.nn.Linear(3, 3)
    model.weight = torch.nn.Parameter(torch.ones(3, 3, dtype=torch.float64))
    return model


def sparse(*shape: int) -> torch.Tensor:
    return torch.sparse_coo_tensor(torch.tensor([[1]]), torch.ones(1, shape[1]), shape, check_invariants=True)


def with_sparse_gradient() -> Any:
    param = ones(10, 3)
    param.grad = sparse(10, 3)
    return param


CALLS: dict[str, tuple[str, str, Callable[[], Any]]] = {
    "ties": ("ValueError", "ties: got 'most'", lambda: Lion([ones(3)], vote={"ties": "most"})),
    "algorithm": ("ValueError", "algorithm: got 3", lambda: votes.Collective(algorithm=3)),
    "weight": ("ValueError", "weight: got -1", lambda: Lion([ones(3)], vote={"weight": -1})),
    "half a weight": ("ValueError", "weight: got 0.5", lambda: Vote(weight=0.5)),
    "seed": ("ValueError", "seed: got -1", lambda: votes.Collective(seed=-1)),
    "timeout": ("ValueError", "timeout: got 0", lambda: votes.Signum([ones(3)], vote={"timeout": 0})),
    "option": ("TypeError", "tie", lambda: votes.SignVote(torch.nn.Linear(3, 3), tie="plus")),
    "no votes": ("ValueError", "weights of 0 votes", lambda: Vote(weight=0)(torch.ones(3))),
    "no parameters": ("ValueError", "no parameter", lambda: votes.SignVote(torch.nn.Tanh())),
    "frozen": ("ValueError", "requires a grad", lambda: votes.SignVote(torch.nn.Linear(3, 3).requires_grad_(False))),
    "float64": ("ValueError", "weight: got torch.float64", lambda: votes.SignVote(integers())),
    "integers": ("ValueError", "got torch.int64", lambda: Vote()(torch.ones(3, dtype=torch.int64))),
    "integer parameters": ("ValueError", "torch.int32", lambda: Lion([torch.ones(3, dtype=torch.int32)])),
    "strides": ("ValueError", "strides (1, 4)", lambda: Vote()(torch.ones(5, 4).T)),
    "meta": ("NotImplementedError", "meta", lambda: Vote()(torch.ones(3, device="meta"))),
    "meta model": ("NotImplementedError", "meta", lambda: votes.SignVote(torch.nn.Linear(3, 3, device="meta"))),
    "meta parameters": ("ValueError", "meta", lambda: Lion([ones(3, device="meta")])),
    "meta counts": ("NotImplementedError", "meta", lambda: votes.SignAccumulator([ones(3, device="meta")])),
    "sparse": ("ValueError", "sparse", lambda: Lion([with_sparse_gradient()]).step()),
    "sparse counts": ("ValueError", "sparse", lambda: votes.SignAccumulator([with_sparse_gradient()]).add()),
    "most": ("ValueError", "most: got 0", lambda: votes.SignAccumulator([ones(3)], most=0)),
    "nothing to count": ("ValueError", "params: got none", lambda: votes.SignAccumulator([torch.ones(3)])),
    "residual": ("ValueError", "got 'fp8'", lambda: votes.ErrorFeedbackSign(torch.nn.Linear(3, 3), residual="fp8")),
    "previous": ("ValueError", "ties: got 'previous'", lambda: Vote(ties="previous")),
    "a copied hook": ("TypeError", "process group", lambda: copy.deepcopy(votes.SignVote(torch.nn.Linear(3, 3)))),
    "a copied vote": ("TypeError", "process group", lambda: copy.deepcopy(Vote())),
    "ties beside vote": ("TypeError", "wanted it in vote={'ties'", lambda: Lion([ones(3)], ties="zero")),
    "a misspelt option": ("TypeError", "did you mean 'ties'", lambda: Lion([ones(3)], vote={"tie": "zero"})),
    "no dict": ("TypeError", "wanted a dict", lambda: Lion([ones(3)], vote="hash")),
    "votes": ("TypeError", "unknown argument 'votes'", lambda: Lion([ones(3)], votes=5)),
    "nesterov": ("TypeError", "unknown argument 'nesterov'", lambda: votes.Signum([ones(3)], nesterov=True)),
    "seconds as text": ("ValueError", "timeout: got '30' (str)", lambda: votes.Collective(timeout="30")),
    "a group's name": ("TypeError", "got a str, wanted a torch", lambda: votes.Collective(group="gloo")),
    "no group": ("TypeError", "group: got None", lambda: votes.ShardVote()),
    "no module": ("TypeError", "got a generator", lambda: votes.SignVote(torch.nn.Linear(3, 3).parameters())),
    "loss scale": ("TypeError", "scaler.get_scale", lambda: votes.ErrorFeedbackSign(integers(), loss_scale=8.0)),
    "nothing sharded": ("ValueError", "without FSDP2 modules", lambda: Vote().register(torch.nn.Tanh())),
    "a state_dict": ("TypeError", "of.values()", lambda: votes.broadcast_parameters({"weight": ones(3)})),
    "meta broadcast": ("ValueError", "to_empty()", lambda: votes.broadcast_parameters([ones(3, device="meta")])),
    "unknown option": ("TypeError", "unknown argument 'eps'", lambda: Lion([ones(3)], eps=1e-8)),
}  # fmt: skip


@pytest.mark.parametrize("world", [1, 2])
@on_ranks()
def test_bad_arguments(world: int) -> str:
    for name, (kind, words, call) in CALLS.items():
        found = raised(call)
        assert found[0] == kind and words in found[1], (name, found)
    return f"{len(CALLS)} calls refused on each of {world} workers"


@on_ranks(2)
def test_processes_outside_the_group() -> None:
    """Rank 1 is not in the group; rank 0 makes the group's own, and nobody waits for anybody."""
    group, outside = dist.new_group([0]), dist.get_rank() == 1
    for call in (lambda: votes.Collective(group=group), lambda: votes.SignVote(torch.nn.Linear(3, 3), group=group)):
        kind, text = raised(call)
        assert kind == ("ValueError" if outside else "nothing") and ("not in" in text) == outside, text
    if not outside:
        param = ones(70)
        opt = Lion([param], lr=0.5, vote={"group": group, "timeout": 5})
        param.grad = torch.ones(70)
        opt.step()
        assert bool((param == 0.5).all())


@on_ranks(1)
def test_without_process_group() -> None:
    dist.destroy_process_group()
    calls: list[Callable[[], Any]] = [votes.Collective, lambda: Lion([ones(3)]), lambda: Vote(timeout=3)]
    for call in [*calls, lambda: votes.SignVote(torch.nn.Linear(3, 3))]:
        kind, text = raised(call)
        assert kind == "ValueError" and "init_process_group" in text, text


def refuses_ballots(opt: Any) -> Callable[[], None]:
    """Breaks the optimizer's ballots; returns a function that mends them."""
    ballots, opt._ballots = opt._ballots, lambda scale: [][1]
    return lambda: setattr(opt, "_ballots", ballots)


@pytest.mark.parametrize(("what", "words"), [("gradient", "sparse"), ("option", "lr"), ("ballot", "list index out of range")])
@on_ranks(3)
def test_one_worker_that_cannot_vote(what: str, words: str) -> None:
    """Rank 1: all hear of it, parameters are untouched, and the next step is taken."""
    odd = dist.get_rank() == 1
    params = [ones(100), ones(3, 4)]
    opt = Lion(params, lr=0.1)
    for param in params:
        param.grad = torch.ones_like(param)
    mend: Callable[[], Any] = lambda: None
    if what == "gradient" and odd:
        params[1].grad = sparse(3, 4)
    if what == "option" and odd:
        opt.param_groups[0]["lr"] = -1.0
    if what == "ballot" and odd:
        mend = refuses_ballots(opt)
    before = snapshot(params)
    kind, text = raised(opt.step)
    assert kind in (("ValueError", "IndexError") if odd else ("RuntimeError",)) and (words if odd else "1") in text, text
    assert snapshot(params) == before
    mend()
    params[1].grad = torch.ones(3, 4)
    opt.param_groups[0]["lr"] = 0.1
    opt.step()


@pytest.mark.parametrize("algorithm", ["one_phase", "two_phase", "auto"])
@on_ranks(2)
def test_nothing_to_move(algorithm: str) -> None:
    """Parameters without elements only: steps that all can take, and one that rank 1 cannot."""
    param = ones(0, 5)
    opt = Lion([param], vote={"algorithm": algorithm})
    for broken in (False, True, False):
        param.grad = torch.ones(0, 5)
        odd = broken and dist.get_rank() == 1
        mend = refuses_ballots(opt) if odd else lambda: None
        assert raised(opt.step)[0] == ("IndexError" if odd else "RuntimeError" if broken else "nothing")
        mend()
    counts = votes.SignAccumulator([param])
    counts.add()
    counts.finish()
    assert param.grad.shape == (0, 5)
    model = torch.nn.Linear(3, 3)
    model.none = torch.nn.Parameter(torch.ones(0))
    ddp = DistributedDataParallel(model)
    votes.SignVote(ddp).register(ddp)
    (ddp(torch.ones(2, 3)).sum() + model.none.sum()).backward()


@on_ranks(3)
def test_one_hook_that_cannot_vote() -> None:
    odd = dist.get_rank() == 1
    model = torch.nn.Linear(30, 40)
    ddp = DistributedDataParallel(model)
    scale = [-3.0 if odd else 1.0]
    hook = votes.ErrorFeedbackSign(ddp, loss_scale=lambda: scale[0])
    hook.register(ddp)
    kind, text = raised(ddp(torch.ones(2, 30)).sum().backward)
    assert kind == "RuntimeError" and ("loss_scale: got -3" if odd else "ranks [1] failed") in text, text
    scale[0] = 1.0
    model.zero_grad()
    ddp = DistributedDataParallel(model)  # the reducer of an aborted pass is unusable
    hook.register(ddp)
    ddp(torch.ones(2, 30)).sum().backward()
    vote, tensor = Vote(), torch.ones(6, 5)
    kind, text = raised(lambda: vote(tensor.T if odd else tensor))
    assert kind == ("ValueError" if odd else "RuntimeError") and ("strides" if odd else "ranks [1] failed") in text, text
    kind, text = raised(lambda: vote(tensor[: dist.get_rank() + 1]))
    assert kind == "ValueError" and "numel" in text, text
    vote(tensor)


@on_ranks(3)
def test_plain_tensors() -> str:
    """All kinds: signs, zeros of dead blocks, NaN everywhere, and none at all."""
    vote = Vote(seed=3)
    for dtype in (torch.float32, torch.bfloat16, torch.float16):
        tensor = torch.arange(-100, 101).to(dtype) + 0.5
        tensor[64:128] = 0
        wanted = tensor.sign()
        vote(tensor)
        assert tensor.dtype == dtype and torch.equal(tensor, wanted)
    vote(torch.ones(0, 4))
    scalar = torch.tensor(-2.0)
    vote(scalar)
    spoilt = torch.ones(5)
    spoilt[1] = float("inf") if dist.get_rank() == 1 else 1
    vote(spoilt)
    assert float(scalar) == -1 and bool(spoilt.isnan().all())
    plus = 0
    for _ in range(40):  # in turn with another tensor, as two layers
        zero = torch.tensor([0.0, 1.0])
        vote(zero)
        plus += bool(zero[0] > 0)
        vote(torch.ones(2))
    assert 8 <= alike(plus) <= 32 and vote.votes == 86
    return f"a zero is + in {plus} of 40 votes that take turns with those of another tensor"


@on_ranks(3)
def test_broadcasts_of_every_type() -> None:
    torch.manual_seed(dist.get_rank())
    model = torch.nn.Sequential(torch.nn.Linear(3, 4), torch.nn.BatchNorm1d(4)).bfloat16()
    extra = [torch.randn(()), torch.randn(0, 2), torch.randn(4, 5).T, torch.randint(9, (3,)), torch.randn(3) > 0]
    votes.broadcast_parameters(model, source=1)
    votes.broadcast_parameters(extra, dist.group.WORLD, source=1)
    assert len(alike(snapshot([*model.parameters(), *model.buffers(), *extra]))) == 12


@pytest.mark.parametrize(("ties", "times"), [("hash", 1), ("zero", 2), ("previous", 2), (None, 1)])
def test_buffers_are_bits(ties: str | None, times: int, figure: Callable[[str], None]) -> None:
    signs = 1024 * 1000
    buffers = SignBuffers(signs, ties)
    parts = [part for part in vars(buffers).values() if isinstance(part, torch.Tensor)]
    found = sum(part.nbytes for part in parts)
    assert found == times * signs // 8 + signs // 512  # presence, or scales: 2 bytes for 1024
    figure(f"{ties}: {found} bytes for {signs} signs, float32 {4 * signs}")
