"""Budgets whose parameters are on several devices: `host` is one amount for all, never exceeded, and bits do not depend on it.

The devices are those of several_devices_support.py.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import lowtide
import pytest
import torch
from several_devices_support import Machine, Twins
from support import bits, refused
from twins import dict_bits

Figure = Callable[[str], None]
NAMES = ("cuda:0", "cpu", "cuda:1", "cuda:1", "cuda:0", "cpu")
DEVICE = 20 << 10  # bytes: less than the state of each


def optimizer(params: list[torch.nn.Parameter], memory: lowtide.Memory | None, **options: Any) -> lowtide.AdamW:
    groups = [{"params": params[:4]}, {"params": params[4:], "lr": 0.01}]
    return lowtide.AdamW(groups, seed=3, state="fp32", memory=memory, **options)


def host_bytes(opt: lowtide.AdamW) -> dict[str, int]:
    """The bytes of `host` that each device has."""
    return {str(place.device): core.report()["allocated_bytes"] for place, core in opt.engine.cores.items()}


@pytest.mark.parametrize("where", ["optimizer", "group"])
def test_shares_add_up_to_host_at_most(machine: Machine, where: str, seed: int, figure: Figure) -> None:
    """From nothing to plenty: either all state has its place, or the first step refuses and changes nothing. It refuses
    only where less is given than what goes beyond `device`, and streaming buffers there take."""
    beyond = fits = 0
    for host in [*range(0, 320 << 10, 32 << 10), 1 << 20, 1 << 30]:
        twins = Twins(machine, NAMES)
        memory = lowtide.Memory(device=DEVICE, host=host, chunk=4096)
        first = optimizer(twins.here, None)
        if where == "group":
            second = lowtide.AdamW(
                [{"params": twins.there[:4], "memory": memory}, {"params": twins.there[4:], "lr": 0.01}], seed=3, state="fp32"
            )
        else:
            second = optimizer(twins.there, memory)
        twins.gradients()
        try:
            second.step()
        except ValueError as error:
            assert "budget" in str(error) and fits == 0, "more is never refused where less was taken"
            given = f"memory{' of parameter group 0' if where == 'group' else ''} has host={host} for "
            assert given in str(error) and "together, of which c" in str(error), "as it was given, and not a device's part alone"
            machine.synchronize()
            assert [*map(bits, twins.here)] == [*map(bits, twins.there)]
            continue
        first.step()
        twins.compare_all()
        twins.step(first, second, steps=1)
        taken = host_bytes(second)
        assert sum(taken.values()) <= host and twins.differing == 0
        if not fits:
            fits, beyond = host, sum(taken.values())
    assert 0 < fits <= beyond + (32 << 10) + 3 * 4 * 4096, "the next of these sizes, or four buffers for each device"
    figure(f"{where}: from {fits} bytes of host on all state fits, of which 3 devices take {beyond}; less is refused by name")


def test_the_disk_is_for_the_cpu(machine: Machine, seed: int, tmp_path: Path, figure: Figure) -> None:
    names = ("cpu", "cuda:0", "cuda:1", "cuda:1", "cuda:0", "cuda:0")
    taken = []
    for host, disk in ((1 << 30, None), (0, tmp_path)):
        twins = Twins(machine, names)
        host = host or sum(taken[0][name] for name in names[1:3]) + (8 << 10)
        memory = lowtide.Memory(device=DEVICE, host=host, disk=disk, chunk=4096, step="device")
        first, second = optimizer(twins.here, None), optimizer(twins.there, memory)
        twins.step(first, second)
        taken.append(host_bytes(second))
        assert sum(taken[-1].values()) <= host and (second.report()["disk_bytes"] > 0) == (disk is not None)
        assert twins.differing == 0 and dict_bits(first) == dict_bits(second)
    assert [taken[1][name] for name in names[1:3]] == [taken[0][name] for name in names[1:3]]
    figure(f"host {host}: {taken[1]} bytes, {second.report()['disk_bytes']} on disk (without: {taken[0]}); all bits alike")


def test_managed_and_transfer_are_for_devices(machine: Machine, seed: int) -> None:
    for memory in (lowtide.Memory(managed=True), lowtide.Memory(device="1MiB", transfer="copy")):
        twins = Twins(machine, NAMES)
        first, second = optimizer(twins.here, None), optimizer(twins.there, memory)
        twins.step(first, second, steps=2)
        assert twins.differing == 0
        assert (second.report()["managed_bytes"] > 0) == memory.managed


def test_groups_on_other_devices_divide_it_anew(machine: Machine, seed: int, figure: Figure) -> None:
    """State goes along; a group beside which there is no room for the state that is there is refused."""
    twins = Twins(machine, NAMES)
    host = 400 << 10
    memory = lowtide.Memory(device=DEVICE, host=host, chunk=4096)
    pair = [
        lowtide.AdamW([params[0]], seed=3, state="fp32", memory=own)
        for params, own in ((twins.here, None), (twins.there, memory))
    ]
    taken = []
    for number in range(1, len(NAMES)):
        twins.step(pair[0], pair[1], steps=2)
        for opt, params in zip(pair, (twins.here, twins.there), strict=True):
            opt.add_param_group({"params": [params[number]], "lr": 0.01 * number})
        assert sum(host_bytes(pair[1]).values()) <= host
    twins.step(pair[0], pair[1], steps=2)
    taken = [*host_bytes(pair[1]).values()]
    assert sum(taken) <= host and twins.differing == 0
    assert dict_bits(pair[0]) == dict_bits(pair[1]) and pair[1].report()["steps"] == pair[0].report()["steps"]
    large = torch.nn.Parameter(machine.tensor(torch.randn(400, 400), "cuda:1"))
    with refused(pair[1], "host memory budget"):
        pair[1].add_param_group({"params": [large]})
    twins.step(pair[0], pair[1], steps=1)
    assert twins.differing == 0
    figure(f"5 groups on 3 devices join: {taken} bytes of {host}, {twins.compared} bytes alike")


def test_bad_sizes_are_refused(machine: Machine, seed: int) -> None:
    twins = Twins(machine, NAMES)
    for host, kind in (("much", ValueError), (-1, ValueError), (1.5, TypeError)):
        memory = lowtide.Memory(device=DEVICE, host=host)  # type: ignore[arg-type]
        with pytest.raises(kind, match="memory: host"):
            optimizer(twins.there, memory)
        with pytest.raises(kind, match="parameter group 0: memory: host"):
            lowtide.AdamW([{"params": twins.there, "memory": memory}])
