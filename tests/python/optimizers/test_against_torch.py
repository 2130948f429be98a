"""With float32 state, Lowtide computes what torch.optim computes, up to the rounding of float32.

Gradients are given, so errors do not feed back through a model. In n steps a parameter collects at most
    n · ε · (max|p| + C · lr · U)
of rounding: half an ulp of p per step, and C roundings of an update lr · u with |u| ≤ U. U is measured in the run, with
averages in float64: for Adam, u = m / (√v + eps) has rounding errors of the size of max|g| / √v, also where m cancels.
C = 32 covers the few operations of each formula, in both implementations, and an average's memory of its errors.
"""

import math

import lowtide
import pytest
import torch

STEPS, SHAPES = 50, [(1000,), (33, 65)]
EPSILON = 2.0**-24
C = 32


def run(ours, theirs, params):
    """Steps both optimizers over the same gradients; returns, per parameter, the gradients, the values that the
    parameter had before each step, and the difference after the last."""
    a, b = params
    grads, values = [], []
    for _ in range(STEPS):
        grads.append([torch.randn(p.shape) * torch.logspace(-3, 2, p.numel()).reshape(p.shape) for p in a])
        for p, q, grad in zip(a, b, grads[-1], strict=True):
            p.grad, q.grad = grad.clone(), grad.clone()
        values.append([q.detach().double() for q in b])
        ours.step()
        theirs.step()
    grads, values = ([torch.stack(each).double() for each in zip(*lists, strict=True)] for lists in (grads, values))
    return grads, values, [(p - q).detach().abs() for p, q in zip(a, b, strict=True)]


def twins():
    a = [torch.nn.Parameter(torch.randn(shape)) for shape in SHAPES]
    return a, [torch.nn.Parameter(p.detach().clone()) for p in a]


@pytest.mark.parametrize("weight_decay", [0.0, 0.1])
@pytest.mark.parametrize("maximize", [False, True])
@pytest.mark.parametrize("betas", [(0.9, 0.999), (0.0, 0.95), (0.95, 0.5)])
@pytest.mark.parametrize("name", ["AdamW", "Adam"])
@pytest.mark.share
def test_adam(name, betas, maximize, weight_decay, seed, figure):
    lr, eps = 0.01, 1e-6
    options = {"lr": lr, "betas": betas, "eps": eps, "weight_decay": weight_decay, "maximize": maximize}
    params = twins()
    ours = getattr(lowtide, name)(params[0], **options, state="fp32")
    theirs = getattr(torch.optim, name)(params[1], **options)
    grads, values, differences = run(ours, theirs, params)
    worst = 0.0
    for place, (param, difference) in enumerate(zip(params[0], differences, strict=True)):
        g, size = grads[place] * (-1 if maximize else 1), grads[place].abs()
        if name == "Adam":
            g, size = g + weight_decay * values[place], size + weight_decay * values[place].abs()
        v, u = torch.zeros_like(g[0]), torch.zeros_like(g[0])
        for t, grad in enumerate(g, 1):
            v = betas[1] * v + (1 - betas[1]) * grad**2
            u = torch.maximum(u, size[:t].max(0).values / ((v / (1 - betas[1] ** t)).sqrt() + eps))
        bound = STEPS * EPSILON * (param.detach().abs().max() + C * lr * u / (1 - betas[0]))
        worst = max(worst, float((difference / bound).max()))
    figure(f"largest difference {max(float(d.max()) for d in differences):.1e}, {worst:.3f} of the bound")
    assert worst <= 1


