"""State dicts of torchao's low-bit optimizers and of FlashOptim in optimizers of Lowtide's: the values that they stand
for, in float32, by the formulas of each; and those that are spoilt."""

import copy
import math

import lowtide
import pytest
import torch
from lowtide.compat import flashoptim

from support import bits, drop, put, refused, through_file

SHAPE = (64, 256)
GROUP = {"lr": torch.tensor(2e-3), "betas": (0.8, 0.99), "eps": 1e-7, "weight_decay": 0.1, "amsgrad": False}


def moments():
    return {"exp_avg": torch.randn(SHAPE), "exp_avg_sq": torch.rand(SHAPE) ** 4}


KINDS = ("8bit", "4bit", "Fp8")


def torchao_dict(kind):
    """A state_dict as torchao's optimizers make it, with one large and one small parameter."""
    cls = getattr(pytest.importorskip(f"torchao.optim.subclass_{kind.lower()}"), f"OptimState{kind}")
    entry = {"step": torch.tensor(9.0)}
    for name, value in moments().items():
        signed = () if kind == "Fp8" else (name == "exp_avg",)
        entry[name] = cls.zeros(SHAPE, *signed).copy_(value)
    small = {"step": torch.tensor(9.0), "exp_avg": torch.randn(9), "exp_avg_sq": torch.rand(9)}
    return {"state": {0: entry, 1: small}, "param_groups": [{**GROUP, "params": [0, 1]}]}


def in_parts(saved):
    """The dict with plain dicts of the subclasses' parts, as they arrive where torchao is not installed."""
    parts = {name: dict(vars(value)) if type(value) is not torch.Tensor else value for name, value in saved["state"][0].items()}
    return {**saved, "state": {**saved["state"], 0: parts}}


def pair(**options):
    params = [torch.nn.Parameter(torch.randn(SHAPE)), torch.nn.Parameter(torch.randn(9))]
    return params, lowtide.AdamW(params, **options)


def exported(opt, index=0):
    return {name: opt._core.export_state(index, k) for k, (name, _) in enumerate(opt._core.states_of(index))}


@pytest.mark.parametrize("form", [lambda saved: saved, in_parts], ids=["subclasses", "parts"])
@pytest.mark.parametrize("kind", KINDS)
def test_torchao_states_arrive(kind, form, seed, figure):
    saved = torchao_dict(kind)
    entry, given = saved["state"][0], form(saved)
    params, opt = pair(state="fp32")
    opt.load_state_dict(given)
    got = exported(opt)
    assert all(bits(got[name]) == bits(entry[name].dequantize()) for name in got)
    assert all(bits(exported(opt, 1)[name]) == bits(saved["state"][1][name]) for name in got)
    assert int(opt.state[params[0]]["step"]) == 9 and float(opt.param_groups[0]["lr"]) == pytest.approx(2e-3)
    if kind == "8bit":
        _, coded = pair(state="dynamic8")
        coded.load_state_dict(given)
        assert bits(coded.state_dict()["state"][0]["exp_avg_codes"]) == bits(entry["exp_avg"].codes)
    del given["state"][1]  # of a parameter without a step
    opt.load_state_dict(given)
    assert params[1] not in opt.state
    figure(f"{2 * params[0].numel()} values: 0 differ from dequantize()" + ("; codes are kept" if kind == "8bit" else ""))


@pytest.mark.parametrize(
    "change, words",
    [
        (put(["state", 0, "exp_avg", "scale"], lambda t: t[:-1]), ["scale", "63 values"]),
        (put(["state", 0, "exp_avg", "scale"], lambda t: t * math.nan), ["scale", "nan"]),
        (put(["state", 0, "exp_avg", "qmap"], lambda t: t.flip(0)), ["qmap", "ascending"]),
        (put(["state", 0, "exp_avg", "codes"], lambda t: t[:32]), ["codes", "(32, 256)"]),
        (drop("state", 0, "exp_avg_sq"), ["exp_avg_sq"]),
        (put(["state", 0, "max_exp_avg_sq"], torch.zeros(SHAPE)), ["max_exp_avg_sq"]),
        (put(["state", 0, "other"], torch.zeros(SHAPE)), ["other"]),
        (drop("param_groups", 0, "betas"), ["betas"]),
    ],
)
def test_spoilt_dicts_of_torchao_are_refused_whole(change, words, seed):
    saved = in_parts(torchao_dict("8bit"))
    _, opt = pair()
    change(saved)
    with refused(opt, *words):
        opt.load_state_dict(saved)


