"""Lowtide's optimizers load state dicts of bitsandbytes, old and new, and refuse spoilt dicts."""

import math

import lowtide
import pytest
import torch
from lowtide.state import blockwise

from bitsandbytes_runs import NESTED, RULES, trained
from support import bits, copies_of, drop, put, refused, snapshot, take_steps, through_file

CLASSES = {
    "adamw": lowtide.AdamW,
    "lion": lowtide.Lion,
    "sgd": lowtide.SGD,
    "rmsprop": lowtide.RMSprop,
    "adagrad": lowtide.Adagrad,
    "ademamix": lowtide.AdEMAMix,
}


def optimizer(rule, params, **options):
    given = {"momentum": 0.9} if rule == "sgd" else {}
    return CLASSES[rule](params, lr=0.5, **{**given, **options})


def decoded(opt, index):
    """The state's values, in float32, by name."""
    core = opt._core
    return {name: core.export_state(index, k) for k, (name, _) in enumerate(core.states_of(index))}


def saved_values(entry, names, block=256):
    """The values of an entry: state1 and state2, or the halves of state1 and state2."""
    out = []
    for k in (1, 2):
        if f"state{k}" in entry:
            states = entry["state1"] if k == 1 and len(names) == 3 else [entry[f"state{k}"]]
            if f"qmap{k}" in entry:
                scales = entry[f"absmax{k}"].view(len(states), -1)
                states = [blockwise.decode(c, a, entry[f"qmap{k}"], block) for c, a in zip(states, scales, strict=True)]
            out.append([*states])
    first, second = out[0], out[1] if len(out) > 1 else []
    return dict(zip(names, [first[0], *second, *first[1:]], strict=True))


@pytest.mark.parametrize("codec", ["dynamic8", "bf16", "fp32"])
@pytest.mark.parametrize("rule", RULES)
@pytest.mark.share
def test_values_arrive(rule, codec, seed, figure):
    """In every state format, also where rows end within blocks: float32 state has the very values of the codes."""
    theirs, there = trained(rule, (64, 256), (37, 300), (9,))
    params = copies_of(theirs)
    opt = optimizer(rule, params, state=codec)
    saved = there.state_dict()
    opt.load_state_dict(through_file(saved))
    bound = {"fp32": 0.0, "bf16": 2.0**-8, "dynamic8": 0.06}[codec]  # of the largest of a block
    worst = 0.0
    for i in range(3):
        got = decoded(opt, i)
        wanted = saved_values(saved["state"][i][NESTED], list(got))
        for name, value in got.items():
            assert i < 2 or bits(value) == bits(wanted[name]), "a small tensor has float32 state"
            worst = max(worst, float((value - wanted[name]).abs().max() / wanted[name].abs().max()))
    assert [int(opt.state[p]["step"]) for p in params] == [5, 5, 5]
    figure(f"values within {worst:.1e} of the largest")
    assert worst <= bound


def test_old_blocks_of_2048_keep_their_codes(seed, figure):
    """Checkpoints from before 0.44: each of our blocks gets the scale of the old one that it is part of."""
    p = torch.nn.Parameter(torch.randn(40, 512))
    values = torch.randn(40, 512), torch.rand(40, 512) * 1e-4
    tensors = {}
    for k, (value, signed) in enumerate(zip(values, (True, False), strict=True), 1):
        book = blockwise.dynamic_map(signed)
        tensors[f"state{k}"], tensors[f"absmax{k}"] = blockwise.encode(value, book, 2048)
        tensors[f"qmap{k}"] = book
    group = {"lr": 1e-3, "betas": [0.9, 0.999], "eps": 1e-8, "weight_decay": 0.0, "params": [0]}
    opt = lowtide.AdamW([p])
    opt.load_state_dict({"state": {0: {"step": 7, **tensors}}, "param_groups": [group]})
    assert bits(opt.state[p]["exp_avg_codes"]) == bits(tensors["state1"])
    wanted = saved_values(tensors, ["exp_avg", "exp_avg_sq"], 2048)
    got = decoded(opt, 0)
    assert all(bits(got[name]) == bits(wanted[name]) for name in wanted)
    figure(f"{2 * p.numel()} codes under {tensors['absmax1'].numel()} scales: 0 differ, nor do their values")


