"""Gradient release: the bits of steps after backward, no gradients left, and errors if it is impossible."""

from __future__ import annotations

import copy
import gc
import io
import pickle
import weakref
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import lowtide
import pytest
import torch
from support import SINGLE_STEPS, bits, make, parameter, state_bits
from torch import nn

Figure = Callable[[str], None]
STEPS = 4


class Model(nn.Module):
    """Shared weights, a parameter that is not always used, and a frozen one."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(40, 64)
        self.layers = nn.ModuleList(nn.Linear(64, 64) for _ in range(4))
        self.sometimes = nn.Linear(64, 64)
        self.head = nn.Linear(64, 40, bias=False)
        self.head.weight = self.embedding.weight
        self.layers[2].bias.requires_grad_(False)

    def forward(self, tokens: torch.Tensor, sometimes: bool) -> torch.Tensor:
        x = self.embedding(tokens)
        for layer in self.layers:
            x = x + torch.relu(layer(x))
        return self.head(self.sometimes(x) if sometimes else x)


def twin(model: Model) -> Model:
    other = copy.deepcopy(model)
    assert other.head.weight is other.embedding.weight
    return other


def batches() -> Iterator[tuple[int, torch.Tensor, torch.Tensor]]:
    for i in range(STEPS):
        yield i, torch.randint(40, (8, 5)), torch.randint(40, (8, 5))


def loss_of(model: Callable[..., torch.Tensor], tokens: torch.Tensor, labels: torch.Tensor, i: int) -> torch.Tensor:
    return nn.functional.cross_entropy(model(tokens, i % 2 == 1).flatten(0, 1), labels.flatten())


@pytest.mark.parametrize("bucket", [0, "24KiB", True])
def test_bits_of_steps_after_backward(bucket: Any, seed: int, figure: Figure) -> None:
    torch.set_num_threads(1)
    compared, most = 0, 0
    for rule in SINGLE_STEPS:
        model = Model()
        other = twin(model)
        before = make(rule, model.parameters(), lr=0.01)
        within = make(rule, other.parameters(), lr=0.01, step_in_backward=bucket)
        schedulers = [torch.optim.lr_scheduler.ExponentialLR(opt, 0.5) for opt in (before, within)]
        held: list[int] = []
        for param in other.parameters():
            if param.requires_grad:
                param.register_post_accumulate_grad_hook(
                    lambda _: held.append(sum(p.grad.nbytes for p in other.parameters() if p.grad is not None))
                )
        for i, tokens, labels in batches():
            if i == 2:
                for each in (model, other):
                    each.layers[2].bias.requires_grad_(True)
            before.zero_grad()
            loss_of(model, tokens, labels, i).backward()
            before.step()
            loss_of(other, tokens, labels, i).backward()
            hooked = [p for p in other.parameters() if p is not other.layers[2].bias or i != 2]
            left = [p.grad for p in hooked if p.grad is not None]
            assert len(left) == (i == 0), "gone when backward ends, but for the first one that tells of clipping"
            assert not any(grad.any() or grad.numel() > 64 for grad in left)
            within.step()
            assert all(p.grad is None for p in other.parameters())
            for scheduler in schedulers:
                scheduler.step()
            for one, two in zip(model.parameters(), other.parameters(), strict=True):
                assert bits(one) == bits(two)
                compared += one.numel() * 4
            assert state_bits(before) == state_bits(within)
        assert within.report()["steps"] == before.report()["steps"] == STEPS
        most = max(most, *held)
    whole = sum(p.nbytes for p in model.parameters())
    limit = {0: 0, "24KiB": 24 << 10, True: 64 << 20}[bucket]
    assert most <= min(limit + 16384, whole), "a bucket, and the gradient that fills it (64 x 64 float32)"
    figure(f"bucket {bucket}: {compared} bytes alike; at most {most} of {whole} bytes of gradients are held")


@pytest.mark.parametrize("way", ["step_param", "step_parameter"])
@pytest.mark.parametrize("options", [{}, {"state": "fp32"}, {"master": "residual16"}, {"memory": "paged"}], ids=str)
def test_trainers_hooks_that_step_single_parameters(
    way: str, options: dict[str, Any], seed: int, figure: Figure, tmp_path: Path
) -> None:
    """Like kohya-ss's and OneTrainer's fused backward passes: clips each gradient by its own norm, steps and frees it."""
    torch.set_num_threads(1)
    if "memory" in options:
        options = {"memory": lowtide.Memory(host="24KiB", disk=tmp_path, chunk="4KiB")}
    model = Model().to(torch.bfloat16 if "master" in options else torch.float32)
    other = twin(model)
    before, within = (lowtide.AdamW(each.parameters(), lr=0.01, **options) for each in (model, other))
    group = within.param_groups[0]

    def clip_and_step(index: int, param: nn.Parameter) -> None:
        nn.utils.clip_grad_norm_(param, 0.01)
        within.step_param(param, group) if way == "step_param" else within.step_parameter(param, group, index)
        param.grad = None

    for index, param in enumerate(other.parameters()):
        if param.requires_grad:
            param.register_post_accumulate_grad_hook(partial(clip_and_step, index))
    schedulers = [torch.optim.lr_scheduler.ExponentialLR(opt, 0.5) for opt in (before, within)]
    for i, tokens, labels in batches():
        for each in (model, other):
            loss_of(each, tokens, labels, i).backward()
        for param in model.parameters():
            nn.utils.clip_grad_norm_(param, 0.01)
        before.step()
        before.zero_grad()
        for scheduler in schedulers:
            scheduler.step()
        assert all(bits(one) == bits(two) for one, two in zip(model.parameters(), other.parameters(), strict=True))
        assert state_bits(before) == state_bits(within)
    assert within.report()["steps"] == before.report()["steps"] == STEPS
    figure(f"{sum(p.numel() for p in model.parameters())} weights, {STEPS} steps: the bits of steps after backward")


@pytest.mark.parametrize("clip", ["value", "last norm"])
@pytest.mark.parametrize("passes", [1, 2])
def test_single_parameters_with_clipping_and_accumulation(clip: str, passes: int, seed: int, figure: Figure, tmp_path: Path) -> None:
    """Hooks clip each gradient by value, or by the norm that all had in the step before, and step only in a step's last backward: the
    bits of the same after backward, with state that streams from a disk."""
    torch.set_num_threads(1)
    models = [Model()]
    models.append(twin(models[0]))
    memory = lowtide.Memory(host="24KiB", disk=tmp_path, chunk="4KiB")
    before, within = (lowtide.AdamW(each.parameters(), lr=0.01, memory=memory) for each in models)
    last, clipped, squares = torch.zeros(()), 0, {}

    def clip_one(index: int, param: nn.Parameter) -> None:
        nonlocal clipped
        raw, squares[index] = param.grad.clone(), param.grad.square().sum()
        nn.utils.clip_grad_value_(param, 1e-4) if clip == "value" else param.grad.mul_((1e-3 / last).clamp(max=1))
        clipped += not torch.equal(raw, param.grad)

    def hook(index: int, param: nn.Parameter) -> None:
        if is_last:
            clip_one(index, param)
            within.step_param(param)
            param.grad = None

    for index, param in enumerate(models[1].parameters()):
        if param.requires_grad:
            param.register_post_accumulate_grad_hook(partial(hook, index))
    for i, tokens, labels in batches():
        for k in range(passes):
            is_last = k == passes - 1
            for each in models:
                loss_of(each, tokens.roll(k), labels, i).backward()
        for index, param in enumerate(models[0].parameters()):
            if param.grad is not None:
                clip_one(index, param)
        last = torch.stack([squares.pop(index) for index in sorted(squares)]).sum().sqrt()
        before.step()
        before.zero_grad()
        assert all(bits(one) == bits(two) and two.grad is None for one, two in zip(*(each.parameters() for each in models), strict=True))
    assert clipped and within.report()["moved_per_step"] and within.report()["steps"] == before.report()["steps"] == STEPS
    figure(f"{clip}, {passes} passes a step: {clipped} gradients clipped, the bits of steps after backward")


@pytest.mark.parametrize("rule", SINGLE_STEPS)
def test_single_parameters_step_by_every_rule(rule: str, seed: int) -> None:
    params, copies = [parameter(32, 256), parameter(9)], []
    for param in params:
        param.grad = torch.randn_like(param)
        copies.append(nn.Parameter(param.detach().clone()))
        copies[-1].grad = param.grad.clone()
    whole, single = make(rule, params, lr=0.01), make(rule, copies, lr=0.01)
    whole.step()
    for param in copies:
        single.step_param(param)
    assert [bits(p) for p in params] == [bits(p) for p in copies] and state_bits(whole) == state_bits(single)
    assert single.report()["steps"] == pickle.loads(pickle.dumps(single)).report()["steps"] == 1


@pytest.mark.parametrize(
    ("options", "words"),
    [({"max_grad_norm": 1.0}, "max_grad_norm=1.0"), ({"max_grad_spike": 9}, "max_grad_spike=9"),
     ({"step_in_backward": True}, "step_in_backward"), ({}, "no group")],
)  # fmt: skip
def test_single_parameters_that_cannot_be_stepped(options: dict[str, Any], words: str) -> None:
    param = parameter(9)
    opt = lowtide.AdamW([param], **options)
    param.grad = torch.ones_like(param)
    with pytest.raises(ValueError, match=words):
        opt.step_param(param if options else parameter(9))
    assert opt.report()["steps"] == 0


def pair(bucket: Any = 0, **options: Any) -> tuple[list[nn.Parameter], lowtide.AdamW]:
    params = [parameter(32, 256), parameter(300), parameter(9)]
    return params, lowtide.AdamW(params, step_in_backward=bucket, **options)


def run(params: list[nn.Parameter], **options: Any) -> None:
    sum((p * p).sum() for p in params).backward(**options)  # type: ignore[union-attr]


@pytest.mark.filterwarnings("ignore:Using backward.*create_graph")
def test_what_cannot_be(monkeypatch: pytest.MonkeyPatch, figure: Figure) -> None:
    params, opt = pair()
    run(params)
    before = [bits(p) for p in params]
    with pytest.raises(ValueError, match="second gradient of parameter . before step"):
        run(params)
    assert [bits(p) for p in params] == before, "nothing of the second backward was taken"
    with pytest.raises(ValueError, match="gradient of parameter . that came after backward"):
        opt.step()
    opt.zero_grad()
    opt.step()
    run(params)
    opt.step()
    assert int(opt.state[params[0]]["step"]) == 2
    run(params)
    params[1].grad = torch.zeros_like(params[1])  # as DeepSpeed's pipelines do
    with pytest.raises(ValueError, match="gradient of parameter 1 that came after backward"):
        opt.step()
    opt.zero_grad()
    opt.step()

    with pytest.raises(ValueError, match="closure with step_in_backward"):
        opt.step(lambda: 0.0)
    with pytest.raises(ValueError, match="create_graph=True"):
        run(params, create_graph=True)
    opt.zero_grad()
    opt.step()
    with pytest.raises(ValueError, match="amp_scaling=True, wanted False"):
        pair(amp_scaling=True)
    with pytest.raises(ValueError, match="both prefetch_in_backward and step_in_backward"):
        pair(prefetch_in_backward=True)
    with pytest.raises(TypeError, match="step_in_backward: got None"):
        pair(None)
    with pytest.raises(ValueError, match="step_in_backward: got -1"):
        pair(-1)
    with pytest.raises(ValueError, match="step_in_backward"):
        pair("much")
    other = lowtide.SGD(params, step_in_backward=0)
    with pytest.raises(ValueError, match="another optimizer of the same parameters"):
        run(params)
    del other
    gc.collect()
    opt.step()
    run(params)
    opt.step()

    monkeypatch.setattr(torch.distributed, "is_initialized", lambda: True)
    monkeypatch.setattr(torch.distributed, "get_world_size", lambda: 2)
    before = [bits(p) for p in params]
    with pytest.raises(ValueError, match="got a process group of 2 processes"):
        run(params)
    assert [bits(p) for p in params] == before
    figure("10 refused by name, without a change")


@pytest.mark.parametrize("clip", ["norm", "value", "accelerate", "by hand", "in the second step", "none", "zero_grad"])
def test_clipping_what_has_been_stepped_warns_once(clip: str, seed: int, recwarn: pytest.WarningsRecorder) -> None:
    params, opt = pair()
    accelerator = None
    if clip == "accelerate":
        accelerate = pytest.importorskip("accelerate")
        accelerator = accelerate.Accelerator(cpu=True)
        accelerator.prepare(opt)
    recwarn.clear()
    for i in range(3):
        run(params)
        if clip == "norm":
            assert float(nn.utils.clip_grad_norm_(params, 1.0)) == 0
        elif clip == "value" and i == 0:  # torch's function fails where there is no gradient
            nn.utils.clip_grad_value_(params, 1.0)
        elif accelerator:
            accelerator.clip_grad_norm_(params, 1.0)
        elif clip == "by hand":
            for param in params:
                if param.grad is not None:
                    param.grad.mul_(0.5)
        elif clip == "in the second step" and i:
            nn.utils.clip_grad_norm_(params, 1.0)
        elif clip == "zero_grad":
            opt.zero_grad()
        opt.step()
        assert all(p.grad is None for p in params)
    said = [str(each.message) for each in recwarn if "clip_grad_norm_" in str(each.message)]
    wanted = 0 if clip in ("none", "zero_grad", "in the second step") else 1
    assert len(said) == wanted and all("max_grad_norm=0" in each for each in said)
    assert opt.report()["steps"] == 3


def test_a_scaler_of_losses_is_refused(seed: int) -> None:
    params, opt = pair()
    scaler = torch.amp.GradScaler("cpu", init_scale=4.0)
    scaler.scale(sum((p * p).sum() for p in params)).backward()  # type: ignore[union-attr]
    with pytest.raises(ValueError, match="got a GradScaler, wanted none: .* freed in backward"):
        scaler.step(opt)


def test_autograd_sees_the_change(figure: Figure) -> None:
    """Backward must not compute with the new form of a value that it still needs and no gradient waits for."""
    weight, scale = parameter(4, 4), parameter(4, 4)
    opt = lowtide.SGD([weight, scale], lr=0.1, step_in_backward=0)
    x = scale * weight.detach()  # needs weight's old values, after its gradient is complete
    for _ in range(5):
        x = x * 1.0
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        (x.sum() + (weight * 2.0).sum()).backward()
    del opt
    figure("refused by autograd")


@pytest.mark.parametrize("nonfinite", ["skip", "raise", "propagate"])
def test_gradients_that_are_not_finite(nonfinite: str, figure: Figure) -> None:
    params, opt = pair(nonfinite=nonfinite)
    params[1].register_hook(lambda grad: grad * float("nan"))
    before = [bits(p) for p in params]
    if nonfinite == "raise":
        with pytest.raises(ValueError, match="holds a NaN"):
            run(params)
        assert bits(params[1]) == before[1]
        return
    run(params)
    opt.step()
    changed = [bits(p) != old for p, old in zip(params, before, strict=True)]
    assert changed == [True, nonfinite == "propagate", True]
    assert opt.skipped_steps == (nonfinite == "skip")
    assert opt.report()["steps"] == 1, "the user's, whatever has become of buckets"
    figure(f"{nonfinite}: changed {changed}")


def test_copies_pickles_and_life(seed: int, figure: Figure) -> None:
    params, opt = pair()
    run(params)
    opt.step()
    for other in (copy.deepcopy(opt), pickle.load(io.BytesIO(pickle.dumps(opt)))):
        theirs = [p for group in other.param_groups for p in group["params"]]
        run(theirs)
        assert [p.grad is None for p in theirs] == [True, True, False], "the smallest one tells of clipping"
        other.step()
        assert int(other.state[theirs[0]]["step"]) == 2 and other.report()["steps"] == 2
    late = parameter(5)
    opt.add_param_group({"params": [late], "lr": 0.1})
    run([*params, late])
    assert late.grad is None
    opt.step()
    alive = weakref.ref(opt)
    del opt, other
    gc.collect()
    assert alive() is None
    run(params)
    assert all(p.grad is not None for p in params), "hooks went with the optimizer"
    figure("a copy, a pickle and a late group step in backward; nothing keeps the optimizer")


def test_compiled_models(figure: Figure) -> None:
    model = Model()
    other = twin(model)
    before, within = lowtide.AdamW(model.parameters()), lowtide.AdamW(other.parameters(), step_in_backward=0)
    compiled = torch.compile(other, backend="aot_eager")
    plain = torch.compile(model, backend="aot_eager")
    for i, tokens, labels in batches():
        before.zero_grad()
        loss_of(plain, tokens, labels, i).backward()
        before.step()
        loss_of(compiled, tokens, labels, i).backward()
        assert sum(p.grad is not None for p in other.parameters()) == (i == 0), "the one that tells of clipping"
        within.step()
    assert all(bits(one) == bits(two) for one, two in zip(model.parameters(), other.parameters(), strict=True))
    figure(f"{STEPS} steps of a compiled model")
