"""State dicts of torch.optim.Muon: momentum continues in both directions. What cannot be expressed is refused, and changes
nothing."""

import copy
import math

import lowtide
import pytest
import torch

from support import copies_of, drop, parameter, put, random_gradients, refused, state_bits, step_alike, take_steps, through_file

SHAPES = [(64, 96), (96, 32), (48, 48), (1, 20)]
OPTIONS = [
    {"lr": 0.02},
    {"lr": 0.02, "nesterov": False, "adjust_lr_fn": "match_rms_adamw", "weight_decay": 0.0},
    {"lr": 0.02, "momentum": 0.5, "ns_steps": 3, "ns_coefficients": (2.0, -1.5, 0.5), "adjust_lr_fn": "original"},
]
NAMES = ["default", "not nesterov", "other coefficients"]
# b / (1 - μ) here, b there: each rounds 1 - μ to float32 once, and the quotient and product, too.
ROUNDINGS = 4 * 2.0**-24


@pytest.fixture(autouse=True)
def _one_thread():
    """Matrices are small."""
    torch.set_num_threads(1)


def trained_by_torch(steps=5, **options):
    params = [parameter(*shape) for shape in SHAPES]
    theirs = torch.optim.Muon([{"params": params[:2]}, {"params": params[2:], "lr": 0.01}], **options)
    take_steps(params, theirs, steps)
    return params, theirs


def muon(params, **options):
    return lowtide.Muon([{"params": params[:2]}, {"params": params[2:]}], **options)


def step_both(ours, theirs, mine, others):
    """One step with the same gradients. Returns the difference of the moves for each matrix, relative to the move's norm."""
    before = [p.detach().clone() for p in others]
    step_alike((others, theirs), (mine, ours))
    moves = [(q - s).detach().norm() for q, s in zip(others, before, strict=True)]
    return [float((p - q).detach().norm() / move) for p, q, move in zip(mine, others, moves, strict=True)]


@pytest.mark.parametrize("options", OPTIONS, ids=NAMES)
def test_momentum_of_torch_goes_on_here(options, seed, figure):
    """With float32 state directions are apart by ROUNDINGS. About ROUNDINGS · 2⁸ = 2⁻¹⁴ of their elements lie that close to
    a boundary of bfloat16, and may be rounded to its other side, 2⁻⁸ of themselves away. In a matrix of 48 by 48 one
    element is 1/48 of the norm; the iteration, of slope a at 0, makes up to 3.4⁵ of the change, beside an O(d) of norm √48:
    3.4⁵ · 2⁻⁸ / 48 / √48 = 0.6 % of the move. 1.5 % are six of them (most matrices have none, and equal bits; over 400
    seeds it was 1.0 % at most)."""
    params, theirs = trained_by_torch(**options)
    copies = copies_of(params)
    ours = muon(copies, lr=0.5, momentum=0.3, state="fp32")
    random_gradients(copies)
    ours.step()  # something to overwrite
    for p, q in zip(copies, params, strict=True):
        p.data.copy_(q)
    ours.load_state_dict(through_file(theirs.state_dict()))
    for group, wanted in zip(ours.param_groups, theirs.param_groups, strict=True):
        assert all(group[key] == wanted[key] for key in wanted if key != "params")
        assert group["use_muon"] is True and group["betas"] == (0.9, 0.95)  # what torch's has not stays
    rest = 1 - options.get("momentum", 0.95)
    off = max(
        float(((ours.state[p]["momentum_buffer"].double() * rest - b).abs() / b.abs()).max())
        for p, b in ((p, theirs.state[q]["momentum_buffer"].double()) for p, q in zip(copies, params, strict=True))
    )
    apart = step_both(ours, theirs, copies, params)
    figure(f"momentum apart by {off * 2**24:.1f} 2⁻²⁴; the next step by {max(apart):.1e}, {apart.count(0.0)} of 4 bit-equal")
    assert off <= ROUNDINGS and max(apart) < 0.015


