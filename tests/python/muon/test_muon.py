"""`lowtide.Muon` compared with torch.optim.Muon for matrices and lowtide.AdamW for the rest: quantized, under budgets,
saved."""

import contextlib
import copy
import itertools
import signal
import time
import warnings

import lowtide
import numpy as np
import pytest
import torch
from lowtide.optimizers import matrix_step

from support import CODECS, bits, copies_of, parameter, random_gradients, refused, step_alike, take_steps


@pytest.fixture(autouse=True)
def _one_thread():
    """Matrices are small."""
    torch.set_num_threads(1)


SHAPES = [(64, 96), (96, 32), (48, 48), (1, 20)]


@pytest.mark.parametrize("maximize", [False, True])
@pytest.mark.parametrize(
    "options",
    [
        {},
        {"nesterov": False, "adjust_lr_fn": "match_rms_adamw", "weight_decay": 0.0},
        {"momentum": 0.0, "adjust_lr_fn": "spectral_unclamped"},
        {"momentum": 0.5, "ns_steps": 3, "ns_coefficients": (2.0, -1.5, 0.5), "eps": 1e-3, "adjust_lr_fn": "original"},
    ],
    ids=["default", "not nesterov", "no momentum", "other coefficients"],
)
def test_matrices_with_float32_state_are_stepped_as_by_torch(options, maximize, seed, figure):
    """Both round d to bfloat16 before the same operations. Directions differ by a few float32 roundings, so about one element
    in 2¹⁴ rounds to another bfloat16, 2⁻⁸ of it away. The iteration, of slope a at 0, amplifies that by up to a⁵: 3.4⁵ 2⁻⁸ /
    √2¹⁴ = 1.5 % of the norm per step at most. Without such elements, weights agree to a rounding or two of float32: torch
    rounds the decayed weight, the core the move."""
    a = [parameter(*shape) for shape in SHAPES]
    b = [torch.nn.Parameter(p.detach().clone()) for p in a]
    start = [p.detach().clone() for p in a]
    ours = lowtide.Muon(a, lr=0.02, state="fp32", maximize=maximize, **options)
    try:
        theirs = torch.optim.Muon(b, lr=0.02, **options)
    except ValueError as error:
        if "spectral_unclamped" not in str(error):  # torch 2.11 lacks it
            raise
        pytest.skip(f"this torch's Muon: {error}")
    exact = 0
    for step in range(20):
        random_gradients(a)
        a[3].grad *= 1e-9  # its norm is below eps: how large directions are matters
        for p, q in zip(a, b, strict=True):
            q.grad = -p.grad if maximize else p.grad.clone()
        ours.step()
        theirs.step()
        if step == 0:
            exact = sum(torch.allclose(p, q, rtol=2**-22, atol=2**-30) for p, q in zip(a, b, strict=True))
    worst = max(
        float((p - q).detach().norm() / (q - s).detach().norm()) for p, q, s in zip(a, b, start, strict=True)
    )
    figure(f"{exact} of {len(a)} matrices equal to two roundings after 1 step; after 20, {worst:.1e} of the move")
    assert worst < 0.02
    for p, q in zip(a, b, strict=True):
        buffer = ours.state[p]["momentum_buffer"] * (1 - options.get("momentum", 0.95)) if len(ours.state[p]) > 1 else None
        wanted = theirs.state[q]["momentum_buffer"]
        if buffer is not None:
            torch.testing.assert_close(buffer, wanted, rtol=1e-4, atol=1e-6 * float(wanted.abs().max()))


def model():
    torch.manual_seed(5)
    return torch.nn.Sequential(
        torch.nn.Embedding(50, 256), torch.nn.Linear(256, 128), torch.nn.LayerNorm(128), torch.nn.Linear(128, 50)
    )


def groups(module):
    ends = [module[0].weight, module[3].weight]
    middle = [p for p in module.parameters() if all(p is not end for end in ends)]
    return [{"params": middle, "row_beta2": 0.9}, {"params": ends, "use_muon": False, "adamw_lr": 3e-3}]


