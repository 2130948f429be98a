"""Saving and loading keep every bit; a dict that does not fit is refused as a whole."""

import copy
import io
import itertools
import json
import math
import pickle
import pickletools
import zipfile
from contextlib import nullcontext

import lowtide
import pytest
import torch
import torch.distributed.checkpoint as dcp
from lowtide import _core
from support import (
    CODECS, DTYPES, FOUR_BITS, LONG_AVERAGES, RULES, bits, copies_of, drop, fresh, make, parameter, put, random_gradients,
    refused, snapshot, state_bits, step_alike, take_steps, through_file, trained,
)  # fmt: skip
from torch.distributed.checkpoint.state_dict import StateDictOptions, get_optimizer_state_dict, set_optimizer_state_dict


@pytest.mark.parametrize("rule", RULES)
@pytest.mark.parametrize("codec", CODECS + FOUR_BITS)
@pytest.mark.parametrize("dtype", DTYPES)
def test_resumed_run_equals_the_uninterrupted_one(rule, codec, dtype, seed, figure):
    """save → file → load → 3 steps = 3 steps without saving, in every bit of parameters and state; lr too."""
    if codec in FOUR_BITS and rule in LONG_AVERAGES:
        with pytest.raises(ValueError, match=f"got state '{codec}' for {rule}"):
            make(rule, [parameter(64, 64)], state=codec)
        return
    params, opt = trained(rule, dtype=dtype, state=codec)
    saved = through_file(opt.state_dict())
    copies, resumed = fresh(params, opt, **RULES[rule][1])
    resumed.load_state_dict(saved)
    assert state_bits(resumed) == state_bits(opt)
    for _ in range(3):
        step_alike((params, opt), (copies, resumed))
    equal = sum(bits(p) == bits(q) for p, q in zip(params, copies, strict=True))
    figure(f"parameters bit-equal {equal}/{len(params)}, state bit-equal {state_bits(opt) == state_bits(resumed)}")
    assert equal == len(params) and state_bits(opt) == state_bits(resumed)
    assert [g["lr"] for g in resumed.param_groups] == [g["lr"] for g in opt.param_groups]


@pytest.mark.parametrize("codec", ["fp32", "dynamic8"])
@pytest.mark.parametrize("way", ["entries of a dict", "numbers of a dict", "entries of state", "tensors of state"])
def test_state_that_is_swapped_arrives_whole(codec, way, seed):
    """Dicts and `state` hold views of live state: each must be read before it is written."""
    if (codec, way) == ("dynamic8", "tensors of state"):
        pytest.skip("codes and scales alone mean nothing, and cannot be swapped")
    params = [parameter(32, 256) for _ in range(2)]
    opt = lowtide.AdamW(params, state=codec)
    take_steps(params, opt)
    wanted = [{name: value.clone() for name, value in opt.state[param].items()} for param in reversed(params)]
    saved = opt.state_dict()
    if way == "entries of a dict":
        opt.load_state_dict({**saved, "state": {0: saved["state"][1], 1: saved["state"][0]}})
    elif way == "numbers of a dict":
        saved["param_groups"][0]["params"] = [1, 0]
        opt.load_state_dict(saved)
    elif way == "entries of state":
        opt.state[params[0]], opt.state[params[1]] = opt.state[params[1]], opt.state[params[0]]
    else:
        first, second = (opt.state[param] for param in params)
        for name in ("exp_avg", "exp_avg_sq"):
            first[name], second[name] = second[name], first[name]
    opt.state_dict()  # takes in what was assigned
    found = [opt.state[param] for param in params]
    assert all(torch.equal(each[name], of[name]) for each, of in zip(found, wanted, strict=True) for name in of)


def test_state_that_is_turned_arrives_whole(seed):
    param = parameter(64, 64)
    opt = lowtide.AdamW([param], state="fp32")
    take_steps([param], opt)
    average = opt.state[param]["exp_avg"]
    wanted = average.t().clone()
    opt.state[param]["exp_avg"] = average.t()
    opt.state_dict()
    assert torch.equal(opt.state[param]["exp_avg"], wanted)


