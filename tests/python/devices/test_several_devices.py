"""Parameters on several devices in one optimizer: the bits of one optimizer on the CPU, and all or nothing.

several_devices_support.py says what stands in for the devices.
"""

from __future__ import annotations

import contextlib
import copy
import io
import pickle
from collections.abc import Callable
from pathlib import Path
from typing import Any

import lowtide
import pytest
import torch
from lowtide.engine.cores import Cores
from several_devices_support import NAMES, SHAPES, Machine, spread
from support import CODECS, FOUR_BITS, LONG_AVERAGES, RULES, bits, copies_of, random_gradients, refused, take_steps
from twins import dict_bits

Figure = Callable[[str], None]


def test_bits_are_those_of_one_device(machine: Machine, seed: int, figure: Figure) -> None:
    """Also with stochastic rounding, because a parameter's random bits follow its number in the optimizer."""
    cases = compared = 0
    for i, rule in enumerate(RULES):
        formats = [*CODECS, *(() if rule in LONG_AVERAGES else FOUR_BITS)]
        for state in formats if rule == "adamw" else [formats[i % len(formats)]]:
            # OpenCL takes seconds to build the kernels of each rule and format, so only one case is on all devices.
            names = NAMES if (rule, state) == ("adamw", "dynamic8") else [*map({"xpu:0": "cuda:1"}.get, NAMES, NAMES)]
            rounding = "auto" if state == "fp32" else "stochastic"
            twins = spread(machine, rule, names, state=state, rounding=rounding, master="stochastic", seed=7)
            twins.step(2)
            twins.compare_state()
            compared += twins.compared
            cases += 1
    figure(f"{cases} rules x formats over {', '.join(machine.names[:3])}, one of them on xpu:0, too: {compared} bytes alike, 0 differ")


