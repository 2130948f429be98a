"""`lowtide.Muon` against torch.optim.Muon for matrices and lowtide.AdamW for the rest; quantized, under budgets, saved."""

import copy

import lowtide
import pytest
import torch
from lowtide.optimizers import matrix_step

from support import CODECS, bits, parameter, random_gradients, refused, state_bits, step_alike, through_file


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
    """Both round d to bfloat16 before the same operations. Directions differ by a few roundings of float32, so one
    element in about 2¹⁴ is rounded to another bfloat16, 2⁻⁸ of it away, and the iteration, of slope a at 0, makes up to
    a⁵ of that: 3.4⁵ 2⁻⁸ / √2¹⁴ = 1.5 % of the norm per step at most. Where none is, results are bit-equal."""
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
            exact = sum(bits(p) == bits(q) for p, q in zip(a, b, strict=True))
    worst = max(
        float((p - q).detach().norm() / (q - s).detach().norm()) for p, q, s in zip(a, b, start, strict=True)
    )
    figure(f"{exact} of {len(a)} matrices bit-equal after 1 step; after 20, {worst:.1e} of the move")
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
    return [{"params": middle}, {"params": ends, "use_muon": False, "adamw_lr": 3e-3}]


@pytest.mark.parametrize("codec", CODECS)
def test_what_is_no_matrix_is_stepped_by_adamw(codec, seed, figure):
    """The bits of `lowtide.AdamW` over vectors and over groups without Muon. (Others round to nearest, and small ones in
    float8 keep float32: random bits go by the number of a parameter.)"""
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
    assert [name.removesuffix("_codes") for name in opt.state[module[1].weight]][:2] == ["step", "momentum_buffer"]
    assert {"exp_avg", "exp_avg_codes"} & opt.state[module[0].weight].keys() and opt.report()["steps"] == 5


@pytest.mark.parametrize("bucket", [1, 5000, 64 << 20])
def test_budgets_and_buckets_change_no_bit(bucket, tmp_path, seed, figure, monkeypatch):
    monkeypatch.setattr("lowtide.optimizers.muon._BUCKET", bucket)
    results = []
    for memory in (None, lowtide.Memory(host="48KiB", disk=tmp_path, chunk=4096)):
        module = model()
        opt = lowtide.Muon(groups(module), memory=memory)
        torch.manual_seed(seed)
        for _ in range(3):
            random_gradients(list(module.parameters()))
            opt.step()
        results.append([bits(p) for p in module.parameters()])
        assert opt.report()["steps"] == 3 and all(int(opt.state[p]["step"]) == 3 for p in module.parameters())
        assert memory is None or opt.report()["moved_per_step"] > 0
    figure(f"bits equal: {results[0] == results[1]}")
    assert results[0] == results[1]


def test_saved_and_resumed(tmp_path, seed, figure):
    module = model()
    opt = lowtide.Muon(groups(module), lr=0.01)

    def train(of, optimizer):
        torch.manual_seed(seed)
        for _ in range(2):
            random_gradients(list(of.parameters()))
            optimizer.step()

    train(module, opt)
    saved = through_file(opt.state_dict())
    opt.save(tmp_path / "muon")
    ways = []
    for way in ("state_dict", "file", "copy"):
        twin = copy.deepcopy(module)
        other = lowtide.Muon(groups(twin), lr=0.5)
        if way == "state_dict":
            other.load_state_dict(saved)
        elif way == "file":
            other.load(tmp_path / "muon")
        else:
            twin, other = copy.deepcopy((module, opt))
        ways.append((twin, other))
    train(module, opt)
    for twin, other in ways:
        train(twin, other)
        assert [bits(p) for p in twin.parameters()] == [bits(p) for p in module.parameters()]
        assert state_bits(other) == state_bits(opt)
    figure(f"{len(ways)} ways, all bits equal")


def test_skipped_steps_change_nothing(seed):
    module = model()
    opt = lowtide.Muon(groups(module))
    random_gradients(list(module.parameters()))
    opt.step()
    before = [bits(p) for p in module.parameters()], state_bits(opt)
    module[3].bias.grad[0] = float("nan")
    opt.step()
    assert ([bits(p) for p in module.parameters()], state_bits(opt)) == before
    assert opt.skipped_steps == 1 and opt.report()["steps"] == 1
    opt = lowtide.Muon(groups(module), nonfinite="raise")
    with refused(opt, "parameter"):
        opt.step()


