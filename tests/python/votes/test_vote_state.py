"""State of voting optimizers: zeros stay in place, checkpoints go on bit for bit or with another number of workers, micro-batches fold into
momentum."""

from __future__ import annotations

import copy
import pickle
from collections.abc import Callable
from pathlib import Path
from typing import Any

import lowtide
import pytest
import torch
import torch.distributed as dist
from distributed_support import alike, of_all, on_ranks, shared_ranks
from lowtide.distributed import SignAccumulator, Signum
from support import raised, through_file
from vote_jobs import CLASSES, build, set_gradients, snapshot, train
from vote_reference import Case, generator, gradient


@pytest.mark.parametrize("how", ["state_dict", "file"])
@pytest.mark.parametrize(("rule", "state"), [("lion", "dynamic8"), ("lion", "bf16"), ("signum", "fp32")])
@on_ranks(3)
def test_resumes_bit_for_bit(rule: str, state: str, how: str, tmp_path: Path, seed: int) -> str:
    """Six steps in one go; three, a checkpoint into another optimizer, and three. A copy or a pickle is refused."""
    case = Case(rule=rule, hyper={"lr": 1e-2}, seed=seed, missing=True, options={"state": state, "min_quantized_numel": 0})
    params, opt = build(case)
    for step in range(3):
        set_gradients(case, params, step)
        opt.step()
    others, other = build(case)
    with torch.no_grad():
        for there, here in zip(others, params, strict=True):
            there.copy_(here)
    if how == "state_dict":
        other.load_state_dict(through_file(opt.state_dict()))
    else:
        path = str(tmp_path / str(dist.get_rank()))
        opt.save(path)
        other.load(path)
    for step in range(3, 6):
        for group, each in ((params, opt), (others, other)):
            set_gradients(case, group, step)
            each.step()
    for call in (lambda: copy.deepcopy(opt), lambda: pickle.dumps(opt), lambda: copy.copy(opt), lambda: pickle.dumps(opt._collective)):
        kind, text = raised(call)
        assert kind == "TypeError" and "process group" in text, text
    through = snapshot(params, opt)
    assert through == snapshot(others, other)
    assert len({b"".join(found) for found in of_all(through)}) == 3, "control: state differs between ranks"
    return f"{rule} {state}, {how}: {sum(map(len, through))} bytes equal on each of 3 ranks"


TARGET = torch.linspace(-1, 1, 5000).view(50, 100)


def descend(model: torch.nn.Parameter, opt: torch.optim.Optimizer, steps: range, noise: float) -> list[float]:
    losses = []
    for step in steps:
        losses.append(float((model.detach() - TARGET).abs().mean()))
        random = generator(step, dist.get_rank(), 3)
        model.grad = (model.detach() - TARGET).sign() + noise * torch.randn(model.shape, generator=random)
        opt.step()
    return losses


def before_change(rule: str, state: str, path: str, average: bool) -> tuple[list[float], list[bytes]]:
    """Trains and saves rank 0's checkpoint."""
    model = torch.nn.Parameter(torch.zeros(50, 100))
    late = torch.nn.Parameter(torch.ones(300))  # has a gradient on the last rank only
    opt = CLASSES[rule]([model, late], lr=1e-2, state=state)
    losses = []
    for step in range(20):
        late.grad = torch.ones(300) if dist.get_rank() == dist.get_world_size() - 1 and step > 10 else None
        losses += descend(model, opt, range(step, step + 1), 1.0)
    if average:
        opt.average_state()
    if dist.get_rank() == 0:
        torch.save({"params": [model, late], "optimizer": opt.state_dict()}, path)
    return losses, snapshot([model, late], opt)


def after_change(rule: str, state: str, path: str) -> tuple[list[float], list[bytes], int]:
    saved = torch.load(path, weights_only=True)
    model, late = saved["params"]
    opt = CLASSES[rule]([model, late], lr=1e-2, state=state)
    opt.load_state_dict(saved["optimizer"])
    loaded = snapshot([model, late], opt)
    losses = descend(model, opt, range(20, 40), 1.0)
    return losses, loaded, int(opt.state[late]["step"])


