"""The promises about results, each with its figure: zero is zero, nothing is poisoned, the same bits everywhere."""

import gc
import itertools
import math
import random
from pathlib import Path

import lowtide
import pytest
import torch
from lowtide import _core

from support import CODECS, DTYPES, RULE_OF, RULES, bits, make, parameter, random_gradients, snapshot, state_bits


@pytest.mark.parametrize("codec", CODECS)
@pytest.mark.parametrize("rule", RULES)
@pytest.mark.share
def test_zero_gradients_never_move_a_parameter(rule, codec, seed, figure):
    """100,000 steps (of rules that are variants or close relatives of others: 5,000) with a gradient of zero and no weight
    decay: the parameter has not moved at all."""
    steps = 100_000 if rule in ("adamw", "lion", "sgd", "ademamix") else 5_000
    p = parameter(257)
    opt = make(rule, [p], lr=0.1, weight_decay=0.0, state=codec, min_quantized_numel=0)
    start = bits(p)
    p.grad = torch.zeros(257)
    for _ in range(steps):
        opt.step()
    drift = float((p.detach() - torch.frombuffer(bytearray(start), dtype=torch.float32)).abs().max())
    figure(f"drift after {int(opt.state[p]['step'])} steps {drift}")
    assert bits(p) == start and int(opt.state[p]["step"]) == steps


@pytest.mark.parametrize("codec", CODECS)
@pytest.mark.parametrize("rule", RULES)
def test_a_coordinate_without_gradient_stays_among_others(rule, codec, seed, figure):
    """Half of a block has a gradient, half has zero: the zero half does not move in 2,000 steps."""
    p = parameter(512)
    opt = make(rule, [p], lr=0.01, weight_decay=0.0, state=codec, min_quantized_numel=0)
    still = torch.arange(512) % 2 == 0
    start = p.detach().clone()
    for _ in range(2000):
        p.grad = torch.randn(512).masked_fill(still, 0.0)
        opt.step()
    moved = int((p.detach() != start)[still].sum())
    figure(f"moved {moved}/{int(still.sum())} without gradient, {int((p.detach() != start)[~still].sum())}/256 with")
    assert moved == 0


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("codec", CODECS)
@pytest.mark.parametrize("rule", RULES)
def test_lr_of_zero_changes_no_bit_of_a_parameter(rule, codec, dtype, seed, figure):
    """Also of -0, denormals and the largest value, with zero gradients among others and weight decay."""
    p = parameter(40, 300, dtype=dtype)
    p.data[0, :4] = torch.tensor([-0.0, 0.0, torch.finfo(dtype).smallest_normal / 4, torch.finfo(dtype).max]).to(dtype)
    q = torch.nn.Parameter(p.detach().clone())
    opt = make(rule, [p, q], lr=0.0, weight_decay=0.1, state=codec)
    changed = 0
    start = bits(p)
    for _ in range(5):
        random_gradients([p, q])
        p.grad[1] = 0.0
        opt.step()
        changed += bits(p) != start
    figure(f"steps that changed a bit {changed}/5")
    assert changed == 0 and int(opt.state[p]["step"]) == 5


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf], ids=str)
@pytest.mark.parametrize("dtype", DTYPES)
def test_nonfinite_gradients_poison_nothing(dtype, value, seed, figure):
    """A NaN or infinity in each lane of a block of 256, in turn: each step is skipped and counted, nothing changes."""
    params = [parameter(300, dtype=dtype), parameter(40, 256, dtype=dtype)]
    opt = lowtide.AdamW(params)
    random_gradients(params)
    opt.step()
    before = snapshot(opt)
    poisoned = 0
    for lane in range(256):
        kept = params[1].grad[lane % 40, lane].clone()
        params[1].grad[lane % 40, lane] = value
        opt.step()
        params[1].grad[lane % 40, lane] = kept
        poisoned += opt.state[params[1]]["exp_avg_scale"].isfinite().all().item() is False
    unchanged = snapshot(opt) == before
    figure(f"injected 256, skipped {opt.skipped_steps}, unchanged {unchanged}, blocks poisoned {poisoned}")
    assert opt.skipped_steps == 256 and unchanged and poisoned == 0 and opt.report()["steps"] == 1
    opt.step()
    assert opt.report()["steps"] == 2


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_huge_gradients_are_skipped_before_they_overflow(dtype, figure):
    """2^62 and above are skipped: their square could overflow. The next value below is stepped, and stays finite."""
    below = {torch.float32: 2.0**62 * (1 - 2.0**-24), torch.bfloat16: 2.0**62 * (1 - 2.0**-8)}[dtype]
    for value, skipped in ((2.0**62, 1), (-(2.0**62), 1), (below, 0), (-below, 0)):
        p = parameter(5000, dtype=dtype)
        opt = lowtide.AdamW([p], betas=(0.0, 0.0))
        p.grad = torch.zeros(5000, dtype=dtype)
        p.grad[77] = value
        opt.step()
        assert opt.skipped_steps == skipped, value
        assert all(bool(t.isfinite().all()) for t in (p, *opt.state[p].values()))
    figure("2^62 skipped, the value below stepped, all finite")


