"""With float32 state, Lowtide computes what torch.optim computes, up to the rounding of float32. tests/reference has the rules
that torch lacks.

Gradients are given, so errors do not feed back through a model. Every rule moves p by lr · u, u a quotient of sums of
gradients. In n steps a parameter collects at most
    n · ε · (max|p| + C · lr · U)
of rounding (ε = 2⁻²⁴): half an ulp of p per step, and C roundings of an update of at most lr · U, where U is measured in
float64 with the size of each sum's terms in place of the sum, as cancellation keeps their errors. C = 32 covers the
operations of a formula in both implementations; an average's memory of its own errors, 1 / (1 − β), is in U.
"""


import lowtide
import pytest
import torch

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
    options = {"lr": lr, "weight_decay": weight_decay, "maximize": maximize}
    options |= {"momentum": momentum, "dampening": dampening, "nesterov": nesterov}
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