def flash_codes(value, signed):
    """FlashOptim's codes and scales of a tensor, and the values that they stand for, in double."""
    source = value if signed else value.sqrt()
    by_group = torch.nn.functional.pad(source.reshape(-1), (0, -value.numel() % 32)).view(-1, 32)
    scale = by_group.abs().amax(1).to(torch.float16)
    x = by_group / scale.float()[:, None].clamp(min=1e-12)
    codes = torch.floor(2 * x / (1 + x.abs()) * 127 + 0.5) if signed else torch.floor(x * 255 + 0.5)
    codes = codes.clamp(-127 if signed else 0, 127 if signed else 255)
    y = codes.double() / (127 if signed else 255)
    values = (y / (2 - y.abs()) if signed else y) * scale.double()[:, None]
    values = values if signed else values * values
    flat = [each.reshape(-1)[: value.numel()].view(value.shape) for each in (codes, values)]
    return flat[0].to(torch.int8 if signed else torch.uint8), scale, flat[1]


def flash_dict(dtype, shape=SHAPE, errors=torch.int8):
    """FlashAdamW's state_dict of a parameter of that type, and the moments in double."""
    entry, wanted = {"step": torch.tensor(9)}, {}
    for name, value in {"exp_avg": torch.randn(shape), "exp_avg_sq": torch.rand(shape) ** 4}.items():
        codes, scales, wanted[name] = flash_codes(value, name == "exp_avg")
        entry[f"{name}::quantized"] = codes
        entry[f"{name}::scales"] = scales.view(torch.bfloat16) if dtype == torch.bfloat16 else scales
    if dtype != torch.float32:
        limits = torch.iinfo(errors)
        low = torch.randint(limits.min + 1, limits.max + 1, shape).to(errors)
        entry["error_bits"] = low.to(dtype) if errors == torch.int8 else low.view(dtype)
    options = {"lr": 2e-3, "betas": (0.8, 0.99), "eps": 1e-7, "weight_decay": 0.1, "initial_lr": 2e-3}
    group = {**options, "master_bytewidth": 3 if errors == torch.int8 else 4, "quantize": True, "params": [0]}
    return {"state": {0: entry}, "param_groups": [group]}, wanted


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("shape", [SHAPE, (37, 45)])
def test_flashoptim_states_arrive(shape, dtype, seed, figure):
    saved, wanted = flash_dict(dtype, shape)
    param = torch.nn.Parameter(torch.randn(shape).to(dtype))
    opt = lowtide.AdamW([param], state="fp32")
    if dtype == torch.float32:
        opt.load_state_dict(through_file(saved))
    else:
        with pytest.warns(UserWarning, match="error_bits"):
            opt.load_state_dict(through_file(saved))
    got = exported(opt)
    worst = max(float(((got[name].double() - v) / v.abs().clamp(min=1e-30)).abs().max()) for name, v in wanted.items())
    assert int(opt.state[param]["step"]) == 9 and opt.param_groups[0]["betas"] == (0.8, 0.99)
    assert "master_bytewidth" not in opt.param_groups[0] and opt.param_groups[0]["initial_lr"] == 2e-3
    figure(f"values within {worst:.1e} of themselves")
    assert worst < 5 * 2**-24  # two or three roundings to float32, and that of y


