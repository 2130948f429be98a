"""Copies of state on a device, by `.to()` and `.cpu()`: free until they are used, and yet of the moment at which they were made."""

from __future__ import annotations

import copy
import gc
import io
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import lowtide
import pytest
import torch
from lowtide.engine.unread import Copies
from lowtide.state.elsewhere import Elsewhere
from support import bits
from twins import Twins

SHAPES = [(64, 300), (16, 256), (7,)]


def trained(device: Any, **options: Any) -> Twins:
    twins = Twins(device, SHAPES, lr=1e-2, **options)
    twins.step(2)
    return twins


def copies(opt: lowtide.Optimizer) -> list[tuple[int, str, torch.Tensor]]:
    return [
        (number, name, one.cpu())
        for number, entry in enumerate(opt.state.values()) for name, one in entry.items() if isinstance(one, Elsewhere)
    ]  # fmt: skip


CHANGES: dict[str, Callable[[Twins, Path], object]] = {
    "step": lambda twins, _: twins.step(1),
    "load_state_dict": lambda twins, _: twins.second.load_state_dict(Twins(twins.device, SHAPES).second.state_dict()),
    "load": lambda twins, folder: twins.second.load(folder / "other"),
    "reset": lambda twins, _: twins.second.reset(),
    "del": lambda twins, _: (twins.second.state.clear(), twins.second.state_dict()),
    "override": lambda twins, _: (lowtide.override(twins.there[0], state="bf16"), twins.second.state_dict()),
    "offload": lambda twins, _: (twins.second.offload(), twins.step(1)),
    "no optimizer": lambda twins, _: (vars(twins).pop("second"), gc.collect()),
}


@pytest.mark.parametrize("change", CHANGES)
def test_copies_keep_the_values_of_their_moment(change: str, device: Any, tmp_path: Path, seed: int, figure: Callable[[str], None]) -> None:
    twins = trained(device)
    other = trained(device)
    other.second.save(tmp_path / "other")
    saved = copy.deepcopy(twins.second.state_dict()["state"])
    made = copies(twins.second)
    more = [(number, name, one.cpu()) for number, name, one in made]  # a copy of an unread copy
    assert twins.second.engine.copies.waits, "nothing is read before it is used"
    CHANGES[change](twins, tmp_path)
    for number, name, one in made + more:
        assert one.device.type == "cpu" and bits(one.clone()) == bits(saved[number][name]), (change, number, name)
    if change not in ("no optimizer", "override"):
        now = twins.second.state_dict()["state"]
        assert not now or any(bits(one.clone()) != bits(now[number][name]) for number, name, one in made), "control: the state changed"
    figure(f"{change}: {len(made)} copies, and {len(more)} of them, keep their values")


def test_copies_are_used_like_any_tensor(device: Any, seed: int, figure: Callable[[str], None]) -> None:
    twins = trained(device, state="fp32")
    name = "exp_avg"
    wanted = twins.second.state_dict()["state"][0][name]

    def one() -> torch.Tensor:
        made: torch.Tensor = twins.second.state[twins.there[0]][name].to("cpu", non_blocking=True)
        return made

    assert type(one().view(-1)) is torch.Tensor and one()[3].equal(wanted[3]) and one().t().equal(wanted.t())
    assert (one() + 1).equal(wanted + 1) and one().sum().equal(wanted.sum()) and one().tolist() == wanted.tolist()
    assert one().numpy().tobytes() == wanted.numpy().tobytes() and one().double().equal(wanted.double())
    assert one().is_pinned(), "loops pin what is not"
    assert copy.deepcopy(one()).equal(wanted) and torch.empty(wanted.shape).copy_(one()).equal(wanted)
    written = one()
    part = written.view(-1)[:5]
    written.mul_(2)
    assert part.equal(2 * wanted.view(-1)[:5]) and written.equal(2 * wanted), "views and writes share memory"
    written[0] = 7
    assert float(written[0, 0]) == 7 == float(part[0])
    file = io.BytesIO()
    torch.save({"a": one()}, file)
    file.seek(0)
    assert torch.load(file)["a"].equal(wanted)
    used = []
    copied = one()
    thread = threading.Thread(target=lambda: used.append(copied.clone()))
    thread.start()
    twins.step(1)  # while another thread may read
    thread.join()
    assert used[0].equal(wanted)
    figure("14 kinds of use")


