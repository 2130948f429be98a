"""Bad input to votes: refused by name, on every worker; what one worker cannot do, the others hear of."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import lowtide.distributed as votes
import pytest
import torch
import torch.distributed as dist
from distributed_support import shared_ranks
from lowtide.distributed.buffers import SignBuffers
from torch.nn.parallel import DistributedDataParallel
from vote_jobs import raised, snapshot

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


def accumulate_sparse() -> None:
    counts = votes.SignAccumulator([with_sparse_gradient()])
    counts.add()


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
    "sparse counts": ("ValueError", "sparse", accumulate_sparse),
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


def bad_calls() -> dict[str, tuple[str, str]]:
    return {name: raised(call) for name, (_, _, call) in CALLS.items()}


def outside() -> tuple[tuple[str, str], tuple[str, str], float]:
    """Rank 1 of 2 is not in the group; rank 0 makes the group's own, and nobody waits for anybody."""
    group = dist.new_group([0])
    calls = [lambda: votes.Collective(group=group), lambda: votes.SignVote(torch.nn.Linear(3, 3), group=group)]
    found = [raised(call) for call in calls]
    param = ones(70)
    if dist.get_rank() == 0:
        opt = Lion([param], lr=0.5, vote={"group": group, "timeout": 5})
        param.grad = torch.ones(70)
        opt.step()
    return found[0], found[1], float(param[0].detach())


def without_group() -> list[tuple[str, str]]:
    dist.destroy_process_group()
    calls: list[Callable[[], Any]] = [votes.Collective, lambda: Lion([ones(3)]), lambda: Vote(timeout=3)]
    return [raised(call) for call in [*calls, lambda: votes.SignVote(torch.nn.Linear(3, 3))]]


def one_cannot(what: str) -> tuple[tuple[str, str], bool, tuple[str, str]]:
    """Rank 1 alone cannot vote: what all raise, whether parameters are untouched, and what the next step raises."""
    odd = dist.get_rank() == 1
    params = [ones(100), ones(3, 4)]
    opt: Any = Lion(params, lr=0.1)
    for param in params:
        param.grad = torch.ones_like(param)
    if what == "gradient" and odd:
        params[1].grad = sparse(3, 4)
    if what == "option" and odd:
        opt.param_groups[0]["lr"] = -1.0
    if what == "ballot" and odd:
        ballots, opt._ballots = opt._ballots, lambda scale: [][1]
    before = snapshot(params)
    first, untouched = raised(opt.step), snapshot(params) == before
    if odd:
        params[1].grad = torch.ones(3, 4)
        opt.param_groups[0]["lr"] = 0.1
        if what == "ballot":
            opt._ballots = ballots
    return first, untouched, raised(opt.step)


def nothing_to_move(algorithm: str) -> list[tuple[str, str]]:
    """Parameters without elements only: steps that all can take, and one that rank 1 cannot."""
    param = ones(0, 5)
    opt = Lion([param], vote={"algorithm": algorithm})
    counts = votes.SignAccumulator([param])
    found = []
    for broken in (False, True, False):
        param.grad = torch.ones(0, 5)
        if broken and dist.get_rank() == 1:
            ballots, opt._ballots = opt._ballots, lambda scale: [][1]  # type: ignore[method-assign]
        found.append(raised(opt.step))
        if broken and dist.get_rank() == 1:
            opt._ballots = ballots  # type: ignore[method-assign]
    counts.add()
    counts.finish()
    assert param.grad.shape == (0, 5)
    model = torch.nn.Linear(3, 3)
    model.none = torch.nn.Parameter(torch.ones(0))
    ddp = DistributedDataParallel(model)
    hook = votes.SignVote(ddp)
    hook.register(ddp)
    found.append(raised(lambda: (ddp(torch.ones(2, 3)).sum() + model.none.sum()).backward()))
    return found


def one_hook_cannot() -> list[tuple[str, str]]:
    found = []
    model = torch.nn.Linear(30, 40)
    ddp = DistributedDataParallel(model)
    broken = [dist.get_rank() == 1]
    hook = votes.ErrorFeedbackSign(ddp, loss_scale=lambda: -3.0 if broken[0] else 1.0)
    hook.register(ddp)
    for _ in range(2):
        found.append(raised(lambda: ddp(torch.ones(2, 30)).sum().backward()))
        broken[0] = False
        model.zero_grad()
        ddp = DistributedDataParallel(model)  # the reducer of a pass that was broken off is of no use
        hook.register(ddp)
    vote, tensor = Vote(), torch.ones(6, 5)
    found.append(raised(lambda: vote(tensor.T if dist.get_rank() == 1 else tensor)))
    found.append(raised(lambda: vote(tensor[: dist.get_rank() + 1])))
    found.append(raised(lambda: vote(tensor)))
    return found