@pytest.mark.parametrize("codec", CODECS)
def test_what_is_no_matrix_is_stepped_by_adamw(codec, seed, figure):
    """Has the bits of `lowtide.AdamW` over vectors and over groups without Muon. (Others round to nearest, and small ones in
    float8 keep float32, because random bits depend on a parameter's number.)"""
    module, twin = model(), model()
    least, rounding = (100, "nearest") if codec != "float8" else (10**6, "auto")
    opt = lowtide.Muon(
        groups(module), lr=0.01, weight_decay=0.05, state=codec, min_quantized_numel=least, rounding=rounding
    )
    parts = groups(twin)
    rest = [p for p in parts[0]["params"] if p.ndim != 2]
    adamw = lowtide.AdamW(
        [{"params": rest, "lr": 0.01}, {"params": parts[1]["params"], "lr": 3e-3}],
        betas=(0.9, 0.95), weight_decay=0.05, state=codec, min_quantized_numel=least, rounding=rounding,
    )  # fmt: skip
    for _ in range(5):
        step_alike(([*module.parameters()], opt), ([*twin.parameters()], adamw))
    same = [
        bits(p) == bits(q)
        for p, q in zip(module.parameters(), twin.parameters(), strict=True)
        if any(q is member for group in adamw.param_groups for member in group["params"])
    ]
    figure(f"{sum(same)} of {len(same)} parameters bit-equal")
    assert all(same) and len(same) == 6
    assert {name.removesuffix("_codes") for name in opt.state[module[1].weight]} - {"momentum_buffer_scale"} == {"step", "momentum_buffer", "row_moment"}
    assert {"exp_avg", "exp_avg_codes"} & opt.state[module[0].weight].keys() and opt.report()["steps"] == 5


def test_skipped_steps_change_nothing(seed):
    module = model()
    opt = lowtide.Muon(groups(module))
    take_steps(list(module.parameters()), opt)
    before = everything([*module.parameters()], opt)
    module[3].bias.grad[0] = float("nan")
    opt.step()
    assert everything([*module.parameters()], opt) == before and opt.skipped_steps == 1
    opt = lowtide.Muon(groups(module), nonfinite="raise")
    with refused(opt, "parameter"):
        opt.step()


def test_quantized_momentum_converges(seed, figure):
    """A linear map from noiseless samples: with 8-bit momentum, the loss ends where it does with float32."""
    losses = {}
    for state in ("fp32", "dynamic8"):
        torch.manual_seed(7)
        target = torch.randn(32, 64) / 32**0.5
        net = torch.nn.Sequential(torch.nn.Linear(32, 128, bias=False), torch.nn.Linear(128, 64, bias=False))
        opt = lowtide.Muon(net.parameters(), lr=0.05, weight_decay=0.0, state=state, min_quantized_numel=0)
        schedule = torch.optim.lr_scheduler.LinearLR(opt, 1.0, 0.0, total_iters=60)
        for _ in range(60):
            x = torch.randn(128, 32)
            loss = (net(x) - x @ target).square().mean()
            opt.zero_grad()
            loss.backward()
            opt.step()
            schedule.step()
        losses[state] = float(loss.detach())
    figure(f"first loss about 1, last {losses}")
    assert losses["fp32"] < 0.05 and all(loss < 1.5 * losses["fp32"] + 1e-3 for loss in losses.values())


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"momentum": 1.0}, ["momentum", "less than 1"]),
        ({"ns_steps": 100}, ["ns_steps: got 100", "0 to 99"]),
        ({"ns_coefficients": (1.0, 2.0)}, ["ns_coefficients", "3 finite numbers"]),
        ({"eps": 0.0}, ["eps", "above 0"]),
        ({"adjust_lr_fn": "other"}, ["adjust_lr_fn: got other", "match_rms_adamw"]),
        ({"lr": -1.0}, ["lr=-1"]),
        ({"adamw_eps": 0.0}, ["eps=0"]),
        ({"use_muon": 1}, ["use_muon"]),
    ],
)
def test_bad_arguments_are_refused(options, words):
    with pytest.raises((ValueError, TypeError)) as caught:
        lowtide.Muon([parameter(4, 4)], **options)
    assert all(word in str(caught.value) for word in words), str(caught.value)