def test_a_moment_that_stands_twice_in_an_entry_is_refused(seed):
    param = parameter(32, 256)
    opt = lowtide.AdamW([param])
    take_steps([param], opt)
    saved = opt.state_dict()
    saved["state"][0]["exp_avg"] = torch.zeros_like(saved["state"][0]["exp_avg_codes"])
    with pytest.raises(ValueError, match="'exp_avg', 'exp_avg_codes', .* wanted each moment once"):
        opt.load_state_dict(saved)


def test_only_plain_tensors_and_no_two_share_memory(seed, figure):
    _, opt = trained()
    saved = opt.state_dict()
    tensors = [value for entry in saved["state"].values() for value in entry.values()]
    assert all(type(value) is torch.Tensor for value in tensors)
    spans = sorted((t.data_ptr(), t.data_ptr() + t.numel() * t.element_size()) for t in tensors if t.numel())
    overlaps = sum(a[1] > b[0] for a, b in itertools.pairwise(spans))
    file = io.BytesIO()
    torch.save(saved, file)
    with zipfile.ZipFile(file) as archive:
        pickle = next(archive.read(name) for name in archive.namelist() if name.endswith("data.pkl"))
    names = {str(arg) for op, arg, _ in pickletools.genops(pickle) if op.name == "GLOBAL"}
    figure(f"tensors {len(tensors)}, overlaps {overlaps}, names in the file {sorted(names)}")
    assert overlaps == 0 and all(name.split()[0] in ("torch", "torch._utils", "collections") for name in names)


def test_format_is_as_documented(seed):
    _, opt = trained()
    saved = opt.state_dict()
    assert [g["params"] for g in saved["param_groups"]] == [[0, 1], [2, 3]]
    assert all(g["lowtide_format"] == 1 and g["lowtide_rule"] == "adamw" for g in saved["param_groups"])
    shapes = {name: (value.dtype, tuple(value.shape)) for name, value in saved["state"][1].items()}
    assert shapes == {
        "step": (torch.int64, ()),
        "exp_avg_codes": (torch.uint8, (70, 100)),
        "exp_avg_sq_codes": (torch.uint8, (70, 100)),
        "exp_avg_scale": (torch.float32, (70, 1)),
        "exp_avg_sq_scale": (torch.float32, (70, 1)),
    }
    assert set(saved["state"][2]) == {"step", "exp_avg", "exp_avg_sq"}
    assert saved["state"][2]["exp_avg"].dtype == torch.float32


def test_loading_into_a_frozen_parameter_keeps_its_state(seed):
    """Loading restores the state of a parameter frozen after training; an empty entry restarts a trained parameter."""
    params, opt = trained()
    saved = copy.deepcopy(opt.state_dict())
    copies = [torch.nn.Parameter(p.detach().clone(), requires_grad=i != 0) for i, p in enumerate(params)]
    other = lowtide.AdamW([{"params": copies[:2]}, {"params": copies[2:]}])
    assert not other.state
    other.load_state_dict(saved)
    assert state_bits(other) == state_bits(opt)
    empty = copy.deepcopy(lowtide.AdamW([{"params": [copies[0], copies[1]]}, {"params": copies[2:]}]).state_dict())
    assert empty["state"] == {}
    opt.load_state_dict(empty)
    assert not opt.state and not opt._core.export_state(0, 0).any()


def test_a_group_without_entries_starts_afresh(seed):
    """Trainers that add a group to a saved dict mean this; its parameters may have taken steps here."""
    params = [parameter(32, 256), parameter(16, 256), parameter(9)]
    opt = lowtide.AdamW([{"params": params[:2]}, {"params": params[2:]}])
    take_steps(params, opt, 2)
    saved = through_file(opt.state_dict())
    copies, other = fresh(params, opt)
    other.load_state_dict(saved)
    other.reset(copies[2:])
    del saved["state"][2]
    opt.load_state_dict(saved)
    assert [*opt.state] == params[:2]
    step_alike((params, opt), (copies, other))
    assert [*map(bits, params)] == [*map(bits, copies)] and state_bits(opt) == state_bits(other)


