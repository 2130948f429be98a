"""Parameters on a device: the bits of CPU parameters under every budget, and the same checkpoints in both directions.

stand_in.py provides the devices; skipped without it.
"""

import copy
import gc
import io
import os
import pickle
from collections.abc import Callable
from pathlib import Path
from typing import Any

import lowtide
import pytest
import torch
from lowtide.state.elsewhere import Elsewhere
from stand_in import StandIn
from support import CODECS, DTYPES, RULES, bits, parameter, through_file, trained
from twins import Twins, dict_bits

Figure = Callable[[str], None]
InShare = Callable[[int, int, int], bool]
BUDGETS: dict[str, lowtide.Memory | None] = {
    "roomy": lowtide.Memory(device="50%"),
    "auto": None,  # on CUDA
    "streaming": lowtide.Memory(device="20KiB", chunk=4096, transfer="copy"),
    "managed": lowtide.Memory(managed=True, chunk=4096),
}
SHAPES = ((32, 300), (7, 100), (3, 5, 257), (9,), ())  # emulated kernels are slow


@pytest.mark.parametrize("budget", BUDGETS)
def test_bits_of_cpu_parameters(device: StandIn, budget: str, in_share: InShare, seed: int, figure: Figure) -> None:
    cases = streamed = stateless = compared = above = 0
    for row, rule in enumerate(RULES):  # the same cases of each budget: a kernel of xpu takes seconds to build
        for column, codec in enumerate(CODECS):
            if not in_share(row, column, len(CODECS)):
                continue
            twins = Twins(device, SHAPES, rule, cut=2, dtypes=DTYPES, state=codec, memory=BUDGETS[budget])
            asked = len(device.asked)
            twins.step()
            assert device.asked[asked:] == [0, 0, 0]
            report = twins.second.report()
            if rule != "sgd_plain":
                assert report["managed_bytes" if budget == "managed" else "device_bytes"] > 0
                step, *others = twins.second.state[twins.there[0]].values()
                assert int(step) == 3 and all(isinstance(one, Elsewhere) for one in others)
            stateless += rule == "sgd_plain"
            streamed += budget == "streaming" and report["moved_per_step"] > 0
            assert budget != "roomy" or report["moved_per_step"] == 0
            above += budget == "streaming" and report["device_bytes"] > 20 * 1024
            twins.compare_state()
            compared += twins.compared
            cases += 1
    assert above == 0
    assert streamed == (cases - stateless if budget == "streaming" else 0)
    figure(f"{cases} rules x formats, {streamed} streaming: {compared} bytes alike, {above} above the budget")


def both(device: StandIn, memory: lowtide.Memory | None = BUDGETS["streaming"], **options: Any) -> Twins:
    """CPU parameters with an optimizer that has trained, and copies on the device with a new one."""
    here, first = trained(**options)
    twins = Twins(device, here, options.get("rule", "adamw"), cut=2, memory=memory)
    twins.first = first
    return twins


@pytest.mark.parametrize("budget", BUDGETS)
def test_files_move_both_ways(device: StandIn, budget: str, tmp_path: Path, seed: int, figure: Figure) -> None:
    twins = both(device, BUDGETS[budget])
    twins.first.save(tmp_path / "cpu")
    twins.each(lambda opt: opt.load(tmp_path / "cpu"))  # both: a file's order of options is kept
    twins.step()
    twins.second.save(tmp_path / "device")
    twins.first.save(tmp_path / "cpu")
    assert (tmp_path / "device").read_bytes() == (tmp_path / "cpu").read_bytes()
    twins.first = lowtide.AdamW([{"params": twins.here[:2]}, {"params": twins.here[2:]}])
    twins.first.load(tmp_path / "device")
    twins.compare_state()
    twins.step()
    figure(f"{twins.compared} bytes alike; files of {(tmp_path / 'cpu').stat().st_size} bytes are the same")