@pytest.mark.parametrize(("world", "then"), [(4, 2), (2, 3), (3, 1)])
@pytest.mark.parametrize(("rule", "state"), [("lion", "dynamic8"), ("signum", "fp32"), ("signum", "bf16")])
def test_another_number_of_workers(
    rule: str, state: str, world: int, then: int, tmp_path: Path, figure: Callable[[str], None]
) -> None:
    path = str(tmp_path / "rank0")
    apart = shared_ranks().run(world, before_change, rule, state, path, False)
    assert len({b"".join(found) for _, found in apart}) == world, "control: without averaging, state differs"
    before = shared_ranks().run(world, before_change, rule, state, path, True)
    assert len({b"".join(found) for _, found in before}) == 1
    after = shared_ranks().run(then, after_change, rule, state, path)
    losses = before[0][0] + after[0][0]
    for each, loaded, steps in after:
        assert loaded == before[0][1] and each == after[0][0] and steps == 9
    steps = [abs(b - a) for a, b in zip(losses, losses[1:], strict=False)]
    assert steps[19] <= 1.5 * max(steps[:19] + steps[20:]) and losses[-1] < losses[19] < losses[0]
    figure(f"{rule} {state}, {world} -> {then} workers: loss {losses[19]:.4f} -> {losses[20]:.4f} -> {losses[-1]:.4f}")


def fold(state: str, micro_batches: int, gaps: bool) -> tuple[int, int, float]:
    """Folds the same gradients one by one and added up; returns how many parameters differ, their total, and how far momentum is apart."""
    case = Case(rule="signum", hyper={"lr": 1e-2}, seed=3)
    params, folding = build(case, state=state, min_quantized_numel=0)
    others, adding = build(case, state=state, min_quantized_numel=0)
    for step in range(5):
        sums: list[torch.Tensor | None] = [None] * len(params)
        for micro in range(micro_batches):
            for number, param in enumerate(params):
                grad = gradient(case, dist.get_rank(), 100 * step + micro, number)
                param.grad = None if gaps and (number + micro + step) % 3 == 0 else grad
                if param.grad is not None:
                    earlier = sums[number]
                    sums[number] = param.grad if earlier is None else earlier + param.grad
            folding.fold(micro_batches)
            assert all(param.grad is None for param in params)
        for param, total in zip(others, sums, strict=True):
            param.grad = None if total is None else total / micro_batches
        folding.step()
        adding.step()
    alike(snapshot(params))
    pairs = [(a, b) for a, b in zip(params, others, strict=True) if a.numel()]
    worst = 0.0
    if state == "fp32":
        far = [folding.state[a]["momentum_buffer"] - adding.state[b]["momentum_buffer"] for a, b in pairs]
        worst = max(float(each.abs().max()) for each in far)
    return sum(int((a != b).sum()) for a, b in pairs), sum(a.numel() for a, _ in pairs), worst


@pytest.mark.parametrize("gaps", [False, True])
@pytest.mark.parametrize("micro_batches", [1, 4, 7])
@on_ranks(2)
def test_folds_are_sums(micro_batches: int, gaps: bool) -> str:
    off, count, worst = fold("fp32", micro_batches, gaps)
    # Momentum below 5: each of the k additions in either order rounds by half an ulp of it.
    bound = 5 * (2 * micro_batches + 4) * 5 * 2**-24
    worst = max(of_all(worst))
    assert worst <= bound and off <= count // 1000
    return f"{micro_batches} micro-batches: momentum within {worst:.2e} (bound {bound:.2e}), {off} of {count} elements voted otherwise"


@pytest.mark.parametrize("state", ["dynamic8", "bf16"])
@on_ranks(1)
def test_folds_into_small_state(state: str) -> str:
    off, count, _ = fold(state, 4, True)
    assert off / count < 0.15, off / count  # independent signs of 5 votes: 60 % or more end elsewhere
    return f"{state}: {off / count:.1%} of elements end elsewhere than with added gradients"