@pytest.mark.parametrize(("state", "bound"), [("bf16", 2.0**-8), ("dynamic8", 0.0072), ("float8", 2.0**-4)])
def test_momentum_of_torch_is_encoded(state, bound, seed, figure):
    """Within what the format rounds by: bfloat16 half of 2⁻⁷ of the value; dynamic8 half of the widest gap of its map,
    0.9 / 64, of the block's largest value; float8 takes one of both neighbours, which are 2⁻⁴ of the value apart."""
    params, theirs = trained_by_torch(lr=0.02)
    ours = muon(copies := copies_of(params), state=state, min_quantized_numel=0)
    ours.load_state_dict(theirs.state_dict())
    worst = 0.0
    for i, (p, q) in enumerate(zip(copies, params, strict=True)):
        wanted = theirs.state[q]["momentum_buffer"] / (1 - 0.95)
        off = (ours._core.export_state(i, 0) - wanted).abs()
        worst = max(worst, float((off / (wanted.abs() if state == "bf16" else wanted.abs().max())).max()))
        assert int(ours.state[p]["step"]) == 1
    apart = step_both(ours, theirs, copies, params)
    figure(f"{state}: momentum apart by {worst:.1e}, at most {bound:.1e}; the next step by {max(apart):.1e} of the move")
    assert worst <= bound


@pytest.mark.parametrize("options", OPTIONS, ids=NAMES)
def test_momentum_of_ours_goes_on_in_torch(options, seed, figure):
    """And back: saved values multiplied and divided by 1 - μ. The bounds are as in the other direction."""
    params = [parameter(*shape) for shape in SHAPES]
    ours = muon(params, state="fp32", **options)
    take_steps(params, ours, 3)
    saved = through_file(ours.torch_state_dict())
    copies = copies_of(params)
    theirs = torch.optim.Muon([{"params": copies[:2]}, {"params": copies[2:]}])
    keys = set(theirs.param_groups[0])
    theirs.load_state_dict(saved)
    assert set(theirs.param_groups[0]) == keys
    twin = muon(copies_of(params), state="fp32")
    twin.load_state_dict(theirs.state_dict())
    off = 0.0
    for p, q in zip(params, [q for group in twin.param_groups for q in group["params"]], strict=True):
        a, b = (opt.state[r]["momentum_buffer"].double() for opt, r in ((ours, p), (twin, q)))
        off = max(off, float(((a - b).abs() / a.abs()).max()))
    apart = step_both(ours, theirs, params, copies)
    figure(f"there and back {off * 2**24:.1f} 2⁻²⁴; the next step apart by {max(apart):.1e}")
    assert off <= ROUNDINGS and max(apart) < 0.015


def test_without_momentum_nothing_is_loaded_or_written(seed, figure):
    """b is then the last step's g, which no later step reads: the next step equals torch's, up to two float32 roundings."""
    params, theirs = trained_by_torch(lr=0.02, momentum=0.0)
    ours = muon(copies := copies_of(params), momentum=0.0)
    ours.load_state_dict(theirs.state_dict())
    apart = step_both(ours, theirs, copies, params)
    figure(f"the next step apart by {max(apart)}")
    for p, q in zip(copies, params, strict=True):
        torch.testing.assert_close(p, q, rtol=2**-22, atol=2**-30)
    assert ours.torch_state_dict()["state"] == {} and ours.report()["state_bytes"] == 0


def test_before_the_first_step(seed):
    params, theirs = trained_by_torch(steps=0, lr=0.02)
    ours = muon(copies := copies_of(params), state="fp32")
    ours.load_state_dict(theirs.state_dict())
    assert max(step_both(ours, theirs, copies, params)) < 0.015 and ours.param_groups[0]["lr"] == 0.02