def test_a_long_momentum_in_4_bits_is_refused_as_that_of_muon(seed):
    """The core keeps it by the rule sgd, which the user did not name."""
    params = [parameter(64, 96)]
    words = ("parameter group 0", "got state 'dynamic4' for Muon with a beta of 0.95 for its momentum_buffer")
    with pytest.raises(ValueError) as caught:
        lowtide.Muon(params, state="dynamic4")
    assert all(word in str(caught.value) for word in words) and "sgd" not in str(caught.value), str(caught.value)
    opt = lowtide.Muon(params, momentum=0.9, betas=(0.95, 0.99), state="dynamic4")  # nothing here is stepped by AdamW
    take_steps(params, opt)
    assert opt.state[params[0]]["momentum_buffer_codes"].shape == (64, 48)
    opt.param_groups[0]["momentum"] = 0.95
    with refused(opt, *words):
        opt.step()


def test_arguments_are_those_of_torch():
    import inspect

    wanted = inspect.signature(torch.optim.Muon).parameters
    ours = inspect.signature(lowtide.Muon).parameters
    assert list(ours)[: len(wanted)] == list(wanted)
    assert all(ours[name].default == argument.default for name, argument in wanted.items())


def test_state_dicts_of_others_are_refused(seed):
    params = [parameter(8, 8)]
    opt = lowtide.Muon(params)
    with refused(opt, "muon"):
        opt.load_state_dict(lowtide.AdamW(params).state_dict())


def everything(params, opt):
    """Also of state that streams."""
    entries = opt.state_dict()["state"].values()
    return [bits(p) for p in params], [{name: bits(value) for name, value in entry.items()} for entry in entries], opt.report()["steps"]


@pytest.mark.parametrize("state", ["fp32", "dynamic8"])
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_masters_of_matrices_are_those_of_adamw(dtype, state, tmp_path, seed, figure):
    """Each has the bytes and bits of its kind, even under a budget. residual16 of bfloat16 has the bits of float32 weights."""
    first = [torch.nn.Parameter(torch.randn(*shape).to(dtype)) for shape in ((64, 256), (200, 96), (8192,))]
    whole = [torch.nn.Parameter(p.detach().float()) for p in first]
    options = {"lr": 1e-3, "state": state, "min_quantized_numel": 0, "rounding": "nearest", "row_beta2": 0.9}
    plain = lowtide.Muon(whole, **options)
    ends = {}
    for master in (None, "auto", "stochastic", "residual8", "residual16"):
        for disk in (False, True):
            params = copies_of(first)
            memory = lowtide.Memory(host="48KiB", disk=tmp_path, chunk=4096) if disk else None
            opt = lowtide.Muon(params, master=master, memory=memory, **options)
            torch.manual_seed(seed)
            for _ in range(3):
                take_steps(params, opt)
                if master == "residual16" and not disk:
                    for p, q in zip(params, whole, strict=True):
                        q.grad = p.grad.float()
                    plain.step()
            assert disk == (opt.report()["moved_per_step"] > 0)
            ends.setdefault(master, []).append(everything(params, opt))
        assert ends[master][0] == ends[master][1], master
        kept = {None: 0, "auto": 0, "stochastic": 0, "residual8": 1, "residual16": 2}[master]
        assert [opt.state[p]["residual"].element_size() if kept else "residual" in opt.state[p] for p in params] == [kept] * 3
        if master == "residual16" and dtype == torch.bfloat16:
            exact = lowtide.export_fp32(torch.nn.ParameterList(params), opt)
            assert [bits(value) for value in exact.values()] == [bits(q) for q in whole]
    assert ends["auto"] == ends["stochastic"] and ends[None] != ends["auto"]
    figure(f"{len(ends)} masters, in RAM and on a disk: 0 bits differ")


