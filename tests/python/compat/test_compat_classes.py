"""The 41 names of bitsandbytes.optim and their signatures. What bitsandbytes ignores is honoured, or refused by name."""

import copy
import importlib.util
import inspect
import pickle
import warnings
from types import SimpleNamespace

import lowtide
import pytest
import torch
from lowtide.compat.bitsandbytes import nn, optim
from lowtide.compat.bitsandbytes.optim import base

from support import bits, copies_of, refused, step_alike

CLASSES = [name for name in optim.__all__ if name != "GlobalOptimManager"]
REQUIRED = {"lr": 0.01}


def build(name, params, **options):
    required = {} if "LARS" not in name and "SGD" not in name else REQUIRED
    momentum = {"momentum": 0.9} if "LARS" in name or "SGD" in name else {}
    return getattr(optim, name)(params, **{**required, **momentum, **options})


def parameters():
    return [torch.nn.Parameter(torch.randn(64, 256)), torch.nn.Parameter(torch.randn(9))]


def stepped(opt, params, steps=2):
    for _ in range(steps):
        for p in params:
            p.grad = torch.randn_like(p)
        opt.step()
    return opt


def test_names_and_signatures_are_those_of_bitsandbytes(figure):
    """Names, order and defaults of all arguments. Our classes also take options."""
    if importlib.util.find_spec("bitsandbytes") is None:
        pytest.skip("bitsandbytes is not installed")
    import bitsandbytes

    theirs = {name for name in dir(bitsandbytes.optim) if inspect.isclass(getattr(bitsandbytes.optim, name))}
    assert theirs == set(optim.__all__)
    arguments = 0
    for name in CLASSES:
        wanted = list(inspect.signature(getattr(bitsandbytes.optim, name)).parameters.values())
        got = [p for p in inspect.signature(getattr(optim, name)).parameters.values() if p.kind is not p.KEYWORD_ONLY]
        assert [(p.name, p.default) for p in got] == [(p.name, p.default) for p in wanted], name
        arguments += len(wanted)
    figure(f"{len(theirs)} names, {arguments} arguments of {len(CLASSES)} classes")


@pytest.mark.parametrize("name", CLASSES)
def test_each_class_steps_resumes_and_is_copied(name, seed):
    params = parameters()
    opt = stepped(build(name, params), params)
    bits_wanted = 8 if "8bit" in name else 32
    assert opt.param_groups[0]["state"] == {8: "dynamic8", 32: "fp32"}[bits_wanted]
    assert isinstance(opt, torch.optim.Optimizer) and type(opt).__name__ == name
    assert (opt.engine.settings.memory == base.PAGED) == ("Paged" in name)
    for other in (copy.deepcopy(opt), pickle.loads(pickle.dumps(opt))):
        assert type(other) is type(opt) and other.param_groups[0]["lr"] == opt.param_groups[0]["lr"]
    again = build(name, params)
    again.load_state_dict(opt.state_dict())
    twins = copies_of(params)
    there = build(name, twins)
    there.load_state_dict(opt.bitsandbytes_state_dict(), move_to_device=True)
    step_alike((params, again), (twins, there))
    assert [bits(p) for p in params] == [bits(p) for p in twins]


@pytest.mark.parametrize("name", CLASSES)
def test_removed_arguments_are_accepted_where_they_have_no_effect(name):
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        build(name, parameters(), percentile_clipping=100, block_wise=True)
    with pytest.warns(UserWarning, match=f"{name}: block_wise=False has no effect") as caught:
        build(name, parameters(), block_wise=False)
    assert [warning.filename for warning in caught] == [__file__]
    with pytest.raises(ValueError, match=f"{name}: percentile_clipping: got 5, wanted 100"):
        build(name, parameters(), percentile_clipping=5)


def test_sizes_decide_as_there(seed):
    params = [torch.nn.Parameter(torch.randn(n)) for n in (4095, 4096)]
    assert [opt_codec(optim.AdamW8bit(params), k) for k in (0, 1)] == ["fp32", "dynamic8"]
    assert [opt_codec(optim.AdamW8bit(params, min_8bit_size=4095), k) for k in (0, 1)] == ["dynamic8"] * 2
    assert [opt_codec(optim.AdamW(params, optim_bits=8), k) for k in (0, 1)] == ["fp32", "dynamic8"]
    assert [opt_codec(optim.Adagrad8bit(params), k) for k in (0, 1)] == ["fp32", "dynamic8"]