def test_quantized_momentum_converges(seed, figure):
    """A linear map from samples without noise: the loss with 8-bit momentum ends where that with float32 does."""
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
        ({"ns_coefficients": (1.0, 2.0)}, ["ns_coefficients", "3 numbers"]),
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
    """The core keeps it by the rule sgd, which nobody asked for."""
    params = [parameter(64, 96)]
    words = ("parameter group 0", "got state 'dynamic4' for Muon with a beta of 0.95 for its momentum_buffer")
    with pytest.raises(ValueError) as caught:
        lowtide.Muon(params, state="dynamic4")
    assert all(word in str(caught.value) for word in words) and "sgd" not in str(caught.value), str(caught.value)
    opt = lowtide.Muon(params, momentum=0.9, betas=(0.95, 0.99), state="dynamic4")  # nothing here is stepped by AdamW
    random_gradients(params)
    opt.step()
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


def test_a_master_of_a_matrix_is_refused(seed, figure):
    """Matrices that Muon moves keep no residual; vectors, float32 matrices and use_muon=False may have one."""
    matrix, vector = (torch.nn.Parameter(torch.randn(*shape).bfloat16()) for shape in ((64, 256), (8192,)))
    for master in ("residual16", "residual8", "stochastic"):
        with pytest.raises(NotImplementedError) as caught:
            lowtide.Muon([vector, matrix], master=master)
        assert f"parameter 1: got master='{master}' for a matrix of torch.bfloat16, wanted None" in str(caught.value)
    groups = [{"params": [vector, parameter(64, 256)]}, {"params": [matrix], "use_muon": False}]
    optimizer = lowtide.Muon(groups, master="residual16")
    for group in groups:
        random_gradients(group["params"])
    optimizer.step()
    kept = [name for p in (vector, matrix) for name in optimizer.state[p] if "residual" in name]
    figure(f"3 refused by name; {kept} of what AdamW steps")
    assert len(kept) == 2


@pytest.mark.parametrize("state", ["fp32", "dynamic8"])
def test_experts_are_matrices_by_themselves(state, seed, figure):
    """A stack of matrices is stepped as each of them would be as a parameter of its own, to the bit. Rows of 256 elements
    have the same blocks in both, and round to nearest, for random bits go by the number of a parameter."""
    stack = parameter(6, 32, 256)
    tall = torch.nn.Parameter(torch.randn(3, 96, 32).bfloat16())
    experts = [[torch.nn.Parameter(matrix.clone()) for matrix in each.detach()] for each in (stack, tall)]
    options = {"lr": 0.02, "state": state, "min_quantized_numel": 0, "rounding": "nearest"}
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
    for a, b in zip(tall, experts[1], strict=True):  # 16 bits: torch rounds sums by their place in memory, once in a step
        far = (a - b).detach().abs().float() / b.detach().abs().float().clamp(min=2**-6)
        assert float(far.max()) <= 5 * 2**-7
    with refused(ours, "torch_state_dict: group 0", "stacks of matrices"):
        ours.torch_state_dict()


@pytest.mark.parametrize("changed", [
    {"use_muon": False}, {"use_muon": "experts"}, {"master": "residual8"}, {"min_quantized_numel": "many"},
    {"state": "fp32", "min_quantized_numel": 1},
])  # fmt: skip
def test_options_that_decide_the_rule_or_the_format_cannot_change(changed):
    """`use_muon` of a group was once looked at when the group was added and never again, without an error."""
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
    random_gradients([param for group in opt.param_groups for param in group["params"]])
    opt.step()
    names = [sorted(opt.state[group["params"][0]]) for group in opt.param_groups]
    assert names == [["exp_avg", "exp_avg_sq", "step"], ["momentum_buffer", "step"]]
    with pytest.raises(TypeError, match="use_muon: got 'expert' .str., wanted a bool or 'experts'"):
        lowtide.Muon([parameter(3, 8, 8)], use_muon="expert")


def test_dicts_without_options_of_muon(seed):
    params = [parameter(64, 64), parameter(64)]
    opt = lowtide.Muon(params)
    random_gradients(params)
    opt.step()
    saved = copy.deepcopy(opt.state_dict())
    del saved["param_groups"][0]["adamw_lr"]
    with refused(opt, "param_groups[0]", "no 'adamw_lr'", "Muon"):
        opt.load_state_dict(saved)
    saved = copy.deepcopy(opt.state_dict())
    saved["param_groups"][0]["use_muon"] = None  # fixed when the group was added
    opt.load_state_dict(saved)
    opt.step()
    assert opt.param_groups[0]["use_muon"] is True


def test_a_step_that_is_interrupted_midway_says_so(seed, monkeypatch):
    params = [parameter(64, 64), parameter(64, 64)]
    opt = lowtide.Muon(params)
    random_gradients(params)

    def interrupted(*_):
        raise KeyboardInterrupt

    monkeypatch.setattr(matrix_step, "orthogonal", interrupted)
    with pytest.warns(UserWarning, match="in the middle of a step"), pytest.raises(KeyboardInterrupt):
        opt.step()