@on_ranks(2)
def test_misused_folds() -> None:
    def momentum(value: float) -> tuple[torch.nn.Parameter, Signum]:
        param = torch.nn.Parameter(torch.ones(70))
        return param, Signum([param], momentum=value)

    def refuses(words: str, call: Callable[[], Any]) -> None:
        kind, text = raised(call)
        assert kind == "ValueError" and words in text, (kind, text)

    refuses("momentum: got 0", lambda: momentum(0.0)[1].fold(2))
    refuses("micro_batches: got 0", lambda: momentum(0.9)[1].fold(0))
    refuses("momentum: got 1.0", lambda: momentum(1.0))
    param, opt = momentum(0.9)
    param.grad = torch.ones(70)
    opt.fold(2)
    refuses("micro_batches: got 3, wanted 2", lambda: opt.fold(3))
    refuses("wanted step()", lambda: opt.add_param_group({"params": [torch.nn.Parameter(torch.ones(3))]}))
    param.grad = torch.ones(70)
    opt.fold(2)
    refuses("call 3 for 2", lambda: opt.fold(2))
    param.grad = torch.ones(70)
    refuses("beside the folded", opt.step)
    assert bool((param == 1).all())
    param.grad = None
    opt.step()
    assert bool((param != 1).all())
    # Not finite on one rank: the vote is skipped on all.
    before = param.detach().clone()
    param.grad = torch.full((70,), float("nan") if dist.get_rank() == 0 else 1.0)
    opt.fold(1)
    opt.step()
    assert bool((param == before).all()) and opt.skipped_steps == 1


@on_ranks(2)
def test_folds_among_plain_steps() -> None:
    """Nothing of the folds is left over."""
    case = Case(rule="signum", hyper={"lr": 1e-2}, steps=4)
    params, opt = build(case)
    for step in range(4):
        set_gradients(case, params, step)
        if step % 2:
            opt.fold(1)  # type: ignore[attr-defined]
        opt.step()
    assert snapshot(params) == train(case)


@on_ranks(1)
def test_counts_of_signs() -> str:
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(20, 30), torch.nn.Tanh(), torch.nn.Linear(30, 5)).bfloat16()
    params = [*model.parameters()]
    counts = SignAccumulator(params, most=7)
    sums = [torch.zeros(p.shape) for p in params]
    for _ in range(7):
        model(torch.randn(4, 20, dtype=torch.bfloat16)).square().sum().backward()
        for total, param in zip(sums, params, strict=True):
            total += torch.where(param.grad >= 0, 1.0, -1.0)
        counts.add()
        assert all(param.grad is None for param in params)
    params[0].grad = torch.ones(30, 20, dtype=torch.bfloat16)
    kind, text = raised(counts.add)
    assert kind == "ValueError" and "7" in text and params[0].grad is not None
    counts.finish()
    assert all(torch.equal(p.grad, (total / 7).bfloat16()) for p, total in zip(params, sums, strict=True))
    model(torch.full((4, 20), float("inf"), dtype=torch.bfloat16)).sum().backward()
    counts.add()
    counts.finish()
    assert all(bool(p.grad.isnan().all()) for p in params)
    numel = sum(p.numel() for p in params)
    assert numel * 3 / 8 <= counts.nbytes <= numel * 3 / 8 + 4 * 3 * 64
    return f"{numel} elements, 7 passes: {counts.nbytes} bytes of counters, float32 sums {4 * numel}"


@on_ranks(1)
def test_momentum_that_changes() -> None:
    """With gradients of 1, momentum follows each step's β; where β goes back to 0, any momentum will do."""
    param = torch.nn.Parameter(torch.ones(70))
    opt = Signum([param], state="fp32")
    for beta, wanted in ((0.0, 0.0), (0.0, 0.0), (0.5, 0.5), (0.5, 0.75), (0.0, None), (0.5, 0.875)):
        opt.param_groups[0]["momentum"] = beta
        param.grad = torch.ones(70)
        opt.step()
        found = float(opt.state[param]["momentum_buffer"][0]) if "momentum_buffer" in opt.state[param] else 0.0
        assert wanted is None or found == wanted, (beta, found)


@on_ranks(1)
def test_dicts_of_others() -> None:
    """A lowtide.SGD's dict goes into Signum, and Signum's into torch.optim.SGD."""
    param = torch.nn.Parameter(torch.ones(70))
    sgd = lowtide.SGD([param], lr=0.1, momentum=0.9)
    param.grad = torch.ones(70)
    sgd.step()
    signum = Signum([param])
    signum.load_state_dict(sgd.state_dict())
    signum.step()
    assert signum.param_groups[0]["votes"] == 1 and signum.param_groups[0]["lr"] == 0.1
    torch.optim.SGD([param]).load_state_dict(signum.torch_state_dict())
    bad = copy.deepcopy(signum.state_dict())
    bad["param_groups"][0]["votes"] = -1
    assert raised(lambda: signum.load_state_dict(bad))[0] == "ValueError"