@pytest.mark.parametrize("master", ["residual16", "residual8", "stochastic"])
def test_masters(device: StandIn, master: str, tmp_path: Path, seed: int, figure: Figure) -> None:
    """Weights with a residual, streaming: steps, state dicts and files of the CPU in both directions, and the same export."""
    compared = streamed = 0
    for rule in ("adamw", "lion", "sgd", "lamb"):
        options = {"master": master, "min_quantized_numel": 0, "memory": BUDGETS["streaming"]}
        twins = Twins(device, SHAPES, rule, dtypes=DTYPES, **options)
        twins.step(2)
        twins.compare_state()
        for optimizer, name in ((twins.first, "cpu"), (twins.second, "device")):
            optimizer.save(tmp_path / name)
        assert (tmp_path / "device").read_bytes() == (tmp_path / "cpu").read_bytes()
        twins.first.load(tmp_path / "device")
        twins.second.load(tmp_path / "cpu")
        twins.step(1)
        twins.first.load_state_dict(through_file(twins.second.state_dict()))
        twins.step(1)
        twins.compare_state()
        models = ((twins.here, twins.first), (twins.there, twins.second))
        mine, theirs = (lowtide.export_fp32(torch.nn.ParameterList(params), opt) for params, opt in models)
        twins.compare([*mine.values()], [theirs[name] for name in mine])
        compared += twins.compared
        streamed += twins.second.report()["moved_per_step"] > 0
    assert streamed > 0
    figure(f"{compared} bytes alike, {streamed} rules streaming")


def test_torch_state_dicts(device: StandIn, seed: int, figure: Figure) -> None:
    twins = both(device)
    twins.second.load_state_dict(twins.first.torch_state_dict())
    alike = 0
    mine, theirs = twins.each(lambda opt: opt.torch_state_dict()["state"])
    for i, entry in mine.items():
        for name, value in entry.items():
            if twins.first.state_dict()["state"][i].get(f"{name}_scale") is None:  # float32: encoding loses nothing
                assert torch.equal(value, theirs[i][name]), (i, name)
                alike += 1
    assert alike > 0
    figure(f"{alike} float32 states alike")


def test_offload_and_back(device: StandIn, tmp_path: Path, seed: int, figure: Figure) -> None:
    twins = both(device, BUDGETS["roomy"])
    twins.second.load_state_dict(twins.first.state_dict())
    twins.step()
    on_device = twins.second.report()["device_bytes"]
    twins.second.offload()
    away = twins.second.report()
    assert on_device > 0 and away["device_bytes"] == 0 and away["offloaded_bytes"] == on_device
    twins.compare_state()  # read where it is
    twins.second.save(tmp_path / "file")
    twins.first.load(tmp_path / "file")
    twins.compare_state()
    twins.second.torch_state_dict()
    assert twins.second.report()["offloaded_bytes"] == on_device and twins.second.report()["device_bytes"] == 0
    twins.step()
    twins.second.offload()
    twins.second.onload()
    twins.compare_state()
    assert twins.second.report()["device_bytes"] == on_device
    tight = lowtide.AdamW(twins.there, memory=lowtide.Memory(host=4096))
    tight.step()
    with pytest.raises(ValueError, match="4096"):
        tight.offload()
    figure(f"{on_device} bytes left the device and came back; {twins.compared} bytes alike")


def test_copies_and_pickles(device: StandIn, seed: int, figure: Figure) -> None:
    twins = both(device, lowtide.Memory(device="20KiB", host="1MiB", chunk=4096))
    twins.second.load_state_dict(twins.first.state_dict())
    assert copy.copy(twins.second).report()["device_bytes"] > 0
    # Copies may be on the CPU, where a budget with bytes of a device is refused; state that is loaded begins on the host.
    twins = both(device, lowtide.Memory(device="auto", host="1MiB", chunk=4096))
    twins.second.load_state_dict(twins.first.state_dict())
    ways: dict[str, Callable[[Any], Any]] = {
        "copy": copy.copy,  # its parameters are those on the device
        "deepcopy": copy.deepcopy,  # to the same device, or from emulated CUDA to where torch sees CPU memory
        "pickle": lambda optimizer: pickle.load(io.BytesIO(pickle.dumps(optimizer))),
    }
    for what, way in ways.items():
        twins.first = way(twins.second)
        twins.here = [param for group in twins.first.param_groups for param in group["params"]]
        twins.compare_state()
        assert twins.first.report()["device_bytes"] == 0, what
        if what == "copy":
            continue
        twins.step()
        twins.compare_state()
        twins.second.load_state_dict(twins.first.state_dict())
        for param, other in zip(twins.there, twins.here, strict=True):
            param.data.copy_(other.data)
        figure(f"{what}: {twins.compared} bytes alike")