def opt_codec(opt, index):
    return opt._core.state_codec(index)


def test_args_replace_four_arguments(seed):
    args = SimpleNamespace(optim_bits=8, min_8bit_size=0, max_unorm=0.0, skip_zeros=False)
    opt = optim.AdamW([torch.nn.Parameter(torch.randn(512))], optim_bits=32, args=args)
    assert opt_codec(opt, 0) == "dynamic8"
    for change, word in (
        ({"optim_bits": 4}, "optim_bits"),
        ({"skip_zeros": True}, "skip_zeros"),
        ({"max_unorm": 1.0}, "max_unorm"),
    ):
        with pytest.raises(ValueError, match=word):
            optim.AdamW(parameters(), args=SimpleNamespace(**{**vars(args), **change}))
    with pytest.raises(ValueError, match="min_8bit_size"):
        optim.AdamW(parameters(), args=SimpleNamespace(optim_bits=8))


def test_what_is_ignored_there_is_honoured_here(seed):
    """Each option changes the result of four steps."""
    cases = [
        ("AdamW8bit", {}, {"amsgrad": True}),
        ("Adam32bit", {}, {"amsgrad": True}),
        ("SGD", {"momentum": 0.9}, {"momentum": 0.9, "dampening": 0.5}),
        ("SGD8bit", {"momentum": 0.9}, {"momentum": 0.9, "nesterov": True}),
        ("SGD", {"momentum": 0.9}, {"momentum": 0.0}),
        ("RMSprop", {}, {"momentum": 0.5}),
        ("RMSprop8bit", {}, {"centered": True}),
        ("Adagrad", {}, {"lr_decay": 0.5}),
        ("Adagrad8bit", {}, {"initial_accumulator_value": 1.0}),
    ]
    for name, plain, changed in cases:
        assert ends_differ(name, plain, changed, seed), (name, changed)


@pytest.mark.parametrize("name", ["LARS", "LARS8bit", "PytorchLARS"])
def test_options_of_LARS_are_honoured(name, seed):
    plain = {"momentum": 0.9}
    for changed in ({"nesterov": True}, {"dampening": 0.5}, {"max_unorm": 1e-3}):
        assert ends_differ(name, plain, {**plain, **changed}, seed), changed


@pytest.mark.parametrize("name, options", [("LAMB32bit", {}), ("LARS32bit", {"momentum": 0.9})])
def test_max_unorm_of_0_clips_nothing(name, options, seed, figure):
    """As in the real package, which leaves the plain rule: 20 steps from its state and from zeros, in which a trust ratio or a
    clip would show at once. Both round each operation to float32, in different orders: 8 units of 2^-24 per step, and as many
    for the moments, of a path of about lr per step."""
    bitsandbytes = pytest.importorskip("bitsandbytes")
    params = [torch.nn.Parameter(value) for value in (torch.randn(64, 64), torch.zeros(8, 64))]
    twins = copies_of(params)
    starts = [p.detach().clone() for p in params]
    opt = getattr(optim, name)(params, lr=0.01, weight_decay=0.01, max_unorm=0.0, **options)
    theirs = getattr(bitsandbytes.optim, name)(twins, lr=0.01, weight_decay=0.01, max_unorm=0.0, **options)
    for _ in range(20):
        step_alike((params, opt), (twins, theirs))
    apart = max(
        float((p - twin).detach().norm() / (twin - start).detach().norm())
        for p, twin, start in zip(params, twins, starts, strict=True)
    )
    figure(f"{name}, max_unorm=0: {apart:.1e} of the way apart after 20 steps")
    assert apart < 20 * 16 * 2**-24


def ends_differ(name, plain, changed, seed):
    """Whether four steps with the changed options end elsewhere than with the plain ones."""
    start = torch.randn(64, 256)
    ends = []
    for options in (plain, changed):
        p = torch.nn.Parameter(start.clone())
        torch.manual_seed(seed)
        stepped(getattr(optim, name)([p], lr=0.01, **options), [p], steps=4)
        ends.append(bits(p))
    return ends[0] != ends[1]