@pytest.mark.parametrize("row_beta2", [None, 0.9])
@pytest.mark.parametrize("state", ["fp32", "dynamic8"])
def test_experts_are_matrices_by_themselves(state, row_beta2, seed, figure):
    """A stack of matrices is stepped as each of them would be as a parameter of its own, to the bit. Rows of 256 elements
    have the same blocks in both, and everything rounds to nearest, for random bits go by the number of a parameter."""
    stack = parameter(6, 32, 256)
    tall = torch.nn.Parameter(torch.randn(3, 96, 32).bfloat16())
    experts = [[torch.nn.Parameter(matrix.clone()) for matrix in each.detach()] for each in (stack, tall)]
    options = {"lr": 0.02, "state": state, "min_quantized_numel": 0, "rounding": "nearest", "master": None, "row_beta2": row_beta2}
    ours = lowtide.Muon([stack], use_muon="experts", **options)
    lowtide.override(tall, state="fp32")
    ours.add_param_group({"params": [tall]})
    alone = lowtide.Muon([{"params": experts[0]}, {"params": experts[1], "state": "fp32"}], **options)
    for _ in range(5):
        random_gradients([stack, tall])
        for each, matrices in zip((stack, tall), experts, strict=True):
            for matrix, grad in zip(matrices, each.grad, strict=True):
                matrix.grad = grad.clone()
        ours.step()
        alone.step()
    assert next(value for name, value in ours.state[stack].items() if name.startswith("momentum_buffer")).shape == (6, 32, 256)
    equal = [bits(a) == bits(b) for a, b in zip(stack, experts[0], strict=True)]
    figure(f"{state}: {sum(equal)} of {len(equal)} experts bit-equal after 5 steps")
    assert all(equal)
    assert [bits(a) for a in tall] == [bits(b) for b in experts[1]]
    with refused(ours, "torch_state_dict: group 0", "stacks of matrices"):
        ours.torch_state_dict()


@pytest.mark.parametrize("changed", [
    {"use_muon": False}, {"use_muon": "experts"}, {"master": "residual8"}, {"min_quantized_numel": "many"},
    {"state": "fp32", "min_quantized_numel": 1},
])  # fmt: skip
def test_options_that_decide_the_rule_or_the_format_cannot_change(changed):
    """A group's `use_muon` was once only read when the group was added, and later changes were ignored without an error."""
    opt = lowtide.Muon([parameter(64, 256), parameter(9)])
    random_gradients(opt.param_groups[0]["params"])
    before = dict(opt.param_groups[0])
    opt.param_groups[0].update(changed)
    got = ", ".join(f"{key}={value!r}" for key, value in changed.items())
    with refused(opt, f"param_groups[0]: got {got}, wanted {next(iter(changed))}={before[next(iter(changed))]!r}", "fixed when the group"):
        opt.step()
    opt.param_groups[0].update({key: before[key] for key in changed})
    opt.step()


def test_without_being_told_stacks_are_stepped_by_adamw(seed):
    opt = lowtide.Muon([{"params": [parameter(3, 8, 8)]}, {"params": [parameter(3, 8, 8)], "use_muon": "experts"}])
    take_steps([param for group in opt.param_groups for param in group["params"]], opt)
    names = [sorted(opt.state[group["params"][0]]) for group in opt.param_groups]
    assert names == [["exp_avg", "exp_avg_sq", "step"], ["momentum_buffer", "step"]]
    with pytest.raises(TypeError, match="use_muon: got 'expert' .str., wanted a bool or 'experts'"):
        lowtide.Muon([parameter(3, 8, 8)], use_muon="expert")


def test_dicts_without_options_of_muon(seed):
    params = [parameter(64, 64), parameter(64)]
    opt = lowtide.Muon(params)
    take_steps(params, opt)
    saved = copy.deepcopy(opt.state_dict())
    del saved["param_groups"][0]["adamw_lr"]
    with refused(opt, "param_groups[0]", "no 'adamw_lr'", "Muon"):
        opt.load_state_dict(saved)
    saved = copy.deepcopy(opt.state_dict())
    saved["param_groups"][0]["use_muon"] = None  # fixed when the group was added
    opt.load_state_dict(saved)
    opt.step()
    assert opt.param_groups[0]["use_muon"] is True


def failing_at(monkeypatch, call, error, times=1):
    """Makes products raise `error` at that call and the next `times` - 1 calls."""
    calls = itertools.count(1)

    def orthogonal(*args):
        if call <= next(calls) < call + times:
            raise error
        return real(*args)

    real = matrix_step.orthogonal
    monkeypatch.setattr(matrix_step, "orthogonal", orthogonal)


