"""The ranks' jobs in the tests of a voting optimizer's state: zeros for long, checkpoints, folded micro-batches."""

from __future__ import annotations

import copy
import pickle
from pathlib import Path
from typing import Any

import lowtide
import torch
import torch.distributed as dist
from lowtide.distributed import SignAccumulator, Signum
from support import through_file
from vote_jobs import CLASSES, build, raised, set_gradients, snapshot
from vote_reference import Case, generator, gradient


def zeros_for_long(rule: str, steps: int, weight_decay: float, state: str) -> dict[str, float]:
    """A parameter without any gradient, one whose gradient is always zero, and one with a single zero inside."""
    start = [torch.randn(130, generator=generator(i)) for i in range(3)]
    none, dead, live = (torch.nn.Parameter(value.clone()) for value in start)
    opt = CLASSES[rule]([none, dead, live], lr=1e-3, weight_decay=weight_decay, state=state, min_quantized_numel=0)
    gradients = torch.randn(16, 130, generator=generator(9))
    gradients[:, 70] = 0
    dead.grad, live.grad = torch.zeros(130), torch.zeros(130)
    farthest = 0.0
    for step in range(steps):
        live.grad.copy_(gradients[step % 16])
        opt.step()
        farthest = max(farthest, abs(float(live[70].detach() - start[2][70])))
    moved = [float((p.detach() - s).abs().max()) for p, s in zip((none, dead, live), start, strict=True)]
    return {"none": moved[0], "dead": moved[1], "live": moved[2], "isolated": farthest}


def resume(case: Case, how: str, folder: str) -> tuple[list[bytes], list[bytes], str]:
    """Six steps in one go; three, a checkpoint into another optimizer, and three; and why none can be copied."""
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
        path = str(Path(folder) / str(dist.get_rank()))
        opt.save(path)
        other.load(path)
    for pair in ((params, opt), (others, other)):
        for step in range(3, 6):
            set_gradients(case, pair[0], step)
            pair[1].step()
    refusals = [raised(lambda: copy.deepcopy(opt)), raised(lambda: pickle.dumps(opt))]
    refusals += [raised(lambda: copy.copy(opt)), raised(lambda: pickle.dumps(opt._collective))]
    assert all(kind == "TypeError" and "process group" in text for kind, text in refusals), refusals
    return snapshot(params, opt), snapshot(others, other), refusals[0][1]


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
    """Trains; leaves rank 0's checkpoint."""
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


def fold(state: str, micro_batches: int, gaps: bool) -> dict[str, Any]:
    """The same gradients folded one by one and added up: how far parameters and state are from each other."""
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
    off = count = 0
    worst = 0.0
    for a, b in zip(params, others, strict=True):
        off, count = off + int((a != b).sum()), count + a.numel()
        if state == "fp32" and a.numel():
            far = folding.state[a]["momentum_buffer"] - adding.state[b]["momentum_buffer"]
            worst = max(worst, float(far.abs().max()))
    return {"off": off, "count": count, "worst": worst, "params": snapshot(params)}


def misuse_folds() -> list[tuple[str, str]]:
    def momentum(value: float) -> tuple[torch.nn.Parameter, Signum]:
        param = torch.nn.Parameter(torch.ones(70))
        return param, Signum([param], momentum=value)

    found = [raised(lambda: momentum(0.0)[1].fold(2)), raised(lambda: momentum(0.9)[1].fold(0))]
    found += [raised(lambda: momentum(1.0))]
    param, opt = momentum(0.9)

    def grad() -> None:
        param.grad = torch.ones(70)

    grad()
    opt.fold(2)
    found.append(raised(lambda: opt.fold(3)))
    found.append(raised(lambda: opt.add_param_group({"params": [torch.nn.Parameter(torch.ones(3))]})))
    grad()
    opt.fold(2)
    found.append(raised(lambda: opt.fold(2)))
    grad()
    found.append(raised(opt.step))
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
    return found


def fold_after_mixture() -> list[bytes]:
    """Folds, then plain steps: nothing of the folds is left over."""
    params, opt = build(Case(rule="signum", hyper={"lr": 1e-2}))
    for step in range(4):
        set_gradients(Case(rule="signum"), params, step)
        if step % 2:
            opt.fold(1)  # type: ignore[attr-defined]
        opt.step()
    return snapshot(params)


def accumulate() -> dict[str, Any]:
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(20, 30), torch.nn.Tanh(), torch.nn.Linear(30, 5)).bfloat16()
    counts = SignAccumulator(model.parameters(), most=7)
    sums = [torch.zeros(p.shape) for p in model.parameters()]
    for _ in range(7):
        model(torch.randn(4, 20, dtype=torch.bfloat16)).square().sum().backward()
        for total, param in zip(sums, model.parameters(), strict=True):
            total += torch.where(param.grad >= 0, 1.0, -1.0)
        counts.add()
        assert all(param.grad is None for param in model.parameters())
    next(model.parameters()).grad = torch.ones(30, 20, dtype=torch.bfloat16)
    once_more = raised(counts.add)
    assert next(model.parameters()).grad is not None
    counts.finish()
    equal = all(bool((p.grad == (t / 7).bfloat16()).all()) for p, t in zip(model.parameters(), sums, strict=True))
    model(torch.full((4, 20), float("inf"), dtype=torch.bfloat16)).sum().backward()
    counts.add()
    counts.finish()
    spoilt = all(bool(p.grad.isnan().all()) for p in model.parameters())
    return {"equal": equal, "spoilt": spoilt, "again": once_more, "bytes": counts.nbytes}


def momentum_that_changes() -> list[float]:
    """The momentum of steps with gradients of 1, for β = 0, 0, 1/2, 1/2, 0, 1/2."""
    param = torch.nn.Parameter(torch.ones(70))
    opt = Signum([param], state="fp32")
    found = []
    for beta in (0.0, 0.0, 0.5, 0.5, 0.0, 0.5):
        opt.param_groups[0]["momentum"] = beta
        param.grad = torch.ones(70)
        opt.step()
        found.append(float(opt.state[param]["momentum_buffer"][0]) if "momentum_buffer" in opt.state[param] else 0.0)
    return found


def defaults() -> tuple[int, dict[str, Any]]:
    """A lowtide.SGD's dict goes into Signum, and Signum's into torch.optim.SGD."""
    param = torch.nn.Parameter(torch.ones(70))
    sgd = lowtide.SGD([param], lr=0.1, momentum=0.9)
    param.grad = torch.ones(70)
    sgd.step()
    signum = Signum([param])
    signum.load_state_dict(sgd.state_dict())
    signum.step()
    torch.optim.SGD([param]).load_state_dict(signum.torch_state_dict())
    bad = copy.deepcopy(signum.state_dict())
    bad["param_groups"][0]["votes"] = -1
    assert raised(lambda: signum.load_state_dict(bad))[0] == "ValueError"
    return signum.param_groups[0]["votes"], {"lr": signum.param_groups[0]["lr"]}