def test_the_stored_map_is_honoured(seed, figure):
    """Values follow the stored map: one from a machine without fused multiply-add, an ulp away in places, or a linear one."""
    book = blockwise.dynamic_map()
    near = torch.where(torch.arange(256) % 5 == 0, torch.nextafter(book, torch.tensor(2.0)), book)
    near[127] = 0.0
    worst = []
    for other in (near, torch.linspace(-1, 1, 256)):
        p = torch.nn.Parameter(torch.randn(64, 256))
        codes, scales = blockwise.encode(torch.randn(64, 256), other, 256)
        entry = {"step": 3, NESTED: {"state1": codes, "absmax1": scales, "qmap1": other}}
        group = {"lr": 1e-3, "betas": (0.9, 0.99), "eps": 0.0, "weight_decay": 0.0, "params": [0]}
        opt = lowtide.Lion([p])
        opt.load_state_dict({"state": {0: entry}, "param_groups": [group]})
        wanted = blockwise.decode(codes, scales, other, 256)
        each = scales.repeat_interleave(256).view(64, 256)
        worst.append(float(((decoded(opt, 0)["exp_avg"] - wanted).abs() / each).max()))
    figure(f"largest distance {worst[0]:.1e} and {worst[1]:.1e} of absmax")
    assert worst[0] < 0.012 and worst[1] < 0.012  # half of the largest step of our map is 0.007, and the scale moves


