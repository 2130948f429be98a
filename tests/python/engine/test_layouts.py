"""Any shape, any stride, any mix of element types: the result equals a float64 reference, or is refused by name."""

import random

import lowtide
import torch

from support import DTYPES, bits, make, random_gradients

SHAPES = [
    (), (0,), (1,), (2,), (255,), (256,), (257,), (1025,), (0, 7), (7, 0), (1, 1), (3, 1), (1, 300), (5, 255), (5, 256),
    (5, 257), (17, 3, 5), (2, 3, 4, 5), (4, 2, 9, 9), (2, 2, 2, 2, 2), (3, 0, 5), (4096,), (64, 80), (8, 3, 1, 300),
]  # fmt: skip
ULP = {torch.float32: 2.0**-23, torch.bfloat16: 2.0**-7, torch.float16: 2.0**-10}
TINY = {torch.float32: 2.0**-149, torch.bfloat16: 2.0**-133, torch.float16: 2.0**-24}


def arrange(values, how, rng):
    """The values in a tensor of the same shape whose memory is laid out as `how` says."""
    if how == "transposed" and values.dim() >= 2:
        order = list(range(values.dim()))
        rng.shuffle(order)
        inverse = sorted(range(len(order)), key=order.__getitem__)
        return values.permute(order).contiguous().permute(inverse)
    if how == "channels_last" and values.dim() == 4:
        return values.contiguous(memory_format=torch.channels_last)
    if how == "sliced":
        wide = torch.full([2 * size + 3 for size in values.shape], 7.0, dtype=values.dtype)
        view = wide[tuple(slice(1, 1 + 2 * size, 2) for size in values.shape)]
        return view.copy_(values)
    if how == "offset":
        room = torch.full((values.numel() + 5,), 7.0, dtype=values.dtype)
        return room[3 : 3 + values.numel()].view(values.shape).copy_(values)
    if how == "expanded" and values.dim() >= 1 and values.shape[0] > 0:
        return values[:1].expand(values.shape)
    return values.clone()


LAYOUTS = ("contiguous", "transposed", "channels_last", "sliced", "offset", "expanded")


def reference(rule, p, g, state, t, lr):
    """One step in float64, and where float32 may not know the sign of Lion's c. Changes `state`."""
    if rule == "adamw":
        state[0].mul_(0.9).add_(g, alpha=0.1)
        state[1].mul_(0.999).add_(g * g, alpha=0.001)
        step = lr / (1 - 0.9**t) * state[0] / ((state[1] / (1 - 0.999**t)).sqrt() + 1e-8)
        return p * (1 - lr * 0.01) - step, False
    if rule == "lion":
        c = 0.9 * state[0] + 0.1 * g
        state[0].mul_(0.99).add_(g, alpha=0.01)
        return p - lr * c.sign(), c.abs() < 1e-6
    state[0].mul_(0.9).add_(g) if t > 1 else state[0].copy_(g)
    return p - lr * state[0], False


def test_layouts_and_types(seed, figure):
    """Random layouts and types of parameters and gradients, three steps each. Memory around a view stays unchanged."""
    rng = random.Random(seed)
    counts = {"correct": 0, "refused": 0, "refused by torch": 0, "silent-wrong": 0}
    lr = 0.1
    for case in range(1500):
        shape, rule = rng.choice(SHAPES), rng.choice(["adamw", "lion", "sgd"])
        p_dtype, g_dtype = rng.choice(DTYPES), rng.choice(DTYPES)
        p_layout, g_layouts = rng.choice(LAYOUTS), [rng.choice(LAYOUTS) for _ in range(3)]
        data = arrange(torch.randn(shape).to(p_dtype), p_layout, rng)
        what = f"case {case}: {rule} {shape} {p_dtype} {p_layout}, gradients {g_dtype} {g_layouts}"
        base = data._base if data._base is not None else data
        try:
            param = torch.nn.Parameter(data)
            opt = make(rule, [param], lr=lr, state="fp32", master=None)
        except ValueError:
            assert p_layout == "expanded" and shape[0] > 1, what
            counts["refused"] += 1
            continue
        assert param.data_ptr() == data.data_ptr()
        untouched = float((base.double() == 7.0).sum()) if p_layout in ("sliced", "offset") else None
        state = [torch.zeros(shape, dtype=torch.float64) for _ in range(2)]
        for t, g_layout in enumerate(g_layouts, 1):
            grad = arrange(torch.randn(shape).to(g_dtype), g_layout, rng)
            before = param.detach().double().clone()
            try:
                if hasattr(param, "grad_dtype"):
                    param.grad_dtype = None
                param.grad = grad
            except RuntimeError:
                counts["refused by torch"] += 1
                break
            opt.step()
            wanted, unsure = reference(rule, before, grad.double(), state, t, lr)
            error = (param.detach().double() - wanted).abs()
            # Half an ulp of the stored type, and float32's rounding of the update.
            slack = 0.51 * ULP[p_dtype] * torch.maximum(wanted.abs(), before.abs()) + TINY[p_dtype] + 1e-6
            if not bool(((error <= slack) | unsure).all()):
                counts["silent-wrong"] += 1
                print("WRONG", what, "step", t, "largest error", float(error.max()))
                break
        else:
            counts["correct"] += 1
        if untouched is not None and float((base.double() == 7.0).sum()) != untouched:
            counts["silent-wrong"] += 1
            print("WROTE OUTSIDE", what)
    figure(f"seed {seed}: layouts " + ", ".join(f"{name} {count}" for name, count in counts.items()))
    assert counts["silent-wrong"] == 0 and counts["correct"] > 700


def test_rows_are_blocks_of_their_own(seed, figure):
    """Blocks never cross a row: every row of a matrix gets the same bits as when it is its own parameter. (To nearest, because
    random bits depend on the parameter.)"""
    equal, total = 0, 0
    for length in (1, 255, 256, 257, 700):
        matrix = torch.nn.Parameter(torch.randn(6, length))
        rows = [torch.nn.Parameter(row.clone()) for row in matrix.detach()]
        options = {"state": "dynamic8", "min_quantized_numel": 0, "lr": 0.1, "rounding": "nearest"}
        whole, each = lowtide.AdamW([matrix], **options), lowtide.AdamW(rows, **options)
        for _ in range(3):
            random_gradients([matrix])
            for row, grad in zip(rows, matrix.grad, strict=True):
                row.grad = grad.clone()
            whole.step()
            each.step()
        equal += sum(bits(row) == bits(line) for row, line in zip(rows, matrix, strict=True))
        total += len(rows)
    figure(f"rows bit-equal {equal}/{total}")
    assert equal == total