def test_flashoptim_lion_and_sgd(seed):
    codes, scales, wanted = flash_codes(torch.randn(SHAPE), True)
    for cls, name, options in (
        (lowtide.Lion, "exp_avg", {"betas": (0.9, 0.99)}),
        (lowtide.SGD, "momentum_buffer", {"momentum": 0.9, "dampening": 0.0}),
    ):
        entry = {f"{name}::quantized": codes, f"{name}::scales": scales}
        group = {"lr": 0.1, "weight_decay": 0.0, "master_bytewidth": 0, "quantize": True, **options, "params": [0]}
        given = {"momentum": 0.9} if cls is lowtide.SGD else {}
        opt = cls([torch.nn.Parameter(torch.randn(SHAPE))], state="fp32", **given)
        opt.load_state_dict({"state": {0: entry}, "param_groups": [group]})
        assert torch.allclose(exported(opt)[name].double(), wanted, rtol=1e-6)


@pytest.mark.parametrize("errors", [torch.int8, torch.int16])
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_master_weights_of_flashoptim(dtype, errors, seed, figure):
    """Every bfloat16 and float16 number that is finite, with random error bits: value + bits / most · half its ulp."""
    every = torch.arange(2**16).to(torch.int32).to(torch.uint16).view(dtype)
    every = every[torch.isfinite(every)]
    saved, _ = flash_dict(dtype, tuple(every.shape), errors)
    (got,) = flashoptim.master_weights([every], through_file(saved))
    above = torch.nextafter(every.abs(), torch.tensor(math.inf, dtype=dtype))
    ulp = above.double() - every.abs().double()
    ulp = torch.where(torch.isfinite(above), ulp, 2.0 ** (120 if dtype == torch.bfloat16 else 5))
    kept = saved["state"][0]["error_bits"]
    number = kept.double() if errors == torch.int8 else kept.view(torch.int16).double()
    wanted = every.double() + number / torch.iinfo(errors).max * ulp / 2
    worst = float(((got.double() - wanted) / wanted.abs().clamp(min=2.0**-126)).abs().max())
    figure(f"{every.numel()} parameters within {worst:.1e} of themselves")
    assert worst < 2**-23


@pytest.mark.parametrize(
    "change, words",
    [
        (put(["state", 0, "exp_avg::scales"], lambda t: t[:-1]), ["exp_avg::scales", "511 values", "512"]),
        (put(["state", 0, "exp_avg::scales"], lambda t: t * math.nan), ["exp_avg::scales", "nan"]),
        (put(["state", 0, "exp_avg::scales"], lambda t: t.float()), ["float32", "float16"]),
        (drop("state", 0, "exp_avg::scales"), ["exp_avg::scales", "NoneType"]),
        (put(["state", 0, "exp_avg::quantized"], lambda t: t.to(torch.uint8)), ["uint8", "int8"]),
        (put(["state", 0, "exp_avg::quantized"], lambda t: t[:3]), ["(3, 256)"]),
        (drop("state", 0, "exp_avg_sq::quantized"), ["exp_avg_sq"]),
        (put(["state", 0, "error_bits"], torch.zeros(3)), ["error_bits", "(3,)"]),
        (put(["state", 0, "other"], torch.zeros(3)), ["other"]),
        (drop("param_groups", 0, "eps"), ["eps"]),
    ],
)
def test_spoilt_dicts_of_flashoptim_are_refused_whole(change, words, seed):
    saved, _ = flash_dict(torch.float32)
    saved = copy.deepcopy(saved)
    change(saved)
    opt = lowtide.AdamW([torch.nn.Parameter(torch.randn(SHAPE))])
    with refused(opt, *words):
        opt.load_state_dict(saved)


def test_a_dict_of_another_rule_is_refused(seed):
    saved, _ = flash_dict(torch.float32)
    for cls in (lowtide.RMSprop, lowtide.Lion, lowtide.SGD):
        opt = cls([torch.nn.Parameter(torch.randn(SHAPE))])
        with refused(opt, "wanted"):
            opt.load_state_dict(saved)
    saved = torchao_dict("8bit")
    opt = lowtide.Lion([torch.nn.Parameter(torch.randn(SHAPE)), torch.nn.Parameter(torch.randn(9))])
    with refused(opt, "torchao", "lion"):
        opt.load_state_dict(saved)
