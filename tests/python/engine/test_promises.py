"""The promises about results, each with its figure: zero stays zero, nothing is poisoned, the same bits everywhere."""

import gc
import math
import random
from pathlib import Path

import lowtide
import pytest
import torch

from support import CODECS, DTYPES, RULES, bits, make, parameter, snapshot, state_bits, take_steps


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf], ids=str)
@pytest.mark.parametrize("dtype", DTYPES)
def test_nonfinite_gradients_poison_nothing(dtype, value, seed, figure):
    """A NaN or infinity in each lane of a block of 256, in turn. Each step is skipped and counted, and nothing changes."""
    params = [parameter(300, dtype=dtype), parameter(40, 256, dtype=dtype)]
    opt = lowtide.AdamW(params)
    take_steps(params, opt)
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


def run(opt, params, grads):
    for step in grads:
        for param, grad in zip(params, step, strict=True):
            param.grad = grad.clone()
        opt.step()


@pytest.mark.parametrize("codec", CODECS)
@pytest.mark.parametrize("rule", RULES)
@pytest.mark.share
def test_threads_and_order_never_change_a_bit(rule, codec, seed, figure):
    """1, 2 and 7 threads, and parameters in another order, give the same bits of parameters and state. (In another order only
    to nearest, because random bits depend on a parameter's number.)"""
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


@pytest.mark.parametrize("rule", RULES)
def test_bytes_per_parameter_are_those_of_its_moments(rule, figure):
    """Rows of a multiple of 256: 1 + 4/256 bytes per moment with dynamic8, 2 with bf16, 4 with fp32; views agree."""
    found = {}
    for codec, per_moment in (("dynamic8", 1 + 4 / 256), ("bf16", 2), ("fp32", 4)):
        p = parameter(128, 512)
        opt = make(rule, [p], state=codec)
        p.grad = torch.zeros_like(p)
        opt.step()
        found[codec] = opt.report()["bytes_per_parameter"]
        tensors = {name: value for name, value in opt.state[p].items() if name != "step"}
        moments = [name for name in tensors if not name.endswith("_scale")]
        assert found[codec] == len(moments) * per_moment
        assert sum(value.numel() * value.element_size() for value in tensors.values()) == opt.report()["state_bytes"]
        assert opt.report()["allocated_bytes"] <= opt.report()["state_bytes"] + 2**16
    figure(f"bytes per parameter {found}")
    numbers = {"adamw": 2, "schedulefree": 2, "prodigy": 4}.get(rule)
    assert numbers is None or found["dynamic8"] == numbers * 1.015625


def resident_bytes():
    return int(Path("/proc/self/statm").read_text().split()[1]) * 4096


@pytest.mark.skipif(not Path("/proc/self/statm").exists(), reason="reads resident memory from /proc")
def test_memory_comes_back(figure):
    """10 optimizers with 32 MiB of state each, stepped and deleted, also with hooks that refer to them. Resident memory does
    not grow by the size of one."""
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
    """A view taken from `state` keeps its memory alive."""
    p = parameter(5000)
    opt = lowtide.AdamW([p])
    take_steps([p], opt)
    view = opt.state[p]["exp_avg_codes"]
    kept = bits(view)
    del opt
    gc.collect()
    torch.zeros(10**6).add_(1)
    assert bits(view) == kept
