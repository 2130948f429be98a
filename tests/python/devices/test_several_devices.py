"""Parameters on several devices in one optimizer: the bits of one optimizer on the CPU, and all of it or nothing.

several_devices_support.py says what stands in for the devices.
"""

from __future__ import annotations

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
from several_devices_support import NAMES, SHAPES, Machine, Twins
from support import CODECS, FOUR_BITS, LONG_AVERAGES, RULES, bits, make, parameter, random_gradients, refused
from twins import dict_bits


def test_bits_are_those_of_one_device(machine: Machine, seed: int, figure: Callable[[str], None]) -> None:
    """With stochastic rounding as well: a parameter's random bits follow its number in the optimizer."""
    cases = compared = 0
    for i, rule in enumerate(RULES):
        formats = [*CODECS, *(() if rule in LONG_AVERAGES else FOUR_BITS)]
        for state in formats if rule == "adamw" else [formats[i % len(formats)]]:
            # OpenCL builds the kernels of each rule and format for seconds: one case is on all devices.
            names = NAMES if (rule, state) == ("adamw", "dynamic8") else [*map({"xpu:0": "cuda:1"}.get, NAMES, NAMES)]
            twins = Twins(machine, names)
            rounding = "auto" if state == "fp32" else "stochastic"
            first, second = twins.optimizers(rule, state=state, rounding=rounding, master="stochastic", seed=7)
            twins.step(first, second, steps=2)
            twins.compare_state(first, second)
            assert twins.differing == 0, (rule, state)
            compared += twins.compared
            cases += 1
    figure(f"{cases} rules x formats over {', '.join(machine.names[:3])}, one of them on xpu:0, too: {compared} bytes alike, 0 differ")