@pytest.mark.parametrize(
    "name, options, words",
    [
        ("AdamW", {"optim_bits": 4}, ["optim_bits", "4", "[8, 32]"]),
        ("AdamW8bit", {"optim_bits": 16}, ["optim_bits", "16"]),
        ("Adam32bit", {"optim_bits": 8}, ["optim_bits", "8", "[32]"]),
        ("LAMB", {"bias_correction": False}, ["bias_correction"]),
        ("LAMB8bit", {"adam_w_mode": False}, ["adam_w_mode"]),
        ("LAMB", {"amsgrad": True}, ["amsgrad"]),
        ("Adagrad8bit", {"optim_bits": 32}, ["optim_bits", "32", "[8]"]),
        ("LAMB", {"max_unorm": -1.0}, ["max_unorm", "-1"]),
        ("AdamW", {"betas": "0.9; 0.99"}, ["betas", "'0.9; 0.99'"]),
        ("AdamW", {"betas": (0.9, 1.0)}, ["beta2", "1"]),
        ("AdamW", {"lr": -1.0}, ["lr", "-1"]),
        ("AdEMAMix", {"betas": (0.9, 0.999)}, ["betas", "3"]),
    ],
)
def test_bad_arguments_are_refused_by_name(name, options, words):
    with pytest.raises((ValueError, TypeError)) as caught:
        build(name, parameters(), **options)
    assert all(word in str(caught.value) for word in words), str(caught.value)


def test_unknown_arguments_are_refused_by_name():
    for name, options, words in (
        ("AdamW8bit", {"optim_bit": 8}, ["AdamW8bit", "optim_bit"]),
        ("PagedAdamW", {"is_paged": True}, ["is_paged"]),
        ("AdamW", {"state": "fp32"}, ["state", "optim_bits"]),
        ("AdamW8bit", {"min_quantized_numel": 0}, ["min_quantized_numel", "min_8bit_size"]),
        ("SGD8bit", {"lr": None, "optim_bits": 8}, ["optim_bits"]),
    ):
        with pytest.raises(TypeError) as caught:
            build(name, parameters(), **options)
        assert all(word in str(caught.value) for word in words), str(caught.value)
    with pytest.raises(TypeError, match="lr"):
        optim.SGD(parameters())


def test_betas_may_be_a_text(seed):
    assert optim.AdamW(parameters(), betas="(0.9, 0.95)").param_groups[0]["betas"] == (0.9, 0.95)


def test_a_paged_optimizer_has_no_limit_of_its_own(seed):
    """On a CPU, all state is in RAM unless memory= says otherwise."""
    params = parameters()
    opt = stepped(optim.PagedAdamW8bit(params), params)
    plain = stepped(optim.AdamW8bit(params), params)
    assert opt.report()["state_bytes"] == plain.report()["state_bytes"] > 0
    memory = lowtide.Memory(host="1GiB")
    assert optim.PagedAdamW8bit(params, memory=memory).engine.settings.memory == memory
    assert optim.AdamW(params, is_paged=True).engine.settings.memory == base.PAGED


def test_the_environment_keeps_paged_state_off_the_device(cuda, monkeypatch, seed, figure):
    """A loop without an argument for it, like bitsandbytes' benchmark of paged memory. Compares peaks of torch's cache."""
    start, gradients = torch.randn(1024, 1024), [torch.randn(1024, 1024) for _ in range(3)]

    def peak_of(name):
        param = cuda.parameters([start])[0]
        cuda.peak = 0
        opt = getattr(optim, name)([param], lr=1e-3)
        for gradient in gradients:
            param.grad = cuda.tensor(gradient)
            opt.step()
        cuda.synchronize()
        return max(cuda.peak, sum(size for size, _ in cuda.cached.values())), bits(param)

    plain, fitting = peak_of("AdamW"), peak_of("PagedAdamW")
    monkeypatch.setenv(base.PAGED_VARIABLE, "device=1MiB")
    away, other = peak_of("PagedAdamW"), peak_of("AdamW")
    assert away[0] <= 1 << 20 < 8 * 1024**2 <= min(plain[0], fitting[0], other[0])
    assert plain[1] == fitting[1] == away[1] == other[1]
    figure(f"peaks of AdamW {plain[0]}, PagedAdamW {fitting[0]}, and {away[0]} bytes with the variable: the same bits")