def run(opt, params, grads):
    for step in grads:
        for param, grad in zip(params, step, strict=True):
            param.grad = grad.clone()
        opt.step()


@pytest.mark.parametrize("codec", CODECS)
@pytest.mark.parametrize("rule", RULES)
@pytest.mark.share
def test_threads_and_order_never_change_a_bit(rule, codec, seed, figure):
    """1 thread, 2 threads and 7 threads, and parameters in another order: the same bits of parameters and state. (In
    another order to nearest: random bits go by the number of a parameter.)"""
    shapes = [(300_000,), (64, 700), (5000,), (9,), (33, 257), ()]
    start = [torch.randn(shape) for shape in shapes]
    grads = [[torch.randn(shape) for shape in shapes] for _ in range(4)]
    results = []
    order = list(range(len(shapes)))
    for threads, shuffle, rounding in (
        (1, False, "auto"), (2, False, "auto"), (7, False, "auto"), (1, False, "nearest"), (2, True, "nearest"),
    ):  # fmt: skip
        torch.set_num_threads(threads)
        if rounding == "nearest" and codec == "float8":  # which has no such rounding
            continue
        if shuffle:
            random.Random(seed).shuffle(order)
        params = [torch.nn.Parameter(start[i].clone()) for i in order]
        opt = make(rule, params, lr=0.01, state=codec, rounding=rounding)
        run(opt, params, [[step[i] for i in order] for step in grads])
        states = state_bits(opt)
        results.append(sorted((i, bits(p), sorted(s.items())) for i, p, s in zip(order, params, states, strict=True)))
    equal = [result == results[3 if n > 2 else 0] for n, result in enumerate(results)]
    figure(f"runs bit-equal {sum(equal)}/{len(results)}")
    assert all(equal)


@pytest.mark.parametrize("codec", CODECS)
@pytest.mark.parametrize("rule", RULES)
def test_instruction_sets_give_the_same_bits(rule, codec, seed, figure):
    """Every path that this CPU can run, over element types, ragged shapes and many decades of values: the same bits."""
    shapes = [(1025,), (40, 300), (17,), (3, 5000), ()]
    kinds = list(itertools.product(DTYPES, shapes))
    start = [torch.randn(shape).to(dtype) for dtype, shape in kinds]
    scale = [torch.logspace(-6, 3, max(1, s.numel())).reshape(s.shape) for s in start]
    grads = [[(torch.randn(s.shape) * w).to(s.dtype) for s, w in zip(start, scale, strict=True)] for _ in range(4)]
    results = []
    for target in _core.cpu_targets():
        name = RULE_OF.get(rule, rule)
        core = _core.Optimizer(name, "skip", 2, target)
        hyper = {**_core.default_hyper(name), "lr": 0.01, "weight_decay": 0.1, **RULES[rule][1]}
        core.add_group({**hyper, "nesterov": rule == "nadam"}, codec, 0)
        params = [torch.nn.Parameter(s.clone()) for s in start]
        for param in params:
            core.add_param(0, param)
        with torch.no_grad():
            for step in grads:
                for param, grad in zip(params, step, strict=True):
                    param.grad = grad.clone()
                assert core.step() == -1
        assert core.cpu_target() == target
        states = [sorted((k, bits(v)) for k, v in core.state(i).items()) for i in range(len(params))]
        results.append([bits(p) for p in params] + states)
    equal = sum(result == results[0] for result in results)
    figure(f"{', '.join(_core.cpu_targets())}: bit-equal {equal}/{len(results)}")
    assert equal == len(results)


