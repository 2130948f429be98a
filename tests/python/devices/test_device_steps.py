"""Parameters on a device: the bits of CPU parameters under every budget, and the same checkpoints, both ways.

They are shared memory of a stand-in for a device (stand_in.py); skipped where there is none.
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
from support import CODECS, DTYPES, RULES, bits, make, parameter, random_gradients, through_file, trained
from twins import Twins, dict_bits

BUDGETS: dict[str, lowtide.Memory | None] = {
    "roomy": lowtide.Memory(device="50%"),
    "auto": None,  # on CUDA
    "streaming": lowtide.Memory(device="20KiB", chunk=4096, transfer="copy"),
    "managed": lowtide.Memory(managed=True, chunk=4096),
}
SHAPES = ((32, 300), (7, 100), (3, 5, 257), (9,), ())  # emulated kernels are slow


@pytest.mark.parametrize("budget", BUDGETS)
def test_bits_of_cpu_parameters(device: StandIn, budget: str, seed: int, figure: Callable[[str], None]) -> None:
    cases = streamed = compared = above = 0
    for rule in RULES:
        for codec in CODECS:
            here = [parameter(*shape, dtype=DTYPES[i % 3]) for i, shape in enumerate(SHAPES)]
            there = device.parameters(here)
            first = make(rule, [{"params": here[:2]}, {"params": here[2:], "lr": 0.01}], state=codec)
            second = make(
                rule, [{"params": there[:2]}, {"params": there[2:], "lr": 0.01}], state=codec, memory=BUDGETS[budget]
            )
            asked = len(device.asked)
            twins = Twins(device, here, there)
            twins.step(first, second)
            assert device.asked[asked:] == [0, 0, 0]
            report = second.report()
            if rule != "sgd_plain":
                assert report["managed_bytes" if budget == "managed" else "device_bytes"] > 0
                step, *others = second.state[there[0]].values()
                assert int(step) == 3 and all(isinstance(one, Elsewhere) for one in others)
            streamed += budget == "streaming" and report["moved_per_step"] > 0
            assert budget != "roomy" or report["moved_per_step"] == 0
            above += budget == "streaming" and report["device_bytes"] > 20 * 1024
            twins.compare_state(first, second)
            assert twins.differing == 0, (rule, codec)
            compared += twins.compared
            cases += 1
    assert above == 0
    assert streamed == (cases - len(CODECS) if budget == "streaming" else 0)
    figure(f"{cases} rules x formats, {streamed} streaming: {compared} bytes alike, {above} above the budget")


def both(device: StandIn, memory: lowtide.Memory | None = BUDGETS["streaming"], **options: Any) -> tuple[Any, ...]:
    """Trained CPU parameters with their optimizer, and copies on the device with a fresh one."""
    here, first = trained(**options)
    there = device.parameters(here)
    second = type(first)([{"params": there[:2]}, {"params": there[2:], "lr": 0.01}], memory=memory)
    return here, first, there, second


@pytest.mark.parametrize("rule", ["adamw", "lion", "sgd"])
def test_state_dicts_move_both_ways(device: StandIn, rule: str, seed: int, figure: Callable[[str], None]) -> None:
    here, first, there, second = both(device, rule=rule)
    if rule == "sgd":
        second.param_groups[0]["momentum"] = second.param_groups[1]["momentum"] = 0.9
    second.load_state_dict(through_file(first.state_dict()))
    twins = Twins(device, here, there)
    twins.compare_state(first, second)
    twins.step(first, second)
    back = type(first)([{"params": here[:2]}, {"params": here[2:]}])
    back.load_state_dict(through_file(second.state_dict()))
    twins.compare_state(first, back)
    twins.step(back, second)
    first.load_state_dict(second.state_dict())
    twins.compare_state(first, second)
    assert twins.differing == 0
    figure(f"cpu -> device -> cpu: {twins.compared} bytes alike")


@pytest.mark.parametrize("budget", BUDGETS)
def test_files_move_both_ways(
    device: StandIn, budget: str, tmp_path: Path, seed: int, figure: Callable[[str], None]
) -> None:
    here, first, there, second = both(device, BUDGETS[budget])
    first.save(tmp_path / "cpu")
    for optimizer in (first, second):  # both: a file's order of options is kept
        optimizer.load(tmp_path / "cpu")
    twins = Twins(device, here, there)
    twins.step(first, second)
    second.save(tmp_path / "device")
    first.save(tmp_path / "cpu")
    assert (tmp_path / "device").read_bytes() == (tmp_path / "cpu").read_bytes()
    back = lowtide.AdamW([{"params": here[:2]}, {"params": here[2:]}])
    back.load(tmp_path / "device")
    twins.compare_state(back, second)
    twins.step(back, second)
    assert twins.differing == 0
    figure(f"{twins.compared} bytes alike; files of {(tmp_path / 'cpu').stat().st_size} bytes are the same")


@pytest.mark.parametrize("master", ["residual16", "residual8", "stochastic"])
def test_masters(
    device: StandIn, master: str, tmp_path: Path, seed: int, figure: Callable[[str], None]
) -> None:
    """Weights with a residual, streaming: steps, state dicts and files of the CPU, both ways, and the same export."""
    compared = streamed = 0
    for rule in ("adamw", "lion", "sgd", "lamb"):
        here = [parameter(*shape, dtype=DTYPES[i % 3]) for i, shape in enumerate(SHAPES)]
        there = device.parameters(here)
        first = make(rule, here, master=master, min_quantized_numel=0)
        second = make(rule, there, master=master, min_quantized_numel=0, memory=BUDGETS["streaming"])
        twins = Twins(device, here, there)
        twins.step(first, second, 2)
        twins.compare_state(first, second)
        for optimizer, name in ((first, "cpu"), (second, "device")):
            optimizer.save(tmp_path / name)
        assert (tmp_path / "device").read_bytes() == (tmp_path / "cpu").read_bytes()
        first.load(tmp_path / "device")
        second.load(tmp_path / "cpu")
        twins.step(first, second, 1)
        first.load_state_dict(through_file(second.state_dict()))
        twins.step(first, second, 1)
        twins.compare_state(first, second)
        models = [torch.nn.ParameterList(params) for params in (here, there)]
        mine, theirs = (lowtide.export_fp32(model, opt) for model, opt in zip(models, (first, second), strict=True))
        assert all(bits(mine[name]) == bits(theirs[name]) for name in mine)
        assert twins.differing == 0, rule
        compared += twins.compared
        streamed += second.report()["moved_per_step"] > 0
    assert streamed > 0
    figure(f"{compared} bytes alike, {streamed} rules streaming")


def test_torch_state_dicts(device: StandIn, seed: int, figure: Callable[[str], None]) -> None:
    here, first, there, second = both(device)
    second.load_state_dict(first.torch_state_dict())
    alike = 0
    mine, theirs = first.torch_state_dict()["state"], second.torch_state_dict()["state"]
    for i, entry in mine.items():
        for name, value in entry.items():
            if first.state_dict()["state"][i].get(f"{name}_scale") is None:  # float32: encoding loses nothing
                assert torch.equal(value, theirs[i][name]), (i, name)
                alike += 1
    assert alike > 0
    figure(f"{alike} float32 states alike")


def test_offload_and_back(device: StandIn, seed: int, figure: Callable[[str], None]) -> None:
    here, first, there, second = both(device, BUDGETS["roomy"])
    second.load_state_dict(first.state_dict())
    twins = Twins(device, here, there)
    twins.step(first, second)
    on_device = second.report()["device_bytes"]
    second.offload()
    away = second.report()
    assert on_device > 0 and away["device_bytes"] == 0 and away["offloaded_bytes"] == on_device
    twins.step(first, second)
    second.offload()
    second.onload()
    twins.compare_state(first, second)
    assert twins.differing == 0 and second.report()["device_bytes"] == on_device
    tight = lowtide.AdamW(there, memory=lowtide.Memory(host=4096))
    tight.step()
    with pytest.raises(ValueError, match="4096"):
        tight.offload()
    figure(f"{on_device} bytes left the device and came back; {twins.compared} bytes alike")


def test_copies_and_pickles(device: StandIn, seed: int, figure: Callable[[str], None]) -> None:
    _, first, _, second = both(device, lowtide.Memory(device="20KiB", host="1MiB", chunk=4096))
    second.load_state_dict(first.state_dict())
    assert copy.copy(second).report()["device_bytes"] > 0
    # Other copies are on the CPU, where a budget with bytes of a device is refused; state that is loaded begins on the host.
    here, first, there, second = both(device, lowtide.Memory(device="auto", host="1MiB", chunk=4096))
    second.load_state_dict(first.state_dict())
    ways: dict[str, Callable[[Any], Any]] = {
        "copy": copy.copy,  # its parameters are those on the device
        "deepcopy": copy.deepcopy,  # torch copies the tensors, to where the stand-in sees CPU memory
        "pickle": lambda optimizer: pickle.load(io.BytesIO(pickle.dumps(optimizer))),
    }
    for what, way in ways.items():
        twin = way(second)
        params = [param for group in twin.param_groups for param in group["params"]]
        twins = Twins(device, params, there)
        twins.compare_state(twin, second)
        assert twins.differing == 0 and twins.compared > 0, what
        assert twin.report()["device_bytes"] == 0, what
        if what == "copy":
            continue
        twins.step(twin, second)
        twins.compare_state(twin, second)
        second.load_state_dict(twin.state_dict())
        for param, other in zip(there, params, strict=True):
            param.data.copy_(other.data)
        assert twins.differing == 0, what
        figure(f"{what}: {twins.compared} bytes alike")


def test_groups(device: StandIn, seed: int, figure: Callable[[str], None]) -> None:
    """An empty group first, one with a budget of its own, one during training."""
    here = [parameter(*shape) for shape in SHAPES]
    there = device.parameters(here)
    optimizers = []
    for params, own in ((here, None), (there, BUDGETS["managed"])):
        optimizer = lowtide.AdamW([{"params": []}])
        optimizer.add_param_group({"params": params[:2], "memory": own})
        optimizers.append(optimizer)
    twins = Twins(device, here, there)
    for begin in (2, 4):
        random_gradients(here)
        device.give_gradients(there, here)
        for optimizer, params in zip(optimizers, (here, there), strict=True):
            optimizer.add_param_group({"params": params[begin : begin + 2], "state": "bf16"})
        twins.step(*optimizers)
        twins.compare_state(*optimizers)
    report = optimizers[1].report()
    assert twins.differing == 0 and report["managed_bytes"] > 0 and report["device_bytes"] > 0
    assert f"{device.backend} for {device.name()}" in repr(optimizers[1])
    assert device.name() not in repr(optimizers[0])
    figure(f"{twins.compared} bytes alike; {report['managed_bytes']} managed, {report['device_bytes']} on the device")


def test_each_device_has_its_queue(device: StandIn, seed: int, figure: Callable[[str], None]) -> None:
    here = [parameter(*shape) for shape in SHAPES]
    random_gradients(here)
    cpu = lowtide.Lion(here)
    cpu.step()
    for index in (1, 0):
        there = device.parameters(here, index)
        before = len(device.asked)
        optimizer = lowtide.Lion(there)
        for param, other in zip(there, here, strict=True):
            assert other.grad is not None
            param.grad = device.tensor(other.grad, index)
        optimizer.step()
        device.synchronize()
        assert device.asked[before:] == [index, index]  # to open it, and to step there
        assert dict_bits(optimizer) == dict_bits(cpu)
    figure(f"queues of devices {device.asked}")


def test_gradients_that_are_not_finite(device: StandIn, figure: Callable[[str], None]) -> None:
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


def test_nothing_is_kept(device: StandIn, figure: Callable[[str], None]) -> None:
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


def test_refused(device: StandIn, figure: Callable[[str], None]) -> None:
    here = parameter(64, 128)
    (zero,) = device.parameters([here])
    refusals: list[tuple[Callable[[], Any], str]] = [
        (lambda: lowtide.AdamW([zero], memory=lowtide.Memory(device="101%")), f"the memory of {device.name()}"),
    ]
    for act, words in refusals:
        with pytest.raises(ValueError, match=words):
            act()
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
    figure(f"{len(refusals) + 2} refused; a step after them is taken")
