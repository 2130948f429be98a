"""A run goes from bitsandbytes to Lowtide and back: which codes are equal, and how far the rest differ."""

import pytest
import torch
from lowtide.compat import bitsandbytes as compat
from lowtide.state import blockwise

from bitsandbytes_runs import NESTED, RULES, flat, real, trained
from support import bits, copies_of, step_alike, through_file

BEFORE, STEPS = 20, 50
SHAPES = ((64, 256), (5000,), (9,))  # blocks end with rows; one row with a short last block; float32 state
# Largest distance of parameters after that from those of bitsandbytes' formula, in units of the last place of their
# largest magnitude on the way. Each step rounds four times by half a unit: there the factor of weight decay, its
# product and the sum, here the difference.
ULPS = 2 * STEPS


@pytest.fixture(autouse=True)
def one_thread():
    """These tensors are small, and another thread may wait longer for a core than they take."""
    torch.set_num_threads(1)


def loaded(rule: str, params, saved):
    params = copies_of(params)
    opt = getattr(compat.optim, RULES[rule][0] + "8bit")(params, lr=0.5)
    opt.load_state_dict(through_file(saved))
    return params, opt


@pytest.mark.parametrize("nested", [True, False], ids=["nested", "flat"])
@pytest.mark.parametrize("rule", RULES)
def test_what_is_loaded_comes_back_bit_for_bit(rule, nested, seed, figure):
    """Without a step in between: all codes, scales and float32 values, for rules whose maps are equal. Second moments of
    RMSprop and Adagrad return in the finer unsigned map, at most half a step of the signed map away."""
    params, there = trained(rule, *SHAPES, steps=BEFORE)
    wanted = there.state_dict() if nested else flat(there.state_dict())
    _, opt = loaded(rule, params, wanted)
    assert opt.param_groups[0]["lr"] == RULES[rule][1]["lr"]
    back = through_file(opt.bitsandbytes_state_dict(nested))
    assert back["param_groups"] == wanted["param_groups"]
    codes = worst = 0
    for i, entry in wanted["state"].items():
        assert back["state"][i]["step"] == entry["step"] == BEFORE
        (mine, theirs) = (back["state"][i], entry) if not nested else (back["state"][i][NESTED], entry[NESTED])
        assert set(mine) == set(theirs)
        for key in (key for key in theirs if key != "step"):
            codes += theirs[key].numel() if theirs[key].dtype == torch.uint8 else 0
            if rule in ("rmsprop", "adagrad") and "qmap1" in theirs:
                continue
            assert bits(mine[key]) == bits(theirs[key]), (i, key)
        if rule in ("rmsprop", "adagrad") and "qmap1" in theirs:
            value, given = (each["qmap1"][each["state1"].int()].view(-1) * absmax_of(each) for each in (mine, theirs))
            worst = max(worst, float(((value - given).abs() / absmax_of(theirs)).max()))
    assert worst < 0.004  # of absmax: half of the largest step of the unsigned map
    figure(f"{codes} codes there and back: " + (f"values within {worst:.4f} absmax" if worst else "0 differ"))


def absmax_of(entry):
    """The scale of each element."""
    return entry["absmax1"].repeat_interleave(256)[: entry["state1"].numel()]


@pytest.mark.parametrize("rule", RULES)
def test_fifty_steps_from_a_loaded_state(rule, seed, figure):
    """Some codes differ, because its CPU library looks them up in a table, but parameters follow the same path."""
    theirs, there = trained(rule, *SHAPES, steps=BEFORE)
    params, opt = loaded(rule, theirs, there.state_dict())
    start = copies_of(params)
    for _ in range(STEPS):
        step_alike((params, opt), (theirs, there))
    away = max(float((p - q).detach().norm() / (q - old).detach().norm()) for p, q, old in zip(params, theirs, start, strict=True))
    figure(f"{differing(opt.bitsandbytes_state_dict(), there.state_dict())}, parameters {away:.1e} of the way apart")
    assert away < 0.1


def differing(mine, theirs) -> str:
    """The largest share of differing codes over all parameters. RMSprop and Adagrad have another map here."""
    if bits(mine["state"][0][NESTED]["qmap1"]) != bits(theirs["state"][0][NESTED]["qmap1"]):
        return "codes of another map"
    shares = {}
    for i, entry in theirs["state"].items():
        for key in ("state1", "state2"):
            tensor = entry[NESTED].get(key)
            if tensor is not None and tensor.dtype == torch.uint8:
                same = mine["state"][i][NESTED][key] == tensor
                shares[key] = max(shares.get(key, 0.0), float((~same).float().mean()))
    return ", ".join(f"{share:.2%} of {key}" for key, share in shares.items()) + " differ"