@pytest.mark.parametrize("kind", ["residual16", "residual8", "muon"])
def test_residuals_and_muon(machine: Machine, kind: str, seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Muon's products are torch's: they are queued behind the step on a device, and wait for it here."""
    step = Cores.step

    def step_and_wait(*args: Any) -> int:
        found = step(*args)
        machine.synchronize()
        return found

    monkeypatch.setattr(Cores, "step", step_and_wait)
    names = ("cpu", "xpu:0", "cpu", "xpu:0") if kind == "muon" else ("cuda:0", "cpu", "cuda:1", "cpu")
    if kind == "muon":
        here = [parameter(*shape) for shape in SHAPES[:4]]
        there = machine.parameters(here, names)
        optimizers: list[lowtide.Optimizer] = [lowtide.Muon(params) for params in (here, there)]
    else:
        here = [parameter(*shape, dtype=torch.bfloat16) for shape in SHAPES[:4]]
        there = machine.parameters(here, names)
        optimizers = [lowtide.AdamW(params, lr=1e-3, master=kind) for params in (here, there)]
    for _ in range(3):
        random_gradients(here)
        machine.give_gradients(there, names, here)
        for opt in optimizers:
            opt.step()
    machine.synchronize()
    assert [*map(bits, here)] == [*map(bits, there)]
    assert dict_bits(optimizers[0]) == dict_bits(optimizers[1])


def test_files_and_dicts_are_those_of_one_device(
    machine: Machine, seed: int, tmp_path: Path, figure: Callable[[str], None]
) -> None:
    """A file has the same bytes, and goes on anywhere: on one device, or on others."""
    twins = Twins(machine)
    first, second = twins.optimizers("adamw")
    twins.step(first, second)
    first.save(tmp_path / "one")
    second.save(tmp_path / "several")
    saved = (tmp_path / "one").read_bytes()
    assert saved == (tmp_path / "several").read_bytes()
    names = ("cpu", "xpu:0", "xpu:0", "cuda:1", "cpu", "cuda:0")
    for load in ("file", "dict"):
        moved = machine.parameters(twins.here, names)
        third = make("adamw", [{"params": moved[:4]}, {"params": moved[4:]}])
        copies = [torch.nn.Parameter(param.detach().clone()) for param in twins.here]
        fourth = make("adamw", [{"params": copies[:4]}, {"params": copies[4:]}])
        for opt in (third, fourth):
            opt.load(tmp_path / "several") if load == "file" else opt.load_state_dict(second.state_dict())
        random_gradients(copies)
        machine.give_gradients(moved, names, copies)
        third.step()
        fourth.step()
        machine.synchronize()
        assert [*map(bits, copies)] == [*map(bits, moved)] and dict_bits(third) == dict_bits(fourth)
        assert third.param_groups[1]["lr"] == 0.01
    third.save(tmp_path / "third")
    broken = bytearray(saved)
    broken[-100] ^= 1
    (tmp_path / "broken").write_bytes(broken)
    with refused(second, "broken"):
        second.load(tmp_path / "broken")
    figure(f"{len(saved)} bytes of a file alike; it goes on over {len(set(names))} devices placed otherwise, bit for bit")


@pytest.mark.parametrize("policy", ["skip", "raise", "propagate"])
@pytest.mark.parametrize("amp", [False, True])
def test_a_bad_gradient_on_one_device_stops_all(
    machine: Machine, policy: str, amp: bool, seed: int, figure: Callable[[str], None]
) -> None:
    twins = Twins(machine)
    first, second = twins.optimizers("adamw", nonfinite=policy, amp_scaling=amp)
    twins.step(first, second)
    for number in range(len(SHAPES)):
        twins.gradients()
        for params in (twins.here, twins.there):
            params[number].grad.view(-1)[-1] = float("nan")  # type: ignore[union-attr]
        before = [bits(param) for param in twins.there]
        if policy == "raise":
            for opt in (first, second):
                with pytest.raises(ValueError, match=f"the gradient of parameter {number} holds a NaN"):
                    opt.step()
        else:
            for opt in (first, second):
                opt.step()
        machine.synchronize()
        assert (policy == "propagate") == ([bits(param) for param in twins.there] != before)
        if policy == "propagate":
            break
        assert second.skipped_steps == first.skipped_steps == (number + 1 if policy == "skip" else 0)
    if policy != "propagate":
        twins.step(first, second)
        twins.compare_state(first, second)
        assert second.report()["steps"] == first.report()["steps"] == 6
    assert twins.differing == 0
    figure(f"{policy}: a NaN on each of {len(SHAPES)} parameters in turn, on all devices or none; {twins.compared} bytes alike")


def test_scaled_gradients(machine: Machine, seed: int) -> None:
    """`GradScaler` gives an optimizer one factor and one verdict for all devices."""
    twins = Twins(machine)
    first, second = twins.optimizers("lion", amp_scaling=True)
    for scale, found in ((4.0, 0.0), (4.0, 1.0), (2.0, 0.0)):
        twins.gradients()
        for opt in (first, second):
            opt.grad_scale, opt.found_inf = torch.tensor(scale), torch.tensor(found)  # type: ignore[attr-defined]
            opt.step()
        twins.compare_all()
    twins.compare_state(first, second)
    assert twins.differing == 0 and first.skipped_steps == second.skipped_steps == 1


def test_a_core_that_refuses_stops_all(machine: Machine, seed: int) -> None:
    twins = Twins(machine)
    first, second = twins.optimizers("adamw")
    twins.step(first, second, steps=1)
    for number in range(len(SHAPES)):
        twins.gradients()
        param = twins.there[number]
        param.data = param.data.reshape(-1) if param.ndim > 1 else param.data.reshape(1, -1)
        param.grad = None
        param.grad = torch.zeros_like(param)
        with refused(second, f"parameter {number} changed its shape"):
            second.step()
        param.grad = None
        param.data = param.data.reshape(SHAPES[number])
    twins.step(first, second)
    assert twins.differing == 0


def test_an_option_that_one_core_refuses_is_told_to_none(machine: Machine, seed: int) -> None:
    """4 bits refuse an average of 0.95: the second device has a parameter in them, the first a small one in float32."""
    names = ("cpu", "cuda:0")
    here = [parameter(7, 100), parameter(20, 300)]
    there = machine.parameters(here, names)
    pair = [lowtide.AdamW(params, state="dynamic4") for params in (here, there)]
    for refusal in (False, True, False):
        random_gradients(here)
        machine.give_gradients(there, names, here)
        for opt in pair:
            if refusal:
                opt.param_groups[0]["betas"] = (0.95, 0.999)
                with refused(opt, "0.9"):
                    opt.step()
                opt.param_groups[0]["betas"] = (0.9, 0.999)
            opt.step()
        machine.synchronize()
        assert [*map(bits, here)] == [*map(bits, there)]
    assert dict_bits(pair[0]) == dict_bits(pair[1])


def test_budgets_hold_for_each_device(
    machine: Machine, seed: int, tmp_path: Path, figure: Callable[[str], None]
) -> None:
    """device= is of each; groups bring their own."""
    twins = Twins(machine, ("cuda:0", "cpu", "cuda:1", "xpu:0", "cuda:0", "cpu"))
    tight = lowtide.Memory(device="20KiB", chunk=4096)  # parameters on the CPU alone refuse it
    first, second = (
        make("adamw", twins.groups(params), min_quantized_numel=0, **memory)
        for params, memory in ((twins.here, {}), (twins.there, {"memory": tight}))
    )
    twins.step(first, second)
    twins.compare_state(first, second)
    report = second.report()
    assert 0 < report["device_bytes"] <= 3 * (20 << 10) and report["moved_per_step"] > 0
    assert report["state_bytes"] == first.report()["state_bytes"] and report["params"] == len(SHAPES)
    own = {
        "cpu": lowtide.Memory(host="16KiB", disk=tmp_path, chunk=4096),
        "cuda:0": lowtide.Memory(device="1MiB", host="1MiB"),
        "cuda:1": lowtide.Memory(managed=True),
        "xpu:0": lowtide.Memory(device="1MiB"),
    }
    numbers = sorted(range(len(SHAPES)), key=lambda i: machine.names.index(NAMES[i]))
    here = [torch.nn.Parameter(twins.here[i].detach().clone()) for i in numbers]
    names = [NAMES[i] for i in numbers]
    there = machine.parameters(here, names)
    groups = [{"params": [p for p, at in zip(there, names, strict=True) if at == name], "memory": own[name]} for name in own]
    third, fourth = lowtide.AdamW(here, min_quantized_numel=0), lowtide.AdamW(groups, min_quantized_numel=0)
    for _ in range(3):
        random_gradients(here)
        machine.give_gradients(there, names, here)
        third.step()
        fourth.step()
        machine.synchronize()
        assert [*map(bits, here)] == [*map(bits, there)]
    assert dict_bits(third) == dict_bits(fourth)
    each = fourth.report()
    assert each["managed_bytes"] > 0 and each["device_bytes"] > 0 and each["disk_bytes"] > 0
    figure(f"{report['device_bytes']} bytes on 3 devices of 20 KiB each; a budget for each group, managed and disk: all bits alike")


def test_what_is_done_later(machine: Machine, seed: int, figure: Callable[[str], None]) -> None:
    """A group on a device that had none, overrides, other options, offloading: all bits stay those of one device."""
    twins = Twins(machine)
    pairs = []
    for params in (twins.here, twins.there):
        pairs.append(lowtide.AdamW([params[0]], lr=0.1, memory=lowtide.Memory(device="auto", chunk=4096)))
    first, second = pairs
    for number in range(1, len(SHAPES)):
        for opt, params in ((first, twins.here), (second, twins.there)):
            opt.param_groups[0]["lr"] = 0.1 / number
            opt.add_param_group({"params": [params[number]], "lr": 0.01 * number})
            opt.param_groups[0]["lr"] = 0.1
        twins.step(first, second, steps=1)
    assert second.report()["steps"] == first.report()["steps"] == len(SHAPES) - 1
    for params in (twins.here, twins.there):
        lowtide.override(params[0], state="fp32")
        lowtide.override(params[3], lr=0.5, state="bf16")
    twins.step(first, second)
    for opt in (first, second):
        opt.param_groups[2]["betas"] = (0.5, 0.99)
        with refused(opt, "amsgrad"):
            opt.param_groups[1]["amsgrad"] = True
            try:
                opt.step()
            finally:
                opt.param_groups[1]["amsgrad"] = False
    twins.step(first, second)
    freed = second.demote()
    assert freed > 0 and second.demote() == 0
    with pytest.raises(ValueError):
        second.offload()  # the CPU's state has no disk to go to
    assert second.report()["offloaded_bytes"] == 0
    twins.step(first, second)
    twins.compare_state(first, second)
    assert twins.differing == 0 and second.report()["steps"] == first.report()["steps"]
    assert "cuda for cuda:0, cuda for cuda:1, sycl for xpu:0" in repr(second) or "for cuda:1" in repr(second)
    figure(f"groups added on 4 devices, overrides, options, demotion ({freed} bytes): {twins.compared} bytes alike")


def test_a_frozen_parameter_elsewhere_joins_with_its_first_gradient(machine: Machine, seed: int) -> None:
    """Until then the optimizer is one of one device."""
    names = ("cpu", "cuda:0", "cuda:0")
    here = [parameter(7, 100), parameter(20, 33), parameter(9)]
    there = machine.parameters(here, names)
    for params in (here, there):
        params[0].requires_grad_(False)
    pair = [lowtide.AdamW(params, lr=0.01, seed=3, rounding="stochastic", min_quantized_numel=0) for params in (here, there)]
    assert [*map(str, (place.device for place in pair[1].engine.cores))] == ["cuda:0"]
    for step in range(4):
        random_gradients(here if step > 1 else here[1:])
        machine.give_gradients(there, names, here)
        for opt in pair:
            opt.step()
        machine.synchronize()
        assert [*map(bits, here)] == [*map(bits, there)]
        assert pair[1].report()["params"] == (3 if step > 1 else 2)
    assert dict_bits(pair[0]) == dict_bits(pair[1])


@pytest.mark.parametrize("names", [("cuda:0",) * 4, ("cuda:0", "cpu", "cuda:1", "cuda:0")], ids=["one", "several"])
def test_a_model_that_moves_before_the_first_step_is_followed(
    machine: Machine, names: tuple[str, ...], seed: int, figure: Callable[[str], None]
) -> None:
    """As torch.optim does: `module.to(device)` puts other memory below the same parameters. Later it is refused, as there.
    A stand-in shows moves from a device alone: its memory is the CPU's to torch, and a step there takes it for that."""
    compared = 0
    for target in (("cpu",) * 4, ("cuda:1", "cpu", "cpu", "cuda:1")):
        here = [parameter(32, 300), parameter(7, 100), parameter(20, 33), parameter(9)]
        there = machine.parameters(here, names)
        pair = [lowtide.AdamW(params, lr=0.1, seed=3, rounding="stochastic", min_quantized_numel=0) for params in (here, there)]
        pair[1].param_groups[0]["betas"] = pair[0].param_groups[0]["betas"] = (0.8, 0.99)
        for step in range(3):
            if step == 0:
                for param, name in zip(there, target, strict=True):
                    param.data = machine.tensor(param, name)
            random_gradients(here)
            machine.give_gradients(there, target, here)
            for opt in pair:
                opt.step()
            machine.synchronize()
            assert [*map(bits, here)] == [*map(bits, there)]
            compared += sum(param.nbytes for param in here)
        assert dict_bits(pair[0]) == dict_bits(pair[1])
        assert {str(place.device) for place in pair[1].engine.cores} == {*target}
        assert pair[1].report()["steps"] == 3
    there[0].data = machine.tensor(there[0], "cpu")
    with refused(pair[1], "wanted device memory"):
        pair[1].step()
    figure(f"{compared} bytes of 2 models that moved alike; after a step a move is refused")


@pytest.mark.parametrize("kind", ["dict", "file", "torch"])
def test_a_checkpoint_is_read_after_a_model_has_moved(machine: Machine, kind: str, seed: int, tmp_path: Path) -> None:
    """The order of trainers: the optimizer is made, the model goes to its device, the checkpoint is read, and steps follow."""
    here = [parameter(32, 300), parameter(7, 100)]
    first = lowtide.AdamW(here)
    random_gradients(here)
    first.step()
    first.save(tmp_path / "file")
    saved = first.torch_state_dict() if kind == "torch" else first.state_dict()
    there = machine.parameters(here, ("cuda:0", "cuda:1"))
    opt = lowtide.AdamW(there)
    for param in there:
        param.data = param.detach().clone()  # on the CPU
    alone = [torch.nn.Parameter(param.detach().clone()) for param in here]
    unmoved = lowtide.AdamW(alone)
    for each in (opt, unmoved):
        each.load(tmp_path / "file") if kind == "file" else each.load_state_dict(saved)
    random_gradients(alone)
    machine.give_gradients(there, ("cpu", "cpu"), alone)
    for each in (opt, unmoved):
        each.step()
    assert [*map(bits, alone)] == [*map(bits, there)] and dict_bits(unmoved) == dict_bits(opt)
    assert [str(place.device) for place in opt.engine.cores] == ["cpu"] and opt.state[there[0]]["step"] == 2


def test_copies_and_pickles(machine: Machine, seed: int) -> None:
    """They come out on the CPU, where torch puts copies of what it sees."""
    twins = Twins(machine)
    first, second = twins.optimizers("adamw")
    twins.step(first, second)
    for duplicate in (copy.deepcopy(second), pickle.load(io.BytesIO(pickle.dumps(second)))):
        assert dict_bits(duplicate) == dict_bits(first)
        params = [param for group in duplicate.param_groups for param in group["params"]]
        assert [*map(bits, params)] == [*map(bits, twins.here)]


def test_what_is_of_one_device_is_refused(machine: Machine, seed: int) -> None:
    twins = Twins(machine)
    opt = lowtide.AdamW(twins.there)
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


def test_a_transformer_placed_by_its_layers_trains(machine: Machine, seed: int, figure: Callable[[str], None]) -> None:
    """As device_map places one: embeddings and head on the CPU, a layer on each GPU. Losses are those of the CPU."""
    transformers = pytest.importorskip("transformers")
    torch.set_num_threads(1)
    config = transformers.LlamaConfig(
        vocab_size=64, hidden_size=32, intermediate_size=48, num_hidden_layers=2, num_attention_heads=2
    )
    tokens = torch.randint(64, (4, 12))
    found = []
    for several in (False, True):
        torch.manual_seed(seed)
        model = transformers.LlamaForCausalLM(config)
        names = []
        for name, param in [*model.named_parameters()]:
            parts = name.split(".")
            names.append(f"cuda:{parts[2]}" if several and parts[1] == "layers" else "cpu")
            owner = model.get_submodule(".".join(parts[:-1]))
            owner._parameters[parts[-1]] = machine.parameters([param], names[-1:])[0]
        params = [*model.parameters()]
        opt = lowtide.AdamW(params, lr=0.01, min_quantized_numel=0)
        losses = []
        for _ in range(6):
            loss = model(input_ids=tokens, labels=tokens).loss
            for param, name, grad in zip(params, names, torch.autograd.grad(loss, params), strict=True):
                param.grad = machine.tensor(grad, name)
            opt.step()
            machine.synchronize()
            losses.append(loss.item())
        found.append(losses)
        assert len(set(names)) == (3 if several else 1)
    assert found[0] == found[1] and found[0][-1] < found[0][0]
    figure(f"{len(params)} parameters on {len(set(names))} devices: losses {losses[0]:.4f} to {losses[-1]:.4f}, those of the CPU")
