"""16-bit weights with a master: as precise as float32, through checkpoints and budgets, and small."""

import copy
import pickle

import lowtide
import pytest
import torch
from lowtide.optimizers.master import join, split
from torch.distributed.tensor import distribute_tensor
from torch.testing._internal.distributed.fake_pg import FakeStore

from support import RULES, bits, copies_of, make, parameter, random_gradients, refused, step_alike, take_steps, through_file

SHAPES = ((40, 256), (70, 300), (9,), ())


def started(dtype: torch.dtype, **options: object) -> tuple[list[torch.nn.Parameter], lowtide.AdamW]:
    params = [torch.nn.Parameter(torch.randn(shape).bfloat16().to(dtype)) for shape in SHAPES]
    return params, lowtide.AdamW(params, lr=1e-3, min_quantized_numel=0, **options)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_dicts_have_the_residual_as_bytes(dtype, seed):
    """No check of a checkpoint's values meets a NaN. Dicts of earlier forms load, too."""
    params, opt = started(dtype, master="residual16")
    take_steps(params, opt)
    saved = copy.deepcopy(opt.state_dict())
    for param, entry in zip(params, saved["state"].values(), strict=True):
        assert entry["residual"].dtype == torch.uint8 and entry["residual"].shape == (*param.shape, 2)
    for form in (torch.uint8, torch.int16, dtype):
        given = copy.deepcopy(saved)
        for entry in given["state"].values() if form != torch.uint8 else ():
            entry["residual"] = entry["residual"].view(form).squeeze(-1)
        again, other = started(dtype, master="residual16")
        other.load_state_dict(given)
        for number, entry in other.state_dict()["state"].items():
            assert torch.equal(entry["residual"], saved["state"][number]["residual"])


@pytest.mark.parametrize("master", ["residual16", "residual8", "stochastic"])
def test_resume_and_budgets_change_no_bit(master, seed, tmp_path, figure):
    params, opt = started(torch.bfloat16, master=master)
    paged = lowtide.Memory(host="64KiB", disk=tmp_path, chunk="8KiB")
    copies = copies_of(params)
    on_disk = lowtide.AdamW(copies, lr=1e-3, min_quantized_numel=0, master=master, memory=paged)
    for step in range(6):
        if step == 3:
            copies = copies_of(copies)
            again = lowtide.AdamW(copies, lr=1e-3, min_quantized_numel=0, master=master, memory=paged)
            again.load_state_dict(through_file(on_disk.state_dict()))
            on_disk = again
        step_alike((params, opt), (copies, on_disk))
    equal = sum(bits(p) == bits(q) for p, q in zip(params, copies, strict=True))
    figure(f"{equal} of {len(params)} weights equal after a resumption on disk")
    assert equal == len(params)
    assert lowtide.forecast(params, memory=paged, min_quantized_numel=0, master=master).state_bytes == (
        on_disk.report()["state_bytes"]
    )


@pytest.mark.parametrize("rule", [lowtide.SGD, lowtide.LARS])
@pytest.mark.parametrize("master", ["residual16", "residual8"])
@pytest.mark.parametrize("tier", ["ram", "disk"])
def test_residuals_without_momentum_resume(rule, master, tier, seed, tmp_path):
    """A residual stays with its states wherever it is; here there are none."""
    memory = lowtide.Memory(host="48KiB", disk=tmp_path, chunk="4KiB") if tier == "disk" else None
    begin = torch.randn(128, 512).bfloat16()

    def made(steps, momentum=0.0, memory=memory):
        param = torch.nn.Parameter(begin.clone())
        opt = rule([param], lr=1e-3, momentum=momentum, master=master, memory=memory)
        take_steps([param], opt, steps)
        return param, opt

    param, opt = made(2)
    assert opt._core.is_paged(0) == (tier == "disk")
    saved = through_file(opt.state_dict())
    assert set(saved["state"][0]) == {"step", "residual"}
    opt.load_state_dict(saved)
    for steps in (0, 2):
        twin, other = made(steps)
        twin.data.copy_(param.data)
        other.load_state_dict(saved)
        assert all(bits(opt.state_dict()["state"][0][name]) == bits(value) for name, value in saved["state"][0].items())
        random_gradients([param])
        twin.grad = param.grad.clone()
        before = param.detach().clone()
        opt.step()
        other.step()
        assert bits(twin) == bits(param), f"loaded after {steps} steps"
        param.data.copy_(before)
        opt.load_state_dict(saved)
    with_momentum = through_file(made(2, 0.9, None)[1].state_dict())
    before = through_file(opt.state_dict())
    with refused(opt, "momentum_buffer", "residual"):
        opt.load_state_dict(with_momentum)
    after = opt.state_dict()
    assert all(bits(value) == bits(before["state"][0][name]) for name, value in after["state"][0].items())
    take_steps([param], opt)
    opt.state.clear()  # restarts it
    take_steps([param], opt)
    assert int(opt.state_dict()["state"][0]["step"]) == 1