@pytest.mark.parametrize("columns", [256, 300])
def test_ademamix_scales_as_cuda_places_them(columns, seed, figure):
    """With a short last block its CUDA kernels put the slow average's scales one place early."""
    theirs, there = trained("ademamix", (17, columns))
    saved = through_file(there.state_dict())
    entry = saved["state"][0][NESTED]
    wanted = blockwise.decode(entry["state1"][1], entry["absmax1"][1], entry["qmap1"], 256)
    blocks = -(-17 * columns // 256)
    if 17 * columns % 256:
        shifted = torch.zeros(2 * blocks)
        shifted[:blocks] = entry["absmax1"][0]
        shifted[blocks - 1 : -1] = entry["absmax1"][1]  # the two share this place
        entry["absmax1"] = shifted.view(2, blocks)
    opt = optimizer("ademamix", copies_of(theirs), state="fp32")
    opt.load_state_dict(saved)
    assert bits(decoded(opt, 0)["exp_avg_slow"]) == bits(wanted)
    figure(f"slow average of {wanted.numel()} elements in {blocks} blocks: 0 differ")


def test_frozen_and_unstepped_parameters(seed):
    theirs, there = trained("adamw", (64, 256))
    params = [*copies_of(theirs), torch.nn.Parameter(torch.randn(70)), torch.nn.Parameter(torch.randn(5), requires_grad=False)]
    saved = there.state_dict()
    saved["param_groups"][0]["params"] = [0, 1, 2]
    opt = lowtide.AdamW(params)
    opt.load_state_dict(saved)
    assert [int(opt.state[p]["step"]) if p in opt.state else None for p in params] == [5, None, None]


def test_an_empty_dict_brings_options(seed):
    p = torch.nn.Parameter(torch.randn(64, 256))
    opt = lowtide.AdamW([p], lr=0.5)
    opt.load_state_dict({**trained("adamw", (64, 256))[1].state_dict(), "state": {}})
    assert opt.param_groups[0]["lr"] == RULES["adamw"][1]["lr"] and opt.param_groups[0]["weight_decay"] == 0.05


def test_adam_with_decay_is_adamw(seed):
    """Its Adam decouples weight decay: ours equals it only without decay."""
    theirs, there = trained("adamw", (64, 256))
    opt = lowtide.Adam(copies_of(theirs))
    saved = there.state_dict()
    with refused(opt, "weight_decay", "0.05", "lowtide.AdamW"):
        opt.load_state_dict(saved)
    saved["param_groups"][0]["weight_decay"] = 0.0
    opt.load_state_dict(saved)


def test_paged_state_stays_in_its_budget(seed, tmp_path, figure):
    """State that streams from a disk is loaded into its own tier, and goes on as in RAM."""
    theirs, there = trained("adamw", (512, 256), (300, 256))
    saved = through_file(there.state_dict())
    results = []
    for memory in (None, lowtide.Memory(host="256KiB", disk=tmp_path, chunk="16KiB")):
        params = copies_of(theirs)
        opt = lowtide.AdamW(params, memory=memory)
        opt.load_state_dict(saved)
        torch.manual_seed(seed)
        take_steps(params, opt, 3)
        back = opt.bitsandbytes_state_dict()
        results.append([bits(p) for p in params] + [bits(back["state"][i][NESTED]["state1"]) for i in (0, 1)])
        on_disk = opt.report()["disk_bytes"] if memory else 0
    figure(f"{on_disk} bytes on disk after loading and 3 steps; parameters and codes equal those in RAM")
    assert results[0] == results[1] and on_disk > 0


MALFORMED = [
    ("too few scales", "absmax1", lambda t: t[:-1], "absmax1", "63 values", "64"),
    ("too many scales", "absmax2", lambda t: torch.cat([t, t]), "absmax2", "128 values"),
    ("a NaN scale", "absmax1", lambda t: t * math.nan, "absmax1", "nan"),
    ("an infinite scale", "absmax2", lambda t: t * math.inf, "absmax2"),
    ("a negative scale", "absmax1", lambda t: -t, "absmax1", "below 0"),
    ("an unsorted map", "qmap1", lambda t: t.flip(0), "qmap1", "ascending"),
    ("a map with a NaN", "qmap2", lambda t: t.masked_fill(t == 1, math.nan), "qmap2", "finite"),
    ("a short map", "qmap1", lambda t: t[:16], "qmap1", "(16,)", "(256,)"),
    ("codes of another shape", "state1", lambda t: t[:32], "state1", "(32, 256)", "(64, 256)"),
    ("transposed codes", "state1", lambda t: t.t().contiguous().t(), "state1", "strides"),
    ("codes of another type", "state2", lambda t: t.to(torch.int32), "state2", "int32"),
    ("floats with scales", "state1", lambda t: t.float(), "state1", "qmap or absmax"),
    ("no state", "state1", None, "state1", "NoneType"),
    ("signed second moments", "qmap2", lambda t: blockwise.dynamic_map(), "exp_avg_sq", "below 0"),
    ("an unknown key", "state3", torch.zeros(1), "state3"),
    ("tensor-wise state", "max1", torch.zeros(1), "max1", "tensor-wise"),
]


@pytest.mark.parametrize("case", MALFORMED, ids=[case[0] for case in MALFORMED])
def test_spoilt_entries_are_refused_whole(case, seed):
    _, key, change, *words = case
    theirs, there = trained("adamw", (64, 256), (64, 256))
    params = copies_of(theirs)
    opt = lowtide.AdamW(params)
    take_steps(params, opt)
    saved = through_file(there.state_dict())
    entry = saved["state"][1][NESTED]
    entry[key] = change(entry[key]) if callable(change) else change
    with refused(opt, "parameter 1", *words):
        opt.load_state_dict(saved)


@pytest.mark.parametrize(
    "change, words",
    [
        (drop("state", 0, "step"), ["step"]),
        (put(["state", 0, "step"], -1), ["step", "-1"]),
        (drop("state", 0, NESTED, "absmax1"), ["codes without qmap or absmax"]),
        (drop("state", 0, NESTED, "state2"), ["state2"]),
        (put(["state", 0, NESTED], 3), ["int", "dict"]),
        (put(["state", 0, "state1"], torch.zeros(2)), ["nested and beside"]),
        (drop("param_groups", 0, "lr"), ["lr"]),
        (put(["param_groups", 0, "betas"], (0.9, 0.99, 0.999)), ["betas", "2 of them"]),
        (put(["param_groups", 0, "betas"], (0.9, 1.5)), ["beta2", "1.5"]),
        (put(["param_groups"], lambda groups: groups * 2), ["2 groups"]),
        (put(["param_groups", 0, "params"], [0]), ["1 parameters"]),
    ],
)
def test_spoilt_dicts_are_refused_whole(change, words, seed):
    theirs, there = trained("adamw", (64, 256), (64, 256))
    opt = lowtide.AdamW(copies_of(theirs))
    saved = through_file(there.state_dict())
    change(saved)
    with refused(opt, *words):
        opt.load_state_dict(saved)


def test_dicts_of_another_rule_are_refused(seed, figure):
    """The number and shapes of states, and the options, tell as much as a dict can."""
    met = 0
    states = {rule: {"ademamix": 3, "adamw": 2}.get(rule, 1) for rule in RULES}
    for rule in RULES:
        theirs, there = trained(rule, (64, 256))
        saved = there.state_dict()
        for other in RULES:
            if states[rule] == states[other]:
                continue  # nothing in the dict distinguishes them
            opt = optimizer(other, copies_of(theirs))
            before = snapshot(opt)
            with pytest.raises(ValueError):
                opt.load_state_dict(saved)
            assert snapshot(opt) == before
            met += 1
    figure(f"{met} pairs of rules refused")


def test_options_that_bitsandbytes_would_ignore_are_not_written(seed):
    for cls, options, word in (
        (lowtide.AdamW, {"maximize": True}, "maximize"),
        (lowtide.AdamW, {"amsgrad": True}, "amsgrad"),
        (lowtide.SGD, {"momentum": 0.9, "nesterov": True}, "nesterov"),
        (lowtide.Adagrad, {"lr_decay": 0.1}, "lr_decay"),
    ):
        p = torch.nn.Parameter(torch.randn(64, 256))
        opt = cls([p], **options)
        with refused(opt, word):
            opt.bitsandbytes_state_dict()