@pytest.mark.parametrize("weight_decay", [0.0, 0.1])
@pytest.mark.parametrize("maximize", [False, True])
@pytest.mark.parametrize(
    ("momentum", "dampening", "nesterov"),
    [(0.0, 0.0, False), (0.0, 0.5, False), (0.9, 0.0, False), (0.9, 0.0, True), (0.9, 0.5, False), (0.5, -0.5, False)],
)
def test_sgd(momentum, dampening, nesterov, maximize, weight_decay, seed, figure):
    lr = 0.01
    options = {
        "lr": lr,
        "momentum": momentum,
        "dampening": dampening,
        "nesterov": nesterov,
        "weight_decay": weight_decay,
        "maximize": maximize,
    }
    params = twins()
    ours = lowtide.SGD(params[0], **options, state="fp32")
    theirs = torch.optim.SGD(params[1], **options)
    grads, _, differences = run(ours, theirs, params)
    worst = 0.0
    for place, (param, difference) in enumerate(zip(params[0], differences, strict=True)):
        g = grads[place].abs().max(0).values
        g = g * max(1, 1 - dampening) / (1 - momentum)
        largest = param.detach().abs() + STEPS * lr * g
        bound = STEPS * EPSILON * (largest + C * lr * (g + weight_decay * largest) / (1 - momentum))
        worst = max(worst, float((difference / bound).max()))
    figure(f"largest difference {max(float(d.max()) for d in differences):.1e}, {worst:.3f} of the bound")
    assert worst <= 1


@pytest.mark.parametrize("weight_decay", [0.0, 1.0])
@pytest.mark.parametrize("maximize", [False, True])
@pytest.mark.parametrize("betas", [(0.9, 0.99), (0.95, 0.98), (0.0, 0.5)])
def test_lion_against_float64(betas, maximize, weight_decay, seed, figure):
    """The reference is algorithm 2 in float64. Where |c| is below its own rounding, either sign is right: left out."""
    lr = 0.01
    param = torch.nn.Parameter(torch.randn(5000))
    opt = lowtide.Lion([param], lr, betas, weight_decay, maximize=maximize, state="fp32")
    p, m = param.detach().double(), torch.zeros(5000, dtype=torch.float64)
    unsure = torch.zeros(5000, dtype=torch.bool)
    memory = min(STEPS, 1 / (1 - betas[1]))  # how many steps' roundings the average holds
    for _ in range(STEPS):
        param.grad = torch.randn(5000)
        opt.step()
        g = param.grad.double() * (-1 if maximize else 1)
        c = betas[0] * m + (1 - betas[0]) * g
        p = (1 - lr * weight_decay) * p - lr * c.sign()
        m = betas[1] * m + (1 - betas[1]) * g
        slack = 4 * EPSILON * (float(m.abs().max()) * memory + (1 - betas[0]) * float(g.abs().max()))
        unsure |= c.abs() < slack
    bound = STEPS * EPSILON * 4 * (float(p.abs().max()) + lr + STEPS * lr)
    worst = float((param.detach().double() - p).abs()[~unsure].max())
    figure(f"largest difference {worst:.1e} of a bound of {bound:.1e}; left out {int(unsure.sum())}/5000")
    assert worst <= bound and int(unsure.sum()) < 100
    assert float((opt.state[param]["exp_avg"].double() - m).abs().max()) <= slack


@pytest.mark.parametrize("codec", ["dynamic8", "bf16"])
def test_quantized_state_stays_close(codec, seed, figure):
    """The first step sees exact state, so it is torch's; later ones differ by the codec's error, some percent of lr."""
    a, b = twins()
    ours = lowtide.AdamW(a, lr=0.01, state=codec, min_quantized_numel=0)
    theirs = torch.optim.AdamW(b, lr=0.01)
    firsts, lasts = 0.0, 0.0
    for step in range(20):
        for p, q in zip(a, b, strict=True):
            p.grad = torch.randn(p.shape)
            q.grad = p.grad.clone()
        ours.step()
        theirs.step()
        size = max(float((p - q).detach().abs().max()) for p, q in zip(a, b, strict=True))
        rms = math.sqrt(
            sum(float((p - q).detach().square().sum()) for p, q in zip(a, b, strict=True)) / (1000 + 33 * 65)
        )
        firsts, lasts = (size, rms) if step == 0 else (firsts, rms)
    figure(f"largest difference after 1 step {firsts:.1e}, rms after 20 steps {lasts / 0.01:.3f} lr")
    assert firsts < 1e-6 and lasts < 0.2 * 0.01