def test_what_is_not_the_state_is_refused(device: Any, seed: int, figure: Callable[[str], None]) -> None:
    twins = trained(device)
    opt, (first, second, _) = twins.second, twins.there
    before = copy.deepcopy(opt.state_dict()["state"])
    entry = opt.state[first]
    name, copied = "exp_avg_codes", entry["exp_avg_codes"].cpu()
    wrong = {
        "other values": copied.clone() ^ 1,
        "another name": entry["exp_avg_sq_codes"].cpu(),
        "another shape": opt.state[second][name].cpu(),
        "another type": copied.float(),
        "no tensor": 0,
    }
    for what, value in wrong.items():
        with pytest.raises(RuntimeError, match="with other values in the place of state that streams or is on a device"):
            entry[name] = value
        assert opt.state_dict()["state"][0][name].equal(before[0][name]), what
    entry[name] = copied.clone()  # the same values, in memory of its own, as a pinned copy
    assert entry[name].device.type == "cpu" and isinstance(entry[name], Elsewhere)
    assert opt.report()["device_bytes"] > 0, "all of the state moves at once, when all was moved"
    held = copied.clone()
    twins.step(1)
    assert entry is opt.state[first] and entry[name].device == torch.device(device.name()), "the step has it on the device"
    assert copied.equal(held) and not entry[name].cpu().equal(held)
    twins.compare_state()
    figure(f"{len(wrong)} refused, a copy with the same values moves it, and steps go on")


def test_an_assigned_copy_is_the_state(device: Any, seed: int, figure: Callable[[str], None]) -> None:
    """Wrappers with their own dict of the state, such as Megatron's HybridDeviceOptimizer, see it change as torch's does."""
    twins = trained(device)
    opt, mine = twins.second, {}
    for param, entry in opt.state.items():
        for name, one in entry.items():
            mine[param, name] = entry[name] = one.to("cpu")
    assert opt.report()["device_bytes"] == 0
    twins.step(1)
    for number, (param, entry) in enumerate(opt.state.items()):
        for name in entry:
            assert bits(mine[param, name].clone()) == bits(opt.state_dict()["state"][number][name])
    assert not opt.engine.copies._unread
    figure(f"{len(mine)} tensors that a wrapper keeps show the state after a step")


def test_too_little_host_memory_is_said(device: Any, seed: int, figure: Callable[[str], None]) -> None:
    twins = trained(device, memory=lowtide.Memory(device="50%", host=4096))
    opt = twins.second
    held = opt.report()["device_bytes"]
    with pytest.raises(ValueError, match="4096"):
        for entry in opt.state.values():
            for name, one in entry.items():
                entry[name] = one.to("cpu")
    assert opt.report()["device_bytes"] == held
    twins.step(1)
    twins.compare_state()
    figure("state stays where it is")


def test_a_copy_that_is_made_while_others_are_read_is_not_forgotten() -> None:
    """Another thread makes the copy during read(), which must leave it to the next read()."""
    copies, host = Copies(threading.RLock()), torch.device("cpu")
    values = torch.zeros(1)
    made: list[Any] = []
    other = threading.Thread(target=lambda: made.append(copies.add(lambda _: values.clone(), host)))

    def slow(_: Any) -> torch.Tensor:
        other.start()
        other.join(0.2)  # without the lock it would be done by then
        return values.clone()

    first = copies.add(slow, host)
    copies.read(None)
    other.join()
    assert first.was_read and not made[0].was_read and copies.waits
    copies.read(None)  # before the next change
    values.fill_(1)
    assert made[0].read().item() == 0