@pytest.mark.parametrize("state", ["fp32", "dynamic8"])
@pytest.mark.parametrize("error", [KeyboardInterrupt, MemoryError])
def test_products_that_fail_leave_everything_as_it_was(error, state, seed, monkeypatch):
    params = [parameter(64, 64), parameter(9), parameter(64, 300)]
    opt = lowtide.Muon(params, state=state, min_quantized_numel=0, row_beta2=0.9)
    for step in range(2):  # also in the first step
        random_gradients(params)
        before = everything(params, opt)
        with monkeypatch.context() as patch, warnings.catch_warnings():
            warnings.simplefilter("error")
            failing_at(patch, 2, error())
            with pytest.raises(error):
                opt.step()
        assert everything(params, opt) == before
        opt.step()


def test_an_interrupt_between_batches_is_raised_when_all_have_moved(seed, monkeypatch):
    """A persistent error leaves each matrix, with its state, either unchanged or stepped, and says so."""
    monkeypatch.setattr("lowtide.optimizers.muon._BUCKET", 1)
    first = [parameter(64, 64) for _ in range(4)]
    ends = []
    for times in (0, 1, 9):
        params = copies_of(first)
        opt = lowtide.Muon(params, row_beta2=0.9)
        torch.manual_seed(seed)
        random_gradients(params)
        with monkeypatch.context() as patch, warnings.catch_warnings(record=True) as told:
            warnings.simplefilter("always")
            failing_at(patch, 3, KeyboardInterrupt(), times)
            with pytest.raises(KeyboardInterrupt) if times else contextlib.nullcontext():
                opt.step()
        ends.append((everything(params, opt), [str(each.message) for each in told]))
    assert ends[0] == ends[1] and not ends[1][1] and ends[0][0][2] == 1
    steps = [int(opt.state[p].get("step", 0)) for p in params]
    assert steps == [1, 1, 0, 0] and "2 parameters have taken and 2 have not" in ends[2][1][0]
    for n, (param, old) in enumerate(zip(params, first, strict=True)):
        assert bits(param) == (ends[0][0][0][n] if steps[n] else bits(old))


@pytest.mark.parametrize("batches", [1, 3])
def test_signals_find_the_old_or_the_new(batches, seed, figure, monkeypatch):
    """An alarm goes off somewhere in each step, and its handler raises."""

    def late(*_):
        raise TimeoutError

    monkeypatch.setattr("lowtide.optimizers.muon._BUCKET", 64 << 20 if batches == 1 else 6000)
    first = [parameter(96, 64), parameter(100), parameter(64, 96), parameter(60, 60)]
    random = np.random.default_rng(seed)
    old = new = 0
    params, twins = copies_of(first), copies_of(first)
    opt, twin = lowtide.Muon(params, row_beta2=0.9), lowtide.Muon(twins, row_beta2=0.9)
    handler = signal.signal(signal.SIGALRM, late)
    try:
        for _ in range(60):
            start = time.perf_counter()
            step_alike((params, opt), (twins, twin))
            seconds = (time.perf_counter() - start) / 2
            random_gradients(params)
            for p, q in zip(params, twins, strict=True):
                q.grad = p.grad.clone()
            before = everything(params, opt)[:2]
            with contextlib.suppress(TimeoutError):
                signal.setitimer(signal.ITIMER_REAL, float(random.uniform(0.05, 1.2)) * seconds)
                opt.step()
                signal.setitimer(signal.ITIMER_REAL, 0)
            signal.setitimer(signal.ITIMER_REAL, 0)
            if everything(params, opt)[:2] == before:
                opt.step()
                old += 1
            else:
                new += 1
            twin.step()
            assert everything(params, opt)[:2] == everything(twins, twin)[:2]
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, handler)
        torch.set_grad_enabled(True)  # torch's context managers leave it off if an alarm finds them on their way out
    figure(f"{old} steps were as if they had not begun, {new} were complete, none was between")
    assert old and new