def test_export_fp32(seed, tmp_path):
    model = torch.nn.Sequential(torch.nn.Linear(64, 300), torch.nn.LayerNorm(300), torch.nn.Linear(300, 8)).bfloat16()
    model.get_submodule("1").float()
    opt = lowtide.AdamW(model.parameters(), lr=1e-2, min_quantized_numel=0, master="residual16")
    take_steps(list(model.parameters()), opt, 3)
    path = tmp_path / "weights.safetensors"
    weights = lowtide.export_fp32(model, opt, path)
    assert set(weights) == set(model.state_dict()) and all(w.dtype == torch.float32 for w in weights.values())
    # To nearest, ties away from zero: half a unit in the last place of bfloat16 at most.
    for name, value in model.state_dict().items():
        assert float((weights[name] - value.float()).abs().max()) <= float(value.float().abs().max()) * 2**-8
    assert any(bits(weights[name]) != bits(value.float()) for name, value in model.state_dict().items())
    from safetensors.torch import load_file

    loaded = load_file(path)
    assert all(bits(loaded[name]) == bits(weights[name]) for name in weights)
    half, residual = split(weights["0.weight"], torch.bfloat16, "residual16")
    assert bits(join(half, residual)) == bits(weights["0.weight"])


def test_join_takes_the_local_part_of_a_dtensor(seed):
    plain, opt = started(torch.bfloat16, master="residual8")
    torch.distributed.init_process_group("fake", rank=0, world_size=1, store=FakeStore())
    try:
        mesh = torch.distributed.init_device_mesh("cpu", (1,))
        sharded = [torch.nn.Parameter(distribute_tensor(p.detach().clone(), mesh)) for p in plain[:3]]
        other = lowtide.AdamW(sharded, lr=1e-3, min_quantized_numel=0, master="residual8")
        random_gradients(plain)
        for p, q in zip(plain, sharded, strict=False):
            q.grad = distribute_tensor(p.grad, mesh)
        opt.step()
        other.step()
        for p, q in zip(plain, sharded, strict=False):
            assert bits(join(q, other.state[q]["residual"])) == bits(join(p, opt.state[p]["residual"]))
    finally:
        torch.distributed.destroy_process_group()


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("master", ["residual16", "residual8"])
@pytest.mark.parametrize("memory", [None, "64MiB", "streams"])
def test_a_run_begins_with_a_master(seed, dtype, master, memory, tmp_path):
    """As the docstring of `split` says: a step with zero gradients leaves the float32 weights, and other names are refused."""
    given = {None: None, "64MiB": lowtide.Memory(host="64MiB"), "streams": lowtide.Memory(host="96KiB", disk=tmp_path)}[memory]
    weights = torch.randn(64, 512)
    half, residual = split(weights, dtype, master)
    p = torch.nn.Parameter(half.clone())
    opt = lowtide.AdamW([p], lr=1e-3, weight_decay=0, master=master, memory=given, min_quantized_numel=0)
    opt.state[p] = {"residual": residual}
    p.grad = torch.zeros_like(p)
    opt.step()
    kept = join(p.detach(), opt.state_dict()["state"][0]["residual"])
    assert bits(kept) == bits(join(half, residual)) and int(opt.state_dict()["state"][0]["step"]) == 1
    assert bits(join(p, opt.state[p]["residual"])) == bits(kept)  # one that streams, too
    opt.state[p] = {"residual": residual}
    with refused(opt, "exp_avg"):
        opt.step()
    with pytest.raises(ValueError, match="other"):
        fresh = lowtide.AdamW([p], master=master)
        fresh.state[p] = {"other": 3}
        fresh.step()