@pytest.mark.parametrize("kind", ["residual16", "residual8", "muon"])
def test_residuals_and_muon(machine: Machine, kind: str, seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Muon's products are torch's. They are queued behind the step on a device, and wait for it here."""
    step = Cores.step

    def step_and_wait(*args: Any, **options: Any) -> int:
        found = step(*args, **options)
        machine.synchronize()
        return found

    monkeypatch.setattr(Cores, "step", step_and_wait)
    if kind == "muon":
        twins = spread(machine, lowtide.Muon, ("cpu", "xpu:0") * 2, SHAPES[:4], dtypes=[torch.float32], row_beta2=0.9)
    else:
        twins = spread(machine, "adamw", ("cuda:0", "cpu", "cuda:1", "cpu"), SHAPES[:4], dtypes=[torch.bfloat16], lr=1e-3, master=kind)
    twins.step()
    twins.compare_state()


def test_files_and_dicts_are_those_of_one_device(machine: Machine, seed: int, tmp_path: Path, figure: Figure) -> None:
    """A file has the same bytes, and continues anywhere: on one device or on others."""
    twins = spread(machine)
    twins.step()
    second = twins.second
    twins.first.save(tmp_path / "one")
    second.save(tmp_path / "several")
    saved = (tmp_path / "one").read_bytes()
    assert saved == (tmp_path / "several").read_bytes()
    names = ("cpu", "xpu:0", "xpu:0", "cuda:1", "cpu", "cuda:0")
    for load in ("file", "dict"):
        moved = spread(machine, "adamw", names, copies_of(twins.here), cut=4)
        for opt in (moved.first, moved.second):
            opt.load(tmp_path / "several") if load == "file" else opt.load_state_dict(second.state_dict())
        moved.step(1)
        moved.compare_state()
        assert moved.second.param_groups[1]["lr"] == 0.01
    broken = bytearray(saved)
    broken[-100] ^= 1
    (tmp_path / "broken").write_bytes(broken)
    with refused(second, "broken"):
        second.load(tmp_path / "broken")
    figure(f"{len(saved)} bytes of a file alike; it goes on over {len(set(names))} devices placed otherwise, bit for bit")


def test_one_estimate_follows_resets_and_loads(machine: Machine, seed: int, tmp_path: Path) -> None:
    """Each core has stand-ins for the others' parameters, which must not keep Prodigy's estimate."""
    twins = spread(machine, lowtide.Prodigy, ("cpu", "cuda:0"), SHAPES[:2], dtypes=[torch.float32])
    both = (twins.first, twins.second)
    begin = copy.deepcopy(twins.first.state_dict())
    twins.step(2)
    for name, opt in zip(("one", "several"), both):
        opt.save(tmp_path / name)
    twins.step(2)
    back: dict[str, Callable[[Any, str], object]] = {
        "load": lambda opt, name: opt.load(tmp_path / name),
        "reset": lambda opt, name: opt.reset(),
        "state_dict": lambda opt, name: opt.load_state_dict(copy.deepcopy(begin)),
        "clear": lambda opt, name: opt.state.clear(),
    }
    for way, turn in back.items():
        for name, opt in zip(("one", "several"), both):
            turn(opt, name)
        twins.step(2)
        twins.compare_state()
        estimates = {(group["d"], group["k"]) for opt in both for group in opt.param_groups}
        assert len(estimates) == 1 and estimates.pop()[1] == (4 if way == "load" else 2), way


@pytest.mark.parametrize("policy", ["skip", "raise", "propagate"])
@pytest.mark.parametrize("amp", [False, True])
def test_a_bad_gradient_on_one_device_stops_all(machine: Machine, policy: str, amp: bool, seed: int, figure: Figure) -> None:
    twins = spread(machine, nonfinite=policy, amp_scaling=amp)
    first, second = twins.first, twins.second
    twins.step()
    for number in range(len(SHAPES)):
        twins.gradients()
        for params in (twins.here, twins.there):
            params[number].grad.view(-1)[-1] = float("nan")  # type: ignore[union-attr]
        before = twins.weights()
        for opt in (first, second):
            words = f"the gradient of parameter {number} holds a NaN"
            with pytest.raises(ValueError, match=words) if policy == "raise" else contextlib.nullcontext():
                opt.step()
        assert (policy == "propagate") == (twins.weights() != before)
        if policy == "propagate":
            break
        assert second.skipped_steps == first.skipped_steps == (number + 1 if policy == "skip" else 0)
    if policy != "propagate":
        twins.step()
        twins.compare_state()
        assert second.report()["steps"] == first.report()["steps"] == 6
    figure(f"{policy}: a NaN on each of {len(SHAPES)} parameters in turn, on all devices or none; {twins.compared} bytes alike")


def test_scaled_gradients(machine: Machine, seed: int) -> None:
    """`GradScaler` gives an optimizer one factor and one verdict for all devices."""
    twins = spread(machine, "lion", amp_scaling=True)
    for scale, found in ((4.0, 0.0), (4.0, 1.0), (2.0, 0.0)):
        twins.gradients()
        for opt in (twins.first, twins.second):
            opt.grad_scale, opt.found_inf = torch.tensor(scale), torch.tensor(found)
        twins.take()
    twins.compare_state()
    assert twins.first.skipped_steps == twins.second.skipped_steps == 1


def test_a_core_that_refuses_stops_all(machine: Machine, seed: int) -> None:
    twins = spread(machine)
    twins.step(1)
    for number in range(len(SHAPES)):
        twins.gradients()
        param = twins.there[number]
        param.data = param.data.reshape(-1) if param.ndim > 1 else param.data.reshape(1, -1)
        param.grad = None
        param.grad = torch.zeros_like(param)
        with refused(twins.second, f"parameter {number} changed its shape"):
            twins.second.step()
        param.grad = None
        param.data = param.data.reshape(SHAPES[number])
    twins.step()


def test_an_option_that_one_core_refuses_is_told_to_none(machine: Machine, seed: int) -> None:
    """4-bit state refuses an average of 0.95. Only the second device has a parameter in it; the first has a small one in
    float32."""
    twins = spread(machine, "adamw", ("cpu", "cuda:0"), ((7, 100), (20, 300)), dtypes=[torch.float32], state="dynamic4")
    for refusal in (False, True, False):
        twins.gradients()
        for opt in (twins.first, twins.second):
            if refusal:
                opt.param_groups[0]["betas"] = (0.95, 0.999)
                with refused(opt, "0.9"):
                    opt.step()
                opt.param_groups[0]["betas"] = (0.9, 0.999)
        twins.take()
    twins.compare_state()


def test_budgets_hold_for_each_device(machine: Machine, seed: int, tmp_path: Path, figure: Figure) -> None:
    """device= applies to each device; groups bring their own."""
    tight = lowtide.Memory(device="20KiB", chunk=4096)  # parameters on the CPU alone refuse it
    names = ("cuda:0", "cpu", "cuda:1", "xpu:0", "cuda:0", "cpu")
    twins = spread(machine, "adamw", names, min_quantized_numel=0, memory=tight)
    twins.step()
    twins.compare_state()
    report = twins.second.report()
    assert 0 < report["device_bytes"] <= 3 * (20 << 10) and report["moved_per_step"] > 0
    assert report["state_bytes"] == twins.first.report()["state_bytes"] and report["params"] == len(SHAPES)
    own = {
        "cpu": lowtide.Memory(host="16KiB", disk=tmp_path, chunk=4096),
        "cuda:0": lowtide.Memory(device="1MiB", host="1MiB"),
        "cuda:1": lowtide.Memory(managed=True),
        "xpu:0": lowtide.Memory(device="1MiB"),
    }
    numbers = sorted(range(len(SHAPES)), key=lambda i: machine.names.index(NAMES[i]))
    names = [NAMES[i] for i in numbers]
    other = spread(machine, "adamw", names, copies_of([twins.here[i] for i in numbers]), min_quantized_numel=0)
    groups = [{"params": [p for p, at in zip(other.there, names, strict=True) if at == name], "memory": own[name]} for name in own]
    other.second = lowtide.AdamW(groups, min_quantized_numel=0)
    other.step()
    other.compare_state()
    each = other.second.report()
    assert each["managed_bytes"] > 0 and each["device_bytes"] > 0 and each["disk_bytes"] > 0
    figure(f"{report['device_bytes']} bytes on 3 devices of 20 KiB each; a budget for each group, managed and disk: all bits alike")


def test_what_is_done_later(machine: Machine, seed: int, figure: Figure) -> None:
    """A group on a device that had none, overrides, other options, offloading: all bits equal those of one device."""
    twins = spread(machine)
    made = [lowtide.AdamW(of[:1], lr=0.1, memory=lowtide.Memory(device="auto", chunk=4096)) for of in (twins.here, twins.there)]
    first, second = twins.first, twins.second = made
    for number in range(1, len(SHAPES)):
        for opt, params in ((first, twins.here), (second, twins.there)):
            opt.param_groups[0]["lr"] = 0.1 / number
            opt.add_param_group({"params": [params[number]], "lr": 0.01 * number})
            opt.param_groups[0]["lr"] = 0.1
        twins.step(1)
    assert second.report()["steps"] == first.report()["steps"] == len(SHAPES) - 1
    for params in (twins.here, twins.there):
        lowtide.override(params[0], state="fp32")
        lowtide.override(params[3], lr=0.5, state="bf16")
    twins.step()
    for opt in (first, second):
        opt.param_groups[2]["betas"] = (0.5, 0.99)
        with refused(opt, "amsgrad"):
            opt.param_groups[1]["amsgrad"] = True
            try:
                opt.step()
            finally:
                opt.param_groups[1]["amsgrad"] = False
    twins.step()
    freed = second.demote()
    assert freed > 0 and second.demote() == 0
    with pytest.raises(ValueError):
        second.offload()  # the CPU's state has no disk to go to
    assert second.report()["offloaded_bytes"] == 0
    twins.step()
    twins.compare_state()
    assert second.report()["steps"] == first.report()["steps"]
    assert "cuda for cuda:0, cuda for cuda:1, sycl for xpu:0" in repr(second) or "for cuda:1" in repr(second)
    figure(f"groups added on 4 devices, overrides, options, demotion ({freed} bytes): {twins.compared} bytes alike")


def test_a_frozen_parameter_elsewhere_joins_with_its_first_gradient(machine: Machine, seed: int) -> None:
    """Until then the optimizer uses one device."""
    options = {"lr": 0.01, "seed": 3, "rounding": "stochastic", "min_quantized_numel": 0}
    twins = spread(machine, "adamw", ("cpu", "cuda:0", "cuda:0"), ((7, 100), (20, 33), (9,)), dtypes=[torch.float32])
    for params in (twins.here, twins.there):
        params[0].requires_grad_(False)
    twins.first, twins.second = (lowtide.AdamW(params, **options) for params in (twins.here, twins.there))
    assert [*map(str, (place.device for place in twins.second.engine.cores))] == ["cuda:0"]
    for step in range(4):
        random_gradients(twins.here if step > 1 else twins.here[1:])
        twins.give()
        twins.take()
        assert twins.second.report()["params"] == (3 if step > 1 else 2)
    twins.compare_state()


@pytest.mark.parametrize("names", [("cuda:0",) * 4, ("cuda:0", "cpu", "cuda:1", "cuda:0")], ids=["one", "several"])
def test_a_model_that_moves_before_the_first_step_is_followed(
    machine: Machine, names: tuple[str, ...], seed: int, figure: Figure
) -> None:
    """Like torch.optim: `module.to(device)` gives the same parameters other memory. Later it is refused. A stand-in only shows
    moves away from a device, because torch takes its memory for the CPU's, and so does a step."""
    compared = 0
    for target in (("cpu",) * 4, ("cuda:1", "cpu", "cpu", "cuda:1")):
        options = {"lr": 0.1, "seed": 3, "rounding": "stochastic", "min_quantized_numel": 0, "dtypes": [torch.float32]}
        twins = spread(machine, "adamw", names, ((32, 300), (7, 100), (20, 33), (9,)), **options)
        for opt in (twins.first, twins.second):
            opt.param_groups[0]["betas"] = (0.8, 0.99)
        for param, name in zip(twins.there, target, strict=True):
            param.data = machine.tensor(param, name)
        twins.device.names = target
        twins.step()
        twins.compare_state()
        compared += twins.compared
        assert {str(place.device) for place in twins.second.engine.cores} == {*target}
        assert twins.second.report()["steps"] == 3
    there, opt = twins.there, twins.second
    there[0].data = machine.tensor(there[0], "cpu")
    with refused(opt, "wanted device memory"):
        opt.step()
    figure(f"{compared} bytes of 2 models that moved alike; after a step a move is refused")


@pytest.mark.parametrize("kind", ["dict", "file", "torch"])
def test_a_checkpoint_is_read_after_a_model_has_moved(machine: Machine, kind: str, seed: int, tmp_path: Path) -> None:
    """In the order of trainers: make the optimizer, move the model to its device, read the checkpoint, step."""
    twins = spread(machine, "adamw", ("cuda:0", "cuda:1"), ((32, 300), (7, 100)), dtypes=[torch.float32])
    take_steps(twins.here, twins.first)
    twins.first.save(tmp_path / "file")
    saved = twins.first.torch_state_dict() if kind == "torch" else twins.first.state_dict()
    for param in twins.there:
        param.data = param.detach().clone()  # on the CPU
    twins.here, twins.device.names = copies_of(twins.here), ("cpu", "cpu")
    for param, other in zip(twins.there, twins.here, strict=True):
        param.data.copy_(other)
    twins.first, opt = lowtide.AdamW(twins.here), twins.second
    for each in (twins.first, opt):
        each.load(tmp_path / "file") if kind == "file" else each.load_state_dict(saved)
    twins.step(1)
    twins.compare_state()
    assert [str(place.device) for place in opt.engine.cores] == ["cpu"] and opt.state[twins.there[0]]["step"] == 2


def test_copies_and_pickles(machine: Machine, seed: int) -> None:
    """They end up on the CPU, where torch puts copies of what it sees."""
    twins = spread(machine)
    first, second = twins.first, twins.second
    twins.step()
    for duplicate in (copy.deepcopy(second), pickle.load(io.BytesIO(pickle.dumps(second)))):
        assert dict_bits(duplicate) == dict_bits(first)
        params = [param for group in duplicate.param_groups for param in group["params"]]
        assert [*map(bits, params)] == [*map(bits, twins.here)]


def test_what_is_of_one_device_is_refused(machine: Machine, seed: int) -> None:
    twins = spread(machine, cut=None)
    opt = twins.second
    twins.gradients()
    opt.step()
    machine.synchronize()  # `refused` reads parameters, on the host, which no queue of a stand-in holds back
    machine.cuda.capturing = True
    with refused(opt, "parameters on cpu and cuda:0 and cuda:1 and xpu:0", "one device"):
        opt.step()
    machine.cuda.capturing = False
    with refused(opt, "prepare_replay", "one device"):
        opt.prepare_replay()
    opt.step()
