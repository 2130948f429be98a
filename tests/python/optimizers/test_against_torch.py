"""With float32 state, Lowtide computes what torch.optim computes, or a reference in float64, up to the rounding of float32.

Gradients are given, so errors do not feed back through a model. Every rule moves p by lr · u, u a quotient of sums of
gradients. In n steps a parameter collects at most
    n · ε · (max|p| + C · lr · U)
of rounding (ε = 2⁻²⁴): half an ulp of p per step, and C roundings of an update of at most lr · U, where U is measured in
float64 with the size of each sum's terms in place of the sum, as cancellation keeps their errors. C = 32 covers the
operations of a formula in both implementations; an average's memory of its own errors, 1 / (1 − β), is in U.
"""

import math

import lowtide
import pytest
import torch
from support import CODECS, DTYPES, make, parameter, random_gradients

STEPS = 50
EPSILON = 2.0**-24
C = 32

ADAM = {"lr": 0.01, "betas": (0.9, 0.99), "eps": 1e-6}
CASES = {
    **{
        f"{name}, {betas}, decay {decay}": (name, {"lr": 0.01, "betas": betas, "eps": 1e-6, "weight_decay": decay})
        for name in ("Adam", "AdamW") for betas in ((0.9, 0.999), (0.0, 0.95), (0.95, 0.5)) for decay in (0.0, 0.1)
    },  # fmt: skip
    "Adagrad": ("Adagrad", {"lr": 0.05, "lr_decay": 0.01, "initial_accumulator_value": 0.1}),
    "Adagrad, L2": ("Adagrad", {"lr": 0.05, "weight_decay": 0.1, "eps": 1e-6}),
    "RMSprop": ("RMSprop", {"lr": 0.01, "eps": 1e-6}),
    "RMSprop, L2": ("RMSprop", {"lr": 0.01, "alpha": 0.9, "weight_decay": 0.1, "eps": 1e-6}),
    "RMSprop, momentum": ("RMSprop", {"lr": 0.001, "momentum": 0.9, "eps": 1e-6}),
    "RMSprop, centered": ("RMSprop", {"lr": 0.01, "centered": True, "alpha": 0.9, "eps": 1e-3}),
    "RMSprop, both": ("RMSprop", {"lr": 0.001, "centered": True, "momentum": 0.5, "alpha": 0.9, "eps": 1e-3}),
    "NAdam": ("NAdam", ADAM),
    "NAdam, L2": ("NAdam", {**ADAM, "weight_decay": 0.1, "momentum_decay": 0.1}),
    "NAdam, decoupled": ("NAdam", {**ADAM, "weight_decay": 0.1, "decoupled_weight_decay": True}),
    "Adam, AMSGrad": ("Adam", {**ADAM, "amsgrad": True, "weight_decay": 0.1, "betas": (0.9, 0.5)}),
    "AdamW, AMSGrad": ("AdamW", {**ADAM, "amsgrad": True, "weight_decay": 0.1, "betas": (0.9, 0.5)}),
}


def largest_update(name, options, sizes, grads):
    """U: the largest update in units of lr, with sums of absolute values as numerators. sizes: |g| + |L2 term|.
    grads: g with it, [steps, elements]."""
    eps = options.get("eps", 1e-10)
    most = sizes.max(0).values
    beta1, beta2 = options.get("betas", (0.0, options.get("alpha", 0.99)))
    v, u = torch.zeros_like(most) + options.get("initial_accumulator_value", 0.0), torch.zeros_like(most)
    mean, lost = torch.zeros_like(most), torch.ones_like(most)
    for t, grad in enumerate(grads, 1):
        if name == "Adagrad":
            v = v + grad**2
            root = v.sqrt()
        else:
            v = beta2 * v + (1 - beta2) * grad**2
            root = (v if name == "RMSprop" else v / (1 - beta2**t)).sqrt()
        if options.get("centered"):  # rounding of v is larger beside v - mean²
            mean = beta2 * mean + (1 - beta2) * grad
            lost, root = v / (v - mean**2), (v - mean**2).sqrt()
        u = torch.maximum(u, lost * sizes[:t].max(0).values / (root + eps))
    memory = 1 / (1 - options.get("momentum", 0.0))
    return u * memory / (1 - beta1)