@pytest.mark.parametrize("codec", [*FOUR_BITS, "float8"])
def test_rows_that_cannot_be_packed_are_loaded_too(codec, seed):
    """Rows of odd length have dynamic8 in an optimizer of 4 bits: the group's "state" is not the parameter's."""
    params = [parameter(33, 301), parameter(64, 256), parameter(4, 6, 201), parameter(5000), parameter(5001)]
    opt = lowtide.AdamW(params, state=codec)
    take_steps(params, opt)
    saved = through_file(opt.state_dict())
    assert not any("lowtide_state" in entry for entry in saved["state"].values()), "the tensors say it"
    other = lowtide.AdamW([torch.nn.Parameter(p.detach().clone()) for p in params], state=codec)
    other.load_state_dict(saved)
    for twin in (other, copy.deepcopy(opt), pickle.loads(pickle.dumps(opt))):
        assert state_bits(twin) == state_bits(opt)
    dynamic8 = lowtide.AdamW([torch.nn.Parameter(p.detach().clone()) for p in params])
    with refused(dynamic8, "float8" if codec == "float8" else "dynamic4", "dynamic8"):
        dynamic8.load_state_dict(saved)


@pytest.mark.parametrize("codec", ["dynamic4", "dynamic8"])
def test_codes_of_a_format_that_there_is_not_are_not_loaded(codec, seed):
    """mixed12 was a format of earlier builds: alone, its first or second moments have the shapes of these."""
    params = [parameter(64, 256), parameter(20)]
    opt = make("sgd", params, state=codec)
    take_steps(params, opt)
    saved = copy.deepcopy(opt.state_dict())
    saved["param_groups"][0]["state"] = "mixed12"
    with refused(opt, "state of its group", "got 'mixed12', wanted one of", repr(codec)):
        opt.load_state_dict(saved)
    with pytest.raises(ValueError, match="got state 'mixed12', wanted one of: fp32, .*dynamic4"):
        make("sgd", params, state="mixed12")


def test_betas_that_4_bits_do_not_bear_are_not_loaded(seed):
    """Nothing else is loaded then, either; parameters without codes of 4 bits take any betas."""
    small = [parameter(64, 301), parameter(20)]
    slow = lowtide.AdamW(small, betas=(0.95, 0.99), state="dynamic4")
    take_steps(small, slow)
    opt = lowtide.AdamW([torch.nn.Parameter(p.detach().clone()) for p in small], state="dynamic4")
    opt.load_state_dict(slow.state_dict())
    assert opt.param_groups[0]["betas"] == (0.95, 0.99) and state_bits(opt) == state_bits(slow)
    large = [parameter(20), parameter(64, 256)]
    opt = lowtide.AdamW(large, state="dynamic4")
    saved = copy.deepcopy(opt.state_dict())
    saved["param_groups"][0]["betas"] = (0.95, 0.99)
    with refused(opt, "param_groups[0]", "'dynamic4' for adamw with a beta of 0.95", "0.9 at most"):
        opt.load_state_dict(saved)
    opt.param_groups[0]["betas"] = (0.95, 0.99)
    random_gradients(large)
    with refused(opt, "parameter group 0", "'dynamic4' for adamw with a beta of 0.95", "0.9 at most"):
        opt.step()


def test_lr_tensors_and_foreign_keys_survive(seed):
    params, opt = trained()
    opt.param_groups[0]["lr"] = torch.tensor(0.5)
    opt.param_groups[0]["initial_lr"] = 0.25
    copies, other = fresh(params, opt)
    other.load_state_dict(through_file(opt.state_dict()))
    assert isinstance(other.param_groups[0]["lr"], torch.Tensor) and float(other.param_groups[0]["lr"]) == 0.5
    assert other.param_groups[0]["initial_lr"] == 0.25
    assert other.param_groups[0]["params"][0] is copies[0]


