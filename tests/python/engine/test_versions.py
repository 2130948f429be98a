"""A step is a change in place: autograd refuses a backward pass that needs parameters as they were before it, as with
torch's optimizers."""

import timeit
from collections.abc import Callable

import lowtide
import pytest
import torch
from lowtide import distributed

from support import RULES, make, parameter, random_gradients

Figure = Callable[[str], None]


def versions(params: list[torch.nn.Parameter]) -> list[int]:
    return [param._version for param in params]


@pytest.mark.parametrize("rule", RULES)
def test_versions_rise_where_there_is_a_gradient(rule: str, seed: int) -> None:
    params = [parameter(70, 100), parameter(9), parameter()]
    idle = parameter(5)
    opt = make(rule, [*params, idle])
    for step in range(1, 4):
        random_gradients(params)
        before = versions([*params, idle])
        opt.step()
        assert versions([*params, idle]) == [*(v + 1 for v in before[:3]), before[3]], step


def test_muon_counts_matrices_as_torch_does(seed: int) -> None:
    """Whose decay and movement are operations of torch's."""
    matrix, vector = parameter(32, 16), parameter(9)
    opt = lowtide.Muon([matrix, vector])
    random_gradients([matrix, vector])
    opt.step()
    assert versions([matrix, vector]) == [2, 1]


@pytest.mark.parametrize("cls", [torch.optim.AdamW, lowtide.AdamW, lowtide.SGD, lowtide.Muon])
def test_a_stale_graph_is_refused(cls: type[torch.optim.Optimizer], seed: int) -> None:
    """The mistake of many a GAN: one loss of the generator, the step of the discriminator, and the other's backward."""
    p = parameter(4, 4)
    opt = cls([p], lr=0.1)
    loss = (p * p).sum()
    loss.backward(retain_graph=True)
    opt.step()
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        loss.backward()


def test_skipped_and_refused_steps_change_nothing(seed: int) -> None:
    p = parameter(300)
    opt = lowtide.AdamW([p])
    p.grad = torch.full_like(p, float("nan"))
    opt.step()
    assert opt.skipped_steps == 1 and p._version == 0
    strict = lowtide.AdamW([p], nonfinite="raise")
    with pytest.raises(ValueError):
        strict.step()
    assert p._version == 0


def test_gradient_release_counts_once(seed: int) -> None:
    layer = torch.nn.Linear(8, 8)
    opt = lowtide.AdamW(layer.parameters(), step_in_backward=True)
    before = versions(list(layer.parameters()))
    layer(torch.randn(2, 8)).sum().backward()
    opt.step()
    assert versions(list(layer.parameters())) == [v + 1 for v in before]


@pytest.mark.parametrize("cls", [distributed.DistributedLion, distributed.Signum])
def test_votes_count(cls: type[torch.optim.Optimizer], seed: int, tmp_path) -> None:
    torch.distributed.init_process_group("gloo", init_method=f"file://{tmp_path}/store", rank=0, world_size=1)
    try:
        p = parameter(100)
        opt = cls([p], lr=0.1)
        random_gradients([p])
        opt.step()
        assert p._version == 1
    finally:
        torch.distributed.destroy_process_group()


def test_older_torch_takes_one_tensor_at_a_time(monkeypatch: pytest.MonkeyPatch, seed: int) -> None:
    raised = torch.autograd.graph.increment_version

    def one(tensor: torch.Tensor) -> None:
        if not isinstance(tensor, torch.Tensor):
            raise TypeError("wanted a tensor")
        raised(tensor)

    monkeypatch.setattr(torch.autograd.graph, "increment_version", one)
    params = [parameter(3), parameter(4)]
    opt = lowtide.AdamW(params)
    for _ in range(2):
        random_gradients(params)
        opt.step()
    assert versions(params) == [2, 2]


def test_cost(figure: Figure) -> None:
    params = [parameter(16) for _ in range(300)]
    random_gradients(params)
    opt = lowtide.AdamW(params)
    opt.step()
    step = min(timeit.repeat(opt.step, number=20, repeat=20)) / 20
    alone = min(timeit.repeat(lambda: torch.autograd.graph.increment_version(params), number=20, repeat=20)) / 20
    figure(f"300 parameters: a step takes {step * 1e6:.0f} us, of which versions {alone * 1e6:.1f} us")