@pytest.mark.parametrize("maximize", [False, True])
@pytest.mark.parametrize("case", CASES)
def test_float32_state_computes_what_torch_computes(case, maximize, seed, figure):
    name, options = CASES[case]
    start = torch.randn(33, 65)
    p, q = torch.nn.Parameter(start.clone()), torch.nn.Parameter(start.clone())
    ours = getattr(lowtide, name)([p], **options, maximize=maximize, state="fp32")
    theirs = getattr(torch.optim, name)([q], **options, maximize=maximize)
    decay = 0.0 if name == "AdamW" or options.get("decoupled_weight_decay") else options.get("weight_decay", 0.0)
    sizes, grads, largest = [], [], p.detach().abs()
    for _ in range(STEPS):
        p.grad = torch.randn(p.shape) * torch.logspace(-2, 2, p.numel()).reshape(p.shape)
        q.grad = p.grad.clone()
        g = p.grad.double() * (-1 if maximize else 1)
        sizes.append(g.abs() + decay * q.detach().abs())
        grads.append(g + decay * q.detach())
        ours.step()
        theirs.step()
        largest = torch.maximum(largest, q.detach().abs())
    u = largest_update(name, options, torch.stack(sizes), torch.stack(grads))
    bound = STEPS * EPSILON * (largest + C * options["lr"] * u)
    difference = (p - q).detach().abs()
    worst = float((difference / bound).max())
    moved = float((q - start).detach().abs().max())
    figure(f"moved {moved:.2f}, largest difference {float(difference.max()):.1e}, {worst:.3f} of the bound")
    assert worst <= 1 and moved > 0.02
    # Control: the bound is far below what another formula would give.
    assert float(bound.median()) < 0.01 * moved


def ademamix(p, grads, lr, betas, alpha, t_alpha, t_beta3, eps, weight_decay):
    """Algorithm 1 and the schedulers of arXiv 2409.03137 in float64: equations 'alpha scheduler' and 'beta3 scheduler'."""
    m1, m2, v = (torch.zeros_like(p) for _ in range(3))
    for t, g in enumerate(grads, 1):
        a = min(t * alpha / t_alpha, alpha) if t_alpha else alpha
        b = betas[2]
        if t_beta3:
            start, end, share = math.log(betas[0]), math.log(betas[2]), t / t_beta3
            b = min(math.exp(start * end / ((1 - share) * end + share * start)), betas[2])
        m1 = betas[0] * m1 + (1 - betas[0]) * g
        m2 = b * m2 + (1 - b) * g
        v = betas[1] * v + (1 - betas[1]) * g * g
        direction = (m1 / (1 - betas[0] ** t) + a * m2) / ((v / (1 - betas[1] ** t)).sqrt() + eps)
        p = p - lr * (direction + weight_decay * p)
    return p, m2