@pytest.mark.parametrize("flat", [False, True])
def test_distributed_checkpoints_neither_step_nor_lose_anything(flat, seed):
    """torch.distributed.checkpoint takes the state as it is, with frozen parameters and groups, and puts it back."""
    models = [torch.nn.Sequential(torch.nn.Linear(64, 80), torch.nn.Linear(80, 8)) for _ in range(2)]
    opts = []
    for model in models:
        model[1].bias.requires_grad_(False)
        opts.append(lowtide.AdamW([{"params": model[0].parameters()}, {"params": model[1].parameters(), "lr": 0.01}]))
    for _ in range(3):
        models[0](torch.randn(4, 64)).sum().backward()
        opts[0].step()
    options = StateDictOptions(flatten_optimizer_state_dict=flat)
    before = snapshot(opts[0])
    saved = copy.deepcopy(get_optimizer_state_dict(models[0], opts[0], options=options))
    assert snapshot(opts[0]) == before
    set_optimizer_state_dict(models[1], opts[1], saved, options=options)
    assert state_bits(opts[0]) == state_bits(opts[1]) and opts[1].param_groups[1]["lr"] == 0.01


NUMBERS = {"prodigy": ("d", "d_max", "d_numerator", "k"), "schedulefree": ("weight_sum", "lr_max", "switches"), "nadam": ("mu_product",)}


@pytest.mark.parametrize("stepped", [False, True])
@pytest.mark.parametrize("flat", [False, True])
@pytest.mark.parametrize("rule", NUMBERS)
def test_distributed_checkpoints_have_the_numbers_of_all_steps(rule, flat, stepped, tmp_path, seed):
    """The numbers that the options of earlier steps decided go through a dict that torch flattens, too, into a new optimizer or one
    that has stepped. A dict without them is refused, unless it may be torch's."""
    ends = []
    for way in ("through", "saved"):
        torch.manual_seed(seed)
        net = torch.nn.Linear(40, 24)
        opt = make(rule, [*net.parameters()], lr=0.1)
        for step in range(6):
            if way == "saved" and step == 3:
                options = StateDictOptions(flatten_optimizer_state_dict=flat)
                dcp.save({"opt": get_optimizer_state_dict(net, opt, options=options)}, checkpoint_id=tmp_path, no_dist=True)
                opt = make(rule, [*net.parameters()], lr=0.1)
                opt.zero_grad()
                if stepped:
                    weights = copies_of([*net.parameters()])
                    take_steps([*net.parameters()], opt)
                    with torch.no_grad():
                        for param, weight in zip(net.parameters(), weights, strict=True):
                            param.copy_(weight)
                template = {"opt": get_optimizer_state_dict(net, opt, options=options)}
                dcp.load(template, checkpoint_id=tmp_path, no_dist=True)
                set_optimizer_state_dict(net, opt, template["opt"], options=options)
            opt.param_groups[0]["lr"] = 0.1 * (step + 1)
            if rule == "nadam":
                opt.param_groups[0]["betas"] = (0.5 + 0.05 * step, 0.999)
            for k, param in enumerate(net.parameters()):
                param.grad = torch.randn(param.shape, generator=torch.Generator().manual_seed(9 * step + k))
            opt.step()
        ends.append(([*map(bits, net.parameters())], state_bits(opt)))
    assert ends[0] == ends[1]
    saved = copy.deepcopy(opt.state_dict())
    for name in NUMBERS[rule]:
        del saved["state"][1][name]
    with nullcontext() if rule == "nadam" else refused(opt, "state of parameter 1: got no", *NUMBERS[rule]):
        opt.load_state_dict(saved)


def test_steps_of_frozen_parameters_are_saved(seed):
    """Steps decide random bits: a frozen parameter with a gradient and no state goes on as if the run had not stopped."""
    made = []
    for _ in range(2):
        p = torch.nn.Parameter(torch.zeros(64, 256, dtype=torch.bfloat16), requires_grad=False)
        made.append((p, lowtide.SGD([p], lr=1e-3, master="stochastic")))
    (p, through), (q, resumed) = made
    grad = torch.randn(64, 256).bfloat16()
    for _ in range(3):
        p.grad = grad.clone()
        through.step()
    q.copy_(p)
    resumed.load_state_dict(copy.deepcopy(through.state_dict()))
    for param, optimizer in made:
        param.grad = grad.clone()
        optimizer.step()
    assert torch.equal(p.view(torch.int16), q.view(torch.int16))