def shards() -> dict[str, Any]:
    """Plain tensors of all kinds: signs, zeros of dead blocks, NaN everywhere, and none at all."""
    vote, rank = Vote(seed=3), dist.get_rank()
    out: dict[str, Any] = {}
    for dtype in (torch.float32, torch.bfloat16, torch.float16):
        tensor = torch.arange(-100, 101).to(dtype) + 0.5
        tensor[64:128] = 0
        vote(tensor)
        assert tensor.dtype == dtype
        out[str(dtype)] = tensor.float()
    empty = torch.ones(0, 4)
    vote(empty)
    scalar = torch.tensor(-2.0)
    vote(scalar)
    spoilt = torch.ones(5)
    spoilt[1] = float("inf") if rank == 1 else 1
    vote(spoilt)
    zero = torch.ones(2)
    found = []
    for _ in range(40):  # in turn with another tensor, as two layers
        zero[:] = torch.tensor([0.0, 1.0])
        vote(zero)
        found.append(float(zero[0]))
        vote(torch.ones(2))
    plus = sum(value > 0 for value in found)
    return out | {"scalar": float(scalar), "nan": bool(spoilt.isnan().all()), "plus": plus, "votes": vote.votes}


def broadcast() -> list[bytes]:
    torch.manual_seed(dist.get_rank())
    model = torch.nn.Sequential(torch.nn.Linear(3, 4), torch.nn.BatchNorm1d(4)).bfloat16()
    extra = [torch.randn(()), torch.randn(0, 2), torch.randn(4, 5).T, torch.randint(9, (3,)), torch.randn(3) > 0]
    votes.broadcast_parameters(model, source=1)
    votes.broadcast_parameters(extra, dist.group.WORLD, source=1)
    return snapshot([*model.parameters(), *model.buffers(), *extra])


@pytest.mark.parametrize("world", [1, 2])
def test_bad_arguments(world: int, figure: Callable[[str], None]) -> None:
    for answers in shared_ranks().run(world, bad_calls):
        for name, (kind, words, _) in CALLS.items():
            assert answers[name][0] == kind and words in answers[name][1], (name, answers[name])
    figure(f"{len(CALLS)} calls refused on each of {world} workers")


def test_processes_outside_the_group() -> None:
    inside, away = shared_ranks().run(2, outside)
    assert inside[0][0] == inside[1][0] == "nothing" and inside[2] == 0.5
    for kind, text in away[:2]:
        assert kind == "ValueError" and "not in" in text
    assert away[2] == 1.0


def test_without_process_group() -> None:
    for kind, text in shared_ranks().run(1, without_group)[0]:
        assert kind == "ValueError" and "init_process_group" in text


@pytest.mark.parametrize(
    ("what", "words"), [("gradient", "sparse"), ("option", "lr"), ("ballot", "list index out of range")]
)
def test_one_worker_that_cannot_vote(what: str, words: str) -> None:
    answers = shared_ranks().run(3, one_cannot, what)
    for rank, ((kind, text), untouched, after) in enumerate(answers):
        assert untouched and after[0] == "nothing", after
        if rank == 1:
            assert kind in ("ValueError", "IndexError") and words in text, (kind, text)
        else:
            assert kind == "RuntimeError" and "1" in text, (kind, text)


@pytest.mark.parametrize("algorithm", ["one_phase", "two_phase", "auto"])
def test_nothing_to_move(algorithm: str) -> None:
    for rank, found in enumerate(shared_ranks().run(2, nothing_to_move, algorithm)):
        own = "IndexError" if rank == 1 else "RuntimeError"
        assert [kind for kind, _ in found] == ["nothing", own, "nothing", "nothing"], found


def test_one_hook_that_cannot_vote() -> None:
    for rank, found in enumerate(shared_ranks().run(3, one_hook_cannot)):
        kinds = [kind for kind, _ in found]
        own = "ValueError" if rank == 1 else "RuntimeError"
        assert kinds == ["RuntimeError", "nothing", own, "ValueError", "nothing"], found
        assert ("loss_scale: got -3" if rank == 1 else "ranks [1] failed") in found[0][1]
        assert ("strides" if rank == 1 else "ranks [1] failed") in found[2][1]
        assert "numel" in found[3][1]


def test_plain_tensors(figure: Callable[[str], None]) -> None:
    answers = shared_ranks().run(3, shards)
    for found in answers:
        for dtype in (torch.float32, torch.bfloat16, torch.float16):
            wanted = (torch.arange(-100, 101) + 0.5).sign()
            wanted[64:128] = 0
            assert bool((found[str(dtype)] == wanted).all())
        assert found["scalar"] == -1 and found["nan"] and found["votes"] == 86
        assert 8 <= found["plus"] <= 32 and found["plus"] == answers[0]["plus"]
    figure(f"a zero is + in {answers[0]['plus']} of 40 votes that take turns with those of another tensor")


def test_broadcasts_of_every_type() -> None:
    answers = shared_ranks().run(3, broadcast)
    assert answers[0] == answers[1] == answers[2] and len(answers[0]) == 12


@pytest.mark.parametrize(("ties", "times"), [("hash", 1), ("zero", 2), ("previous", 2), (None, 1)])
def test_buffers_are_bits(ties: str | None, times: int, figure: Callable[[str], None]) -> None:
    signs = 1024 * 1000
    buffers = SignBuffers(signs, ties)
    parts = [part for part in vars(buffers).values() if isinstance(part, torch.Tensor)]
    found = sum(part.nbytes for part in parts)
    assert found == times * signs // 8 + signs // 512  # presence, or scales: 2 bytes for 1024
    figure(f"{ties}: {found} bytes for {signs} signs, float32 {4 * signs}")