@pytest.mark.parametrize(("t_alpha", "t_beta3"), [(None, None), (30, 30), (100, 40)])
def test_ademamix_against_float64(t_alpha, t_beta3, seed, figure):
    options = {"lr": 0.01, "betas": (0.9, 0.99, 0.999), "alpha": 3.0, "t_alpha": t_alpha, "t_beta3": t_beta3,
               "eps": 1e-6, "weight_decay": 0.1}  # fmt: skip
    p = parameter(3000)
    start = p.detach().double()
    opt = lowtide.AdEMAMix([p], **options, state="fp32")
    grads = [torch.randn(3000) * torch.logspace(-2, 2, 3000) for _ in range(STEPS)]
    for grad in grads:
        p.grad = grad.clone()
        opt.step()
    wanted, slow = ademamix(start, [grad.double() for grad in grads], **options)
    signed = torch.stack(grads).double()
    u = largest_update("AdEMAMix", {**options, "betas": options["betas"][:2]}, signed.abs(), signed)
    # The slow average's part: alpha times a sum of at most (1 - beta3) |g| per step, and its own memory of errors.
    bound = STEPS * EPSILON * (start.abs() + 1 + C * options["lr"] * u * (1 + options["alpha"]))
    difference = (p.detach().double() - wanted).abs()
    figure(f"largest difference {float(difference.max()):.1e}, {float((difference / bound).max()):.3f} of the bound")
    assert bool((difference <= bound).all()) and float(bound.median()) < 1e-2
    assert float((opt.state[p]["exp_avg_slow"].double() - slow).abs().max()) < 1e-4 * float(slow.abs().max())


NAMES = {
    "adamw": ["exp_avg", "exp_avg_sq"],
    "adagrad": ["sum"],
    "rmsprop": ["square_avg", "momentum_buffer", "grad_avg"],
    "ademamix": ["exp_avg", "exp_avg_sq", "exp_avg_slow"],
    "nadam": ["exp_avg", "exp_avg_sq"],
    "adamw_amsgrad": ["exp_avg", "exp_avg_sq", "max_exp_avg_sq"],
}


@pytest.mark.parametrize("rule", NAMES)
def test_every_codec_and_type_stays_near_float32(rule, seed, figure):
    """The first step has exact state: its move equals that with float32 state, up to the type's rounding. After 20 steps the
    move differs by the codec's error; a rule that confused states would be off by as much as it moved."""
    cases, worst = 0, 0.0
    for dtype in DTYPES:
        for codec in CODECS:
            a = parameter(16, 512, dtype=dtype)
            b = torch.nn.Parameter(a.detach().clone())
            start = a.detach().double()
            ours, exact = make(rule, [a], lr=0.01, state=codec), make(rule, [b], lr=0.01, state="fp32")
            for step in range(20):
                random_gradients([a])
                b.grad = a.grad.clone()
                ours.step()
                shown = [name for name in ours.state[a] if name != "step" and not name.endswith("_scale")]
                assert [name.removesuffix("_codes") for name in shown] == NAMES[rule]
                exact.step()
                if step == 0:
                    assert float((a.double() - b.double()).detach().abs().max()) <= 1e-6 * 2.0
            moved = float((b.detach().double() - start).square().mean().sqrt())
            off = float((a - b).detach().double().square().mean().sqrt()) / moved
            worst = max(worst, off)
            assert off < (1e-9 if codec == "fp32" else 0.3), (codec, dtype)
            cases += 1
    figure(f"{cases} codecs x types: rms difference at most {worst:.3f} of the rms move")


SHAPES = [(1000,), (33, 65)]


def run(ours, theirs, params):
    """Steps both optimizers over the same gradients. Returns, per parameter, these and the final difference."""
    a, b = params
    grads = []
    for _ in range(STEPS):
        grads.append([torch.randn(p.shape) * torch.logspace(-3, 2, p.numel()).reshape(p.shape) for p in a])
        for p, q, grad in zip(a, b, grads[-1], strict=True):
            p.grad, q.grad = grad.clone(), grad.clone()
        ours.step()
        theirs.step()
    return [torch.stack(each).double() for each in zip(*grads, strict=True)], [(p - q).detach().abs() for p, q in zip(a, b, strict=True)]


def twins():
    a = [torch.nn.Parameter(torch.randn(shape)) for shape in SHAPES]
    return a, [torch.nn.Parameter(p.detach().clone()) for p in a]


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
    grads, differences = run(ours, theirs, params)
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
    """The reference is algorithm 2 in float64. Where |c| is below its own rounding, either sign is right, so it is left out."""
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