# name → (what is done to a saved state_dict, words that the message must have)
MALFORMED = {
    "no state": (drop("state"), ["state"]),
    "no groups": (drop("param_groups"), ["param_groups"]),
    "state is a list": (put(["state"], []), ["list", "dict"]),
    "groups is a dict": (put(["param_groups"], {}), ["dict", "list"]),
    "one group less": (drop("param_groups", 1), ["1 groups", "2"]),
    "one group more": (put(["param_groups"], lambda g: g + g[:1]), ["3 groups", "2"]),
    "group is none": (put(["param_groups", 0], None), ["NoneType", "dict"]),
    "group without params": (drop("param_groups", 0, "params"), ["params"]),
    "one parameter less": (put(["param_groups", 0, "params"], [0]), ["1 parameters", "2"]),
    "one parameter more": (put(["param_groups", 0, "params"], [0, 1, 9]), ["3 parameters", "2"]),
    "parameter twice": (put(["param_groups", 0, "params"], [0, 0]), ["distinct"]),
    "parameter id unhashable": (put(["param_groups", 0, "params"], [[], 1]), ["distinct"]),
    "format newer": (put(["param_groups", 0, "lowtide_format"], 2), ["2", "1", "newer"]),
    "format 0": (put(["param_groups", 0, "lowtide_format"], 0), ["0", "1"]),
    "format garbage": (put(["param_groups", 0, "lowtide_format"], "1"), ["'1'", "1"]),
    "format missing in one group": (drop("param_groups", 1, "lowtide_format"), ["None", "1"]),
    "rule of another class": (put(["param_groups", 0, "lowtide_rule"], "lion"), ["'lion'", "'adamw'"]),
    "rule missing": (drop("param_groups", 0, "lowtide_rule"), ["None", "'adamw'"]),
    "lr missing": (drop("param_groups", 0, "lr"), ["lr"]),
    "lr nan": (put(["param_groups", 1, "lr"], math.nan), ["param_groups[1]", "nan"]),
    "lr garbage": (put(["param_groups", 1, "lr"], "fast"), ["'fast'", "number"]),
    "betas too short": (put(["param_groups", 0, "betas"], (0.9,)), ["betas", "2 numbers"]),
    "beta of 1": (put(["param_groups", 0, "betas"], (0.9, 1.0)), ["beta2", "1"]),
    "eps negative": (put(["param_groups", 0, "eps"], -1.0), ["eps", "-1"]),
    "maximize garbage": (put(["param_groups", 0, "maximize"], "no"), ["maximize", "'no'"]),
    "entry missing": (drop("state", 1), ["parameter 1", "no entry"]),
    "entry of nobody": (put(["state"], lambda s: {**s, 77: s[1]}), ["77"]),
    "entry is a tensor": (put(["state", 1], torch.zeros(3)), ["Tensor", "dict"]),
    "step missing": (drop("state", 1, "step"), ["step"]),
    "step negative": (put(["state", 1, "step"], torch.tensor(-1)), ["step", "-1"]),
    "step broken": (put(["state", 1, "step"], 1.5), ["step", "1.5"]),
    "step nan": (put(["state", 1, "step"], torch.tensor(math.nan)), ["step", "nan"]),
    "step many": (put(["state", 1, "step"], torch.zeros(2)), ["step", "(2,)"]),
    "step none": (put(["state", 1, "step"], None), ["step", "None"]),
    "step meta": (put(["state", 1, "step"], torch.zeros((), device="meta")), ["step"]),
    "moment missing": (drop("state", 0, "exp_avg_codes"), ["exp_avg"]),
    "moment unknown": (put(["state", 0], lambda e: {**e, "exp_avg_cube": e["exp_avg_codes"]}), ["exp_avg_cube"]),
    "moment is a list": (put(["state", 0, "exp_avg_codes"], [1, 2]), ["list", "tensor"]),
    "moment of another shape": (put(["state", 0, "exp_avg_codes"], lambda t: t[:-1]), ["(31, 256)", "(32, 256)"]),
    "moment transposed": (put(["state", 0, "exp_avg_codes"], lambda t: t.t()), ["(256, 32)", "(32, 256)"]),
    "moment sparse": (put(["state", 2, "exp_avg"], lambda t: t.to_sparse()), ["sparse"]),
    "moment meta": (put(["state", 0, "exp_avg_codes"], lambda t: t.to("meta")), ["meta"]),
    "codes in bfloat16": (put(["state", 0, "exp_avg_codes"], lambda t: t.bfloat16()), ["bfloat16", "dynamic8"]),
    "codes in int32": (put(["state", 0, "exp_avg_codes"], lambda t: t.int()), ["int32", "dynamic8"]),
    "scale missing": (drop("state", 0, "exp_avg_scale"), ["exp_avg_codes", "exp_avg_scale"]),
    "scale of another shape": (put(["state", 0, "exp_avg_scale"], lambda t: t[:-1]), ["(31, 1)", "(32, 1)"]),
    "scale in float64": (put(["state", 0, "exp_avg_scale"], lambda t: t.double()), ["float64", "float32"]),
    "scale nan": (put(["state", 0, "exp_avg_scale"], lambda t: t * math.nan), ["nan"]),
    "scale infinite": (put(["state", 0, "exp_avg_scale"], lambda t: t + math.inf), ["inf"]),
    "scale negative": (put(["state", 0, "exp_avg_sq_scale"], lambda t: -1 - t), ["below 0"]),
    "small moment in float16": (put(["state", 2, "exp_avg"], lambda t: t.half()), ["float16", "fp32"]),
    "small second moment negative": (put(["state", 2, "exp_avg_sq"], lambda t: -1 - t), ["below 0"]),
    "last parameter garbled": (put(["state", 3, "exp_avg_sq"], None), ["parameter 3", "NoneType"]),
}