def test_groups(device: StandIn, seed: int, figure: Figure) -> None:
    """An empty group first, a group with its own budget, and one added during training."""
    twins = Twins(device, SHAPES)
    twins.first, twins.second = lowtide.AdamW([{"params": []}]), lowtide.AdamW([{"params": []}])
    twins.first.add_param_group({"params": twins.here[:2], "memory": None})
    twins.second.add_param_group({"params": twins.there[:2], "memory": BUDGETS["managed"]})
    for begin in (2, 4):
        twins.gradients()
        for optimizer, params in ((twins.first, twins.here), (twins.second, twins.there)):
            optimizer.add_param_group({"params": params[begin : begin + 2], "state": "bf16"})
        twins.step()
        twins.compare_state()
    report = twins.second.report()
    assert report["managed_bytes"] > 0 and report["device_bytes"] > 0
    assert f"{device.backend} for {device.name()}" in repr(twins.second)
    assert device.name() not in repr(twins.first)
    figure(f"{twins.compared} bytes alike; {report['managed_bytes']} managed, {report['device_bytes']} on the device")


def test_each_device_has_its_queue(device: StandIn, seed: int, figure: Figure) -> None:
    twins = Twins(device, SHAPES, "lion")
    twins.step(1)
    for index in (1, 0):
        there = device.parameters(twins.here, index)
        before = len(device.asked)
        optimizer = lowtide.Lion(there)
        for param, other in zip(there, twins.here, strict=True):
            assert other.grad is not None
            param.grad = device.tensor(other.grad, index)
        optimizer.step()
        device.synchronize()
        assert device.asked[before:] == [index, index]  # to open it, and to step there
        assert dict_bits(optimizer) == dict_bits(twins.first)
    figure(f"queues of devices {device.asked}")


def test_gradients_that_are_not_finite(device: StandIn, figure: Figure) -> None:
    for nonfinite in ("skip", "raise", "propagate"):
        (there,) = device.parameters([parameter(64, 128)])
        optimizer = lowtide.AdamW([there], nonfinite=nonfinite)
        there.grad = device.tensor(torch.full((64, 128), float("nan")))
        before = bits(there)
        if nonfinite == "raise":
            with pytest.raises(ValueError, match="holds a NaN"):
                optimizer.step()
                optimizer.synchronize()  # where the step does not wait for the verdict
        else:
            optimizer.step()
        device.synchronize()
        assert (bits(there) == before) == (nonfinite != "propagate")
        assert optimizer.skipped_steps == (nonfinite == "skip")
    figure("skipped, raised and spread")


def test_nothing_is_kept(device: StandIn, figure: Figure) -> None:
    if device.kind == "cuda":
        pytest.skip("after every test, nothing may be left of torch's memory (emulated_cuda.py)")
    (param,) = device.parameters([torch.zeros(1 << 21)])
    param.grad = device.tensor(torch.ones(1 << 21))

    def resident() -> int:
        return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")

    sizes = []
    for _ in range(10):
        optimizer = lowtide.AdamW([param], state="fp32")
        optimizer.step()
        device.synchronize()
        state = int(optimizer.report()["device_bytes"])
        del optimizer
        gc.collect()
        sizes.append(resident())
    growth = max(sizes[2:]) - min(sizes[2:])
    assert state >= 16 << 20 and growth < 2 * state, growth  # 8 optimizers that were kept would add 8 times that
    figure(f"8 optimizers of {state} bytes on the device: memory grew by {growth} bytes")


def test_refused(device: StandIn, figure: Figure) -> None:
    (zero,) = device.parameters([parameter(64, 128)])
    with pytest.raises(ValueError, match="memory: device: got .101%., wanted 0% to 100%"):
        lowtide.AdamW([zero], memory=lowtide.Memory(device="101%"))
    assert lowtide.Memory(device="25%").budget(lowtide.devices.places.place_of(zero, "")).device == 1 << 28
    optimizer = lowtide.AdamW([zero])
    before = bits(zero)
    zero.grad = device.tensor(torch.ones(64, 128))
    optimizer.step()
    device.synchronize()
    assert bits(zero) != before
    before = bits(zero)
    for little in (lowtide.Memory(device=0, chunk=4096, transfer="copy"), lowtide.Memory(device=4096, host=4096, chunk=4096)):
        tight = lowtide.AdamW([zero], memory=little)
        with pytest.raises(ValueError, match="give at least"):
            tight.step()
        assert bits(zero) == before and not tight.state
    figure("3 refused; a step after them is taken")