def test_bytes_per_parameter(figure):
    """AdamW, dynamic8 and residual8, gradients released during backward: weights 2, state 3.03, and one gradient."""
    layers = [torch.nn.Linear(512, 512, bias=False, dtype=torch.bfloat16) for _ in range(64)]
    model = torch.nn.Sequential(*layers)
    count = sum(p.numel() for p in model.parameters())
    most = 0

    def watch(_: object) -> None:
        nonlocal most
        most = max(most, sum(p.grad.numel() * p.grad.element_size() for p in model.parameters() if p.grad is not None))

    for p in model.parameters():  # before the optimizer's hooks, which free what has been stepped
        p.register_post_accumulate_grad_hook(watch)
    opt = lowtide.AdamW(model.parameters(), lr=1e-3, master="residual8", step_in_backward="512KiB")
    model(torch.randn(4, 512, dtype=torch.bfloat16)).float().pow(2).mean().backward()
    opt.step()
    weights = sum(p.numel() * p.element_size() for p in model.parameters())
    found = (weights + opt.report()["state_bytes"] + most) / count
    figure(f"{found:.3f} bytes per parameter, gradients of at most {most / count:.3f} among them")
    assert found <= 5.1 and most > 0
    assert all(p.grad is None for p in model.parameters())


def learned(dtype: torch.dtype, **options: object) -> float:
    """How far AdamW reduces the loss in 300 steps at a fine-tuning rate, a twentieth of the way to a random linear map."""
    source = torch.Generator().manual_seed(3)
    weights, goal = ((torch.randn(128, 128, generator=source) / 12).bfloat16().float() for _ in range(2))
    param = torch.nn.Parameter(weights.to(dtype, copy=True))
    optimizer = lowtide.AdamW([param], lr=2e-5, weight_decay=0, **options)
    for _ in range(300):
        inputs = torch.randn(64, 128, generator=source)
        optimizer.zero_grad()
        (inputs @ param.float() - inputs @ goal).square().mean().backward()
        optimizer.step()
    return float((weights - goal).square().sum() - (param.detach().float() - goal).square().sum())


def test_by_default_16_bits_learn_what_32_do(figure):
    whole = learned(torch.float32)
    halves, lost = learned(torch.bfloat16) / whole, learned(torch.bfloat16, master=None) / whole
    figure(f"bfloat16 weights learn {halves:.3f} of what float32 weights learn at a rate of 2e-5, and {lost:.3f} rounded to nearest")
    assert halves >= 0.97 and lost < 0.5


@pytest.mark.parametrize("rule", [*RULES, "muon"])
def test_auto_rounds_stochastically(rule, seed):
    """16-bit weights; float32 weights have no master."""
    shapes = [(32, 256), (9,)]
    for dtype in (torch.float32, torch.bfloat16, torch.float16):
        first = [parameter(*shape, dtype=dtype) for shape in shapes]
        made = []
        for master in ("auto", "stochastic"):
            params = copies_of(first)
            options = {"lr": 1e-3, "master": master}
            made.append((params, lowtide.Muon(params, **options) if rule == "muon" else make(rule, params, **options)))
        for _ in range(3):
            step_alike(*made)
        assert [bits(p) for p in made[0][0]] == [bits(p) for p in made[1][0]]
        assert made[0][1].param_groups[0]["master"] == "auto"