MOMENTS = {
    "adamw": 2, "adam": 2, "lion": 1, "sgd": 1, "sgd_plain": 0, "adamw_amsgrad": 3, "nadam": 2, "adagrad": 1, "rmsprop": 3,
    "ademamix": 3, "lamb": 2, "lars": 1, "schedulefree": 2,
}  # fmt: skip


@pytest.mark.parametrize("rule", RULES)
def test_bytes_per_parameter_are_as_documented(rule, figure):
    """Rows of a multiple of 256: 1 + 4/256 bytes per moment with dynamic8, 2 with bf16, 4 with fp32; views agree."""
    found = {}
    for codec, per_moment in (("dynamic8", 1 + 4 / 256), ("bf16", 2), ("fp32", 4)):
        p = parameter(128, 512)
        opt = make(rule, [p], state=codec)
        p.grad = torch.zeros_like(p)
        opt.step()
        found[codec] = opt.report()["bytes_per_parameter"]
        tensors = [value for name, value in opt.state[p].items() if name != "step"]
        assert found[codec] == MOMENTS[rule] * per_moment
        assert sum(value.numel() * value.element_size() for value in tensors) == opt.report()["state_bytes"]
        assert opt.report()["allocated_bytes"] <= opt.report()["state_bytes"] + 2**16
    figure(f"bytes per parameter {found}")
    if rule == "adamw":
        assert found["dynamic8"] == 2.03125


def test_small_parameters_keep_float32_state(figure):
    """The threshold is judged on the whole parameter: 4095 elements keep float32 state, 4096 do not."""
    params = [parameter(4095), parameter(4096), parameter(8, 512), parameter(1)]
    opt = lowtide.AdamW(params)
    random_gradients(params)
    opt.step()
    found = [str(next(opt.state[p][name].dtype for name in opt.state[p] if name.startswith("exp_avg"))) for p in params]
    figure(f"state of 4095, 4096, 8 x 512, 1 elements: {found}")
    assert found == ["torch.float32", "torch.uint8", "torch.uint8", "torch.float32"]


def resident_bytes():
    return int(Path("/proc/self/statm").read_text().split()[1]) * 4096


@pytest.mark.skipif(not Path("/proc/self/statm").exists(), reason="reads resident memory from /proc")
def test_memory_comes_back(figure):
    """10 optimizers of 32 MiB of state each, stepped and deleted, also with hooks that refer to them: resident memory
    does not grow by one of them."""
    p = parameter(16 * 2**20)
    p.grad = torch.zeros_like(p)
    sizes = []
    for _ in range(11):
        opt = lowtide.AdamW([p])
        opt.register_step_post_hook(lambda *_, o=opt: None)
        opt.step()
        del opt
        gc.collect()
        sizes.append(resident_bytes())
    growth = max(sizes[1:]) - sizes[0]
    figure(f"growth over 10 cycles {growth / 2**20:.1f} MiB of 32.5 MiB each")
    assert growth < 8 * 2**20


def test_state_outlives_the_optimizer(seed):
    """A view taken from `state` keeps its memory."""
    p = parameter(5000)
    opt = lowtide.AdamW([p])
    random_gradients([p])
    opt.step()
    view = opt.state[p]["exp_avg_codes"]
    kept = bits(view)
    del opt
    gc.collect()
    torch.zeros(10**6).add_(1)
    assert bits(view) == kept