def test_the_environment_sets_the_budget_of_paged_classes_alone(monkeypatch):
    given = lowtide.Memory(host="2MiB")
    monkeypatch.setenv(base.PAGED_VARIABLE, "host=1GiB")
    assert optim.PagedLion8bit(parameters()).engine.settings.memory == lowtide.Memory(host="1GiB")
    assert optim.AdamW(parameters(), is_paged=True).engine.settings.memory == lowtide.Memory(host="1GiB")
    assert optim.PagedLion8bit(parameters(), memory=given).engine.settings.memory == given
    assert optim.Lion8bit(parameters()).engine.settings.memory is None
    for words, error in (
        ("64MiB", "LOWTIDE_PAGED_MEMORY: memory: got '64MiB'.*did you mean 'host=64MiB'"),
        ("device=much", "LOWTIDE_PAGED_MEMORY: memory: device: .*much"),
        ("devise=1MiB", "LOWTIDE_PAGED_MEMORY: memory: got 'devise'.*device"),
        ("device=64", "LOWTIDE_PAGED_MEMORY: memory: device: .*did you mean '64GiB'"),
        ("device=1MiB", "memory: got device='1MiB' for parameters on cpu"),
    ):
        monkeypatch.setenv(base.PAGED_VARIABLE, words)
        with pytest.raises(ValueError, match=error):
            optim.PagedAdamW(parameters())
    monkeypatch.setenv(base.PAGED_VARIABLE, "")
    assert optim.PagedAdamW(parameters()).engine.settings.memory == base.PAGED


def test_a_state_dict_of_another_family_is_refused(seed):
    params = parameters()
    lion = stepped(optim.Lion8bit(params), params)
    opt = stepped(optim.AdamW8bit(params), params)
    with refused(opt, "lion", "adamw"):
        opt.load_state_dict(lion.state_dict())
    with refused(opt, "eps", "Lion"):
        opt.load_state_dict(lion.bitsandbytes_state_dict())
    adagrad = stepped(optim.Adagrad8bit(params), params)
    with refused(opt, "state2"):
        opt.load_state_dict(adagrad.bitsandbytes_state_dict())


def test_the_manager_gives_parameters_options_of_their_own(seed):
    """Registered before or after; for a module's parameter, whichever tensor it is when an optimizer looks."""
    with pytest.raises(RuntimeError, match="get_instance"):
        optim.GlobalOptimManager()
    manager = optim.GlobalOptimManager.get_instance()
    assert manager is optim.GlobalOptimManager.get_instance()
    model = torch.nn.Sequential(torch.nn.Linear(64, 64), torch.nn.Linear(64, 64), torch.nn.Linear(64, 64))
    manager.register_parameters(model.parameters())
    manager.override_config(model[0].weight, "optim_bits", 32)
    manager.register_module_override(model[1], "weight", {"optim_bits": 32, "lr": 0.0})
    opt = optim.AdamW8bit(model.parameters(), lr=0.1)
    kept = bits(model[1].weight)
    for p in model.parameters():
        p.grad = torch.randn_like(p)
    opt.step()
    codecs = [opt_codec(opt, 2 * k) for k in range(3)]
    assert codecs == ["fp32", "fp32", "dynamic8"] and bits(model[1].weight) == kept
    manager.override_config([model[2].weight], key_value_dict={"optim_bits": 32, "lr": 0.0})
    for key, value in (("optim_bits", 16), ("skip_zeros", True), ("momentun", 0.5)):
        with pytest.raises(ValueError, match=key):
            manager.override_config(model[2].weight, key, value)


def test_embeddings_keep_float32_state(seed):
    assert nn.StableEmbedding is lowtide.StableEmbedding and nn.Embedding is lowtide.Embedding
    layer = nn.StableEmbedding(100, 64)
    opt = optim.AdamW8bit(layer.parameters())
    assert opt_codec(opt, 0) == "fp32"
