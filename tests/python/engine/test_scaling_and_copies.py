"""Mixed precision by GradScaler, and copies of optimizers: deepcopy, pickle, torch.compile around a step."""

import copy
import pickle

import lowtide
import pytest
import torch

from support import CODECS, RULES, bits, make, parameter, random_gradients, snapshot, state_bits


def test_grad_scaler_needs_no_special_code(seed, figure):
    """GradScaler unscales before the step and keeps steps with an infinity to itself."""
    scaler = torch.amp.GradScaler("cpu", init_scale=1024.0)
    a, b = parameter(300), None
    b = torch.nn.Parameter(a.detach().clone())
    opt, plain = lowtide.AdamW([a], state="fp32"), lowtide.AdamW([b], state="fp32")
    skipped = 0
    for step in range(4):
        grad = torch.randn(300)
        scaler.scale(torch.zeros(()))
        a.grad = grad * scaler.get_scale()
        b.grad = grad.clone()
        if step == 2:
            a.grad[7] = float("inf")
            before = snapshot(opt)
        scaler.step(opt)
        scaler.update()
        if step == 2:
            assert snapshot(opt) == before
            skipped += 1
        else:
            plain.step()
    figure(f"steps with an infinity 1, skipped {skipped}, scale after {scaler.get_scale():g}")
    assert scaler.get_scale() == 512.0 and bits(a) == bits(b)


def test_amp_scaling_unscales_in_the_step(seed, figure):
    """Opt-in: GradScaler hands over its scale; gradients stay scaled, and a step with an infinity is counted."""
    scaler = torch.amp.GradScaler("cpu", init_scale=1024.0)
    a, b = parameter(300), None
    b = torch.nn.Parameter(a.detach().clone())
    opt, plain = lowtide.AdamW([a], state="fp32", amp_scaling=True), lowtide.AdamW([b], state="fp32")
    assert not hasattr(plain, "_step_supports_amp_scaling")
    for step in range(4):
        grad = torch.randn(300)
        scaler.scale(torch.zeros(()))
        a.grad = grad * scaler.get_scale()
        b.grad = grad.clone()
        if step == 2:
            a.grad[7] = float("nan")
            before = snapshot(opt)
        scaled = bits(a.grad)
        scaler.step(opt)
        assert bits(a.grad) == scaled
        scaler.update()
        if step == 2:
            assert snapshot(opt) == before
        else:
            plain.step()
    figure(f"skipped {opt.skipped_steps}/1, bits equal to unscaled gradients: {bits(a) == bits(b)}")
    assert opt.skipped_steps == opt.report()["skipped_steps"] == 1 and bits(a) == bits(b)
    # After unscale_ the gradients are final, and without a scaler there is nothing to unscale.
    a.grad = torch.full((300,), 512.0)
    b.grad = torch.ones(300)
    scaler.unscale_(opt)
    scaler.step(opt)
    plain.step()
    a.grad = torch.ones(300)
    opt.step()
    plain.step()
    assert bits(a) == bits(b)


@pytest.mark.parametrize("rule", RULES)
@pytest.mark.parametrize("codec", CODECS)
def test_copies_go_on_alike(rule, codec, seed):
    """deepcopy of (model, optimizer) in either order, and pickle: the copy has its own parameters and steps alike."""
    model = torch.nn.Sequential(torch.nn.Linear(64, 80), torch.nn.Linear(80, 8))
    model[1].bias.requires_grad_(False)
    opt = make(rule, [{"params": model[0].parameters()}, {"params": model[1].parameters(), "lr": 0.01}], state=codec)
    params = [p for p in model.parameters() if p.requires_grad]
    random_gradients(params)
    opt.step()
    pairs = [copy.deepcopy((model, opt)), copy.deepcopy((opt, model))[::-1], pickle.loads(pickle.dumps((model, opt)))]
    random_gradients(params)
    opt.step()
    for other_model, other in pairs:
        others = [p for p in other_model.parameters() if p.requires_grad]
        assert other.param_groups[0]["params"][0] is other_model[0].weight
        for p, q in zip(params, others, strict=True):
            q.grad = p.grad.clone()
        other.step()
        assert [bits(p) for p in params] == [bits(p) for p in others]
        assert state_bits(other) == state_bits(opt)
        assert all(p.data_ptr() != q.data_ptr() for p, q in zip(params, others, strict=True))


def test_a_step_inside_compiled_code(seed):
    """torch.compile leaves the step to Python: the same bits as without."""
    models = [torch.nn.Linear(64, 80)]
    models.append(copy.deepcopy(models[0]))
    opts = [lowtide.AdamW(model.parameters(), lr=0.1) for model in models]

    def train(model, opt, x):
        model(x).square().sum().backward()
        opt.step()
        opt.zero_grad()

    compiled = torch.compile(train, backend="eager")
    for _ in range(3):
        x = torch.randn(4, 64)
        compiled(models[0], opts[0], x)
        train(models[1], opts[1], x)
    assert [bits(p) for p in models[0].parameters()] == [bits(p) for p in models[1].parameters()]
    assert state_bits(opts[0]) == state_bits(opts[1])