def test_malformed_ones_are_refused_whole(seed):
    params, theirs = trained_by_torch(lr=0.02)
    ours = muon(copies_of(params))
    cases = [
        (put(["state", 0, "momentum_buffer"], lambda t: t[:-1]), "(63, 96)", "(64, 96)"),
        (put(["state", 0, "momentum_buffer"], lambda t: t.T), "(96, 64)"),
        (put(["state", 1, "momentum_buffer"], lambda t: t.int()), "int32"),
        (put(["state", 1, "momentum_buffer"], None), "NoneType"),
        (put(["state", 2, "momentum_buffer"], lambda t: t * math.inf), "finite"),
        (put(["state", 2], lambda e: {"exp_avg": e["momentum_buffer"]}), "exp_avg", "momentum_buffer"),
        (put(["state", 3], lambda e: {**e, "step": torch.tensor(3.0)}), "step"),
        (put(["state", 7], lambda _: {}), "7"),
        (drop("param_groups", 0, "momentum"), "momentum", "torch.optim.Muon"),
        (drop("param_groups", 1, "ns_coefficients"), "ns_coefficients"),
        (put(["param_groups", 0, "momentum"], 1.0), "momentum", "less than 1"),
        (put(["param_groups", 0, "ns_steps"], 100), "ns_steps"),
        (put(["param_groups", 0, "adjust_lr_fn"], "other"), "adjust_lr_fn"),
    ]
    for change, *words in cases:
        saved = copy.deepcopy(theirs.state_dict())
        saved["state"].setdefault(7, {}) if words == ["7"] else change(saved)
        with refused(ours, *words):
            ours.load_state_dict(saved)
    before = state_bits(ours)
    ours.load_state_dict(theirs.state_dict())
    assert state_bits(ours) != before


def test_what_torch_does_not_have_is_refused_both_ways(seed):
    """Parameters that AdamW steps, and maximize: torch would treat them differently."""
    weight, bias, head = parameter(8, 8), parameter(8), parameter(8, 8)
    theirs = torch.optim.Muon([weight])
    for params, options, words in (
        ([bias], {}, ["parameters [0] that AdamW steps", "use_muon=True"]),
        ([{"params": [head], "use_muon": False}], {}, ["AdamW"]),
        ([weight], {"maximize": True}, ["maximize"]),
    ):
        ours = lowtide.Muon(params, **options)
        with refused(ours, *words):
            ours.load_state_dict(theirs.state_dict())
        with refused(ours, "torch_state_dict", *words):
            ours.torch_state_dict()
    lowtide.override(layer := torch.nn.Linear(8, 8, bias=False), "weight", use_muon=False)
    with refused(ours := lowtide.Muon(layer.parameters()), "AdamW"):
        ours.load_state_dict(theirs.state_dict())


def test_other_optimizers_are_refused(seed):
    params = [parameter(8, 8)]
    ours = lowtide.Muon(params)
    for other in (torch.optim.AdamW(params), torch.optim.SGD(params, momentum=0.9), torch.optim.RMSprop(params)):
        with refused(ours, "torch.optim.Muon"):
            ours.load_state_dict(other.state_dict())
    for cls in (lowtide.AdamW, lowtide.SGD, lowtide.LARS, lowtide.Lion):
        with refused(other := cls(params, lr=0.1), "param_groups[0]"):
            other.load_state_dict(torch.optim.Muon(params).state_dict())


def test_an_overridden_momentum_counts(seed):
    """b is the same average whatever it is divided by: the next one is μ b + (1 - μ) g with this parameter's own μ."""
    params, theirs = trained_by_torch(lr=0.02)
    layer = torch.nn.Linear(96, 64, bias=False)
    layer.weight.data.copy_(params[0])
    lowtide.override(layer, "weight", momentum=0.5)
    copies = [layer.weight, *copies_of(params[1:])]
    ours = muon(copies, state="fp32")
    ours.load_state_dict(theirs.state_dict())
    b = theirs.state[params[0]]["momentum_buffer"]
    torch.testing.assert_close(ours.state[layer.weight]["momentum_buffer"] * 0.5, b, rtol=ROUNDINGS, atol=0.0)
    torch.testing.assert_close(ours.torch_state_dict()["state"][0]["momentum_buffer"], b, rtol=ROUNDINGS, atol=0.0)