@pytest.mark.parametrize("name", MALFORMED)
def test_malformed_state_dicts_are_refused_whole(name, seed):
    change, words = MALFORMED[name]
    _, other = trained(steps=2)
    saved = copy.deepcopy(other.state_dict())
    change(saved)
    _, opt = trained()
    with refused(opt, *words):
        opt.load_state_dict(saved)


@pytest.mark.parametrize("garbage", [None, 3, [], "x", torch.zeros(2)])
def test_what_is_no_dict_is_refused(garbage, seed):
    _, opt = trained()
    with refused(opt, "dict"):
        opt.load_state_dict(garbage)


@pytest.mark.parametrize("live", CODECS)
@pytest.mark.parametrize("held", CODECS)
def test_codecs_are_never_converted_in_silence(live, held, seed):
    _, other = trained(state=held)
    _, opt = trained(state=live)
    if held == live:
        opt.load_state_dict(other.state_dict())
        assert state_bits(opt) == state_bits(other)
    else:
        with refused(opt, held, live, "min_quantized_numel"):
            opt.load_state_dict(other.state_dict())


def test_files_describe_infinite_options_in_valid_json(tmp_path, seed):
    """RFC 8259 has no word for infinity. Files of earlier versions contain Python's."""
    options = {"growth_rate": math.inf, "mine": [1.5, -math.inf, {"most": math.inf}]}
    params = [parameter(4, 8)]
    opt = lowtide.Prodigy([{"params": params, **options}])
    take_steps(params, opt)
    opt.save(tmp_path / "file")
    text = _core.checkpoint_metadata(str(tmp_path / "file"))
    groups = json.loads(text, parse_constant=lambda word: pytest.fail(f"{word} is not JSON"))["lowtide_groups"]
    opt._core.save(str(tmp_path / "earlier"), json.dumps({"lowtide_groups": [{**groups[0], **options}]}))
    assert "Infinity" in _core.checkpoint_metadata(str(tmp_path / "earlier"))
    for name in ("file", "earlier"):
        other = lowtide.Prodigy(copies_of(params), growth_rate=2.0)
        other.load(tmp_path / name)
        assert other.param_groups[0]["growth_rate"] == math.inf and [*other.param_groups[0]["mine"]] == options["mine"]