def ulps_apart(a: torch.Tensor, b: torch.Tensor, largest: torch.Tensor) -> int:
    place = torch.ldexp(torch.ones_like(largest), torch.frexp(largest).exponent - 24)
    return int(((a - b).abs() / place).max())


@pytest.mark.parametrize("kind", ["8bit", "32bit"])
@pytest.mark.parametrize("rule", RULES)
def test_bitsandbytes_loads_what_comes_back(rule, kind, seed, figure):
    """Its own optimizer loads our dict and steps, and we load its dict again."""
    name, hyper = RULES[rule]
    if (rule, kind) == ("ademamix", "32bit"):
        kind = ""  # there AdEMAMix32bit cannot step
    theirs = real(name + kind)
    params = [torch.nn.Parameter(torch.randn(shape)) for shape in (*SHAPES, (37, 300))]
    opt = getattr(compat.optim, name + kind)(params, **hyper)
    for _ in range(3):
        step_alike((params, opt))
    copies = copies_of(params)
    there = theirs(copies, **{**hyper, "lr": 1.0})
    there.load_state_dict(through_file(opt.bitsandbytes_state_dict()))
    start = [p.detach().clone() for p in params]
    for p, q in zip(params, copies, strict=True):
        p.grad = torch.randn_like(p)
        q.grad = p.grad.clone()
    both = zip(params, copies, strict=True)
    doubt = [sign_in_doubt(opt.state[p], there.state[q], p.grad, hyper) if rule == "lion" else None for p, q in both]
    opt.step()
    there.step()
    way = [float((p - old).detach().norm()) for p, old in zip(params, start, strict=True)]
    apart = []
    for p, q, far, unsure in zip(params, copies, way, doubt, strict=True):
        between = (p - q).detach()
        apart.append(float((between if unsure is None else between[~unsure]).norm()) / far)
    opt.load_state_dict(through_file(there.state_dict()))
    assert all(int(opt.state[p]["step"]) == 4 for p in params)
    without = f", without {sum(int(each.sum()) for each in doubt)} signs in doubt" if rule == "lion" else ""
    figure(f"the next step there is {max(apart):.1e} of its length from ours{without}")
    assert max(apart) < 0.05


def sign_in_doubt(ours, theirs, g: torch.Tensor, hyper) -> torch.Tensor:
    """Where Lion's update may have either sign: its argument is nearer to 0 than the difference of the moments. They differ
    where rows end within bitsandbytes' blocks, so that values are encoded again."""
    if theirs["state1"].dtype != torch.uint8:
        return torch.zeros(g.shape, dtype=torch.bool)
    book = blockwise.dynamic_map(True).double()
    each = ours["exp_avg_scale"].repeat_interleave(256, -1).reshape(*g.shape[:-1], -1)[..., : g.shape[-1]]
    here = book[ours["exp_avg_codes"].int()] * each
    scale = absmax_of(theirs).view(g.shape)
    there = book[theirs["state1"].int()] * scale
    assert bool(((here - there).abs() <= (float(book.diff().max()) / 2 + 2.0**-22) * scale).all())
    beta = hyper["betas"][0]
    argument = here * beta + g.double() * (1 - beta)
    rounded = 2.0**-22 * (here.abs() * beta + g.abs() * (1 - beta))  # two products and a sum in float32
    return argument.abs() <= (here - there).abs() * beta + rounded


def test_32_bit_state_stays_within_ulps(seed, figure):
    """50 steps of float32 state in Lowtide and in bitsandbytes, whose torch operations fuse multiply and add."""
    worst = {}
    for name, hyper in RULES.values():
        theirs = real(name)
        p = torch.nn.Parameter(torch.randn(64, 256))
        q = torch.nn.Parameter(p.detach().clone())
        here, there = getattr(compat.optim, name)([p], **hyper), theirs([q], **hyper)
        largest = p.detach().abs()
        for _ in range(STEPS):
            step_alike(([p], here), ([q], there))
            largest = torch.maximum(largest, p.detach().abs())
        worst[name] = ulps_apart(p.detach(), q.detach(), largest)
    figure(f"parameters after {STEPS} steps, in units of the last place: {worst}")
    assert all(ulps <= ULPS for name, ulps in worst.items())
