"""The promises about memory, each with its figure: it is what its moments take, and comes back."""

import gc
from pathlib import Path

import lowtide
import pytest
import torch

from support import RULES, bits, make, parameter, take_steps


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