def test_auto_in_groups_and_overrides(seed):
    """From a group, an override or nothing: each parameter has what it was given."""
    first = [parameter(64, 256, dtype=torch.bfloat16) for _ in range(3)]
    runs = []
    for default in ("auto", "stochastic"):
        params = copies_of(first)
        lowtide.override(params[2], master=None)
        groups = [{"params": params[:1]}, {"params": params[1:], "master": "residual16"}]
        runs.append((params, lowtide.AdamW(groups, lr=1e-3, master=default)))
    for _ in range(3):
        step_alike(*runs)
    (params, opt), (others, _) = runs
    assert [bits(p) for p in params] == [bits(p) for p in others]
    assert ["residual" in opt.state[p] for p in params] == [False, True, False]
    assert [group["master"] for group in opt.param_groups] == ["auto", "residual16"]


@pytest.mark.parametrize("way", ["dict", "file"])
def test_runs_change_between_masters_that_keep_nothing(way, seed, tmp_path):
    """In both directions. Masters with a residual, which would be lost, are refused by name."""
    first = [parameter(64, 256, dtype=torch.bfloat16)]

    def made(**options):
        params = copies_of(first)
        opt = lowtide.AdamW(params, lr=1e-3, **options)
        take_steps(params, opt)
        return params, opt

    def handed(source, target):
        if way == "dict":
            target.load_state_dict(through_file(source.state_dict()))
        else:
            source.save(tmp_path / "state")
            target.load(tmp_path / "state")

    for one, other in (({}, {"master": None}), ({"master": None}, {}), ({"master": "stochastic"}, {})):
        (_, source), (params, target) = made(**one), made(**other)
        handed(source, target)
        assert target.param_groups[0]["master"] == other.get("master", "auto")
        twins = copies_of(params)
        twin = lowtide.AdamW(twins, lr=1e-3, **other)
        handed(source, twin)
        step_alike((params, target), (twins, twin))
        assert bits(params[0]) == bits(twins[0])
    for one, other in (({"master": "residual16"}, {}), ({}, {"master": "residual16"})):
        (_, source), (_, target) = made(**one), made(**other)
        with refused(target, "residual" if way == "dict" else "states in the checkpoint"):
            handed(source, target)


def test_a_dtype_may_change_where_nothing_is_kept(seed):
    """After steps, in place or by another tensor in the group: the same bits. 16-bit weights then round stochastically."""
    first = [parameter(64, 256)]
    made = []
    for in_place, master in ((True, "auto"), (False, "auto"), (True, None)):
        params = copies_of(first)
        opt = lowtide.AdamW(params, lr=1e-4, master=master)
        made.append((params, opt))
        torch.manual_seed(seed)
        take_steps(params, opt)
        for dtype in (torch.bfloat16, torch.float32, torch.float16):
            if in_place:
                params[0].data = params[0].data.to(dtype)
            else:
                params[0] = opt.param_groups[0]["params"][0] = torch.nn.Parameter(params[0].detach().to(dtype))
            for _ in range(2):
                params[0].grad = torch.randn(64, 256).to(dtype)
                opt.step()
    (one, _), (other, _), (nearest, _) = made
    assert bits(one[0]) == bits(other[0]) != bits(nearest[0])


def test_what_cannot_be_is_refused(seed):
    with pytest.raises(ValueError, match="residual12.*residual16"):
        lowtide.AdamW([parameter(3)], master="residual12")
    _, opt = started(torch.bfloat16, master="residual16")
    _, plain = started(torch.bfloat16)
    for p in opt.param_groups[0]["params"]:
        p.grad = torch.ones_like(p)
    opt.step()
    with refused(plain, "residual"):
        plain.load_state_dict(opt.state_dict())


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("master", ["residual16", "residual8", "stochastic"])
@pytest.mark.parametrize("before", ["step", "state_dict", "load_state_dict"])
def test_a_model_that_is_rounded_after_its_optimizer_was_made_has_a_master(dtype, master, before, figure) -> None:
    """Like a model rounded earlier: the same bits. Float32 weights need no master, so the core had none."""
    torch.manual_seed(5)
    made = []
    for early in (True, False):
        torch.manual_seed(6)
        model = torch.nn.Linear(256, 64)
        if early:
            model.to(dtype)
        opt = lowtide.AdamW(model.parameters(), lr=1e-5, master=master)
        if not early:
            model.to(dtype)
        if before == "state_dict":
            opt.state_dict()
        if before == "load_state_dict" and not early:
            opt.load_state_dict(made[0][2])
        made.append((model, opt, opt.state_dict()))
    for step in range(5):
        torch.manual_seed(step)
        gradient = torch.randn(64, 256)
        for model, opt, _ in made:
            model.weight.grad = gradient.to(dtype)
            opt.step()
    (one, opt, _), (other, late, _) = made
    assert bits(other.weight) == bits(one.weight)
    assert late.report()["state_bytes"] == opt.report()["state_bytes"]
    assert ("residual" in late.state[other.weight]) == (master != "stochastic")
    figure(f"{late.report()['state_bytes']} bytes of state, {other.weight.numel()} weights: 0 bits differ")


def test_a_dtype_that_changes_after_the_first_step_is_refused_where_a_master_would_begin() -> None:
    model = torch.nn.Linear(256, 64)
    opt = lowtide.AdamW(model.parameters(), master="residual16")
    model(torch.randn(2, 256)).sum().backward()
    opt.step()
    model.to(torch.bfloat16)
    before = bits(model.weight)
    with pytest.raises(ValueError, match="whose group has master='residual16', changed; build a new optimizer"):
        opt.step()
    assert bits(model.weight) == before
    model.to(torch.float32)
    opt.step()


def late(master: str, **options: object) -> tuple[torch.nn.Sequential, lowtide.AdamW]:
    """A model that was rounded after its optimizer was made."""
    model = torch.nn.Sequential(torch.nn.Linear(256, 64), torch.nn.Linear(64, 256))
    opt = lowtide.AdamW(model.parameters(), master=master, **options)
    model.to(torch.bfloat16)
    return model, opt


def stepped(opt: lowtide.AdamW, params: list[torch.nn.Parameter]) -> None:
    take_steps(params, opt)
    assert all("residual" in opt.state[param] for param in params)


@pytest.mark.parametrize("way", ["own dict", "copy", "pickle"])
def test_state_of_a_model_that_was_rounded_late_has_its_residuals_before_the_first_step(way: str) -> None:
    model, opt = late("residual16")
    if way == "own dict":
        opt.load_state_dict(opt.state_dict())
    else:
        model, opt = copy.deepcopy((model, opt)) if way == "copy" else pickle.loads(pickle.dumps((model, opt)))
    stepped(opt, list(model.parameters()))


def test_parameters_without_a_gradient_in_the_first_step_have_their_master_later() -> None:
    model, opt = late("residual16")
    stepped(opt, list(model[0].parameters()))
    opt.zero_grad()
    stepped(opt, list(model[1].parameters()))


def test_a_group_that_is_added_after_the_model_was_rounded_changes_nothing() -> None:
    model, opt = late("residual16")
    added = torch.nn.Parameter(torch.randn(64, 256).bfloat16())
    opt.add_param_group({"params": [added]})
    stepped(opt, [*model.parameters(), added])


def test_backward_steps_of_a_model_that_was_rounded_in_part() -> None:
    model = torch.nn.Sequential(torch.nn.Linear(256, 64), torch.nn.Linear(64, 256))
    opt = lowtide.AdamW(model.parameters(), master="residual16", step_in_backward="1KiB")
    model[0].to(torch.bfloat16)
    model[1](model[0](torch.randn(2, 256).bfloat16()).float()).square().mean().backward()
    opt.step()
    assert "residual" in opt.state[model[0].weight] and "residual" not in opt.state[model[1].weight]
