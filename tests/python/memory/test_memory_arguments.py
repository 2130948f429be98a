"""Arguments of users: paths of every kind, sums that overflow, dicts of groups that are used twice, NumPy's numbers."""

import os
from pathlib import Path

import numpy as np
import pytest
import torch

import lowtide


def parameters(count: int = 2, numel: int = 20000) -> list[torch.nn.Parameter]:
    generator = torch.Generator().manual_seed(1)
    made = [torch.nn.Parameter(torch.randn(numel, generator=generator)) for _ in range(count)]
    for param in made:
        param.grad = torch.randn(numel, generator=generator)
    return made


def test_paths_may_be_bytes_and_must_be_utf8(tmp_path: Path) -> None:
    optimizer = lowtide.AdamW(parameters(), memory=lowtide.Memory(host="64KiB", chunk="16KiB", disk=os.fsencode(tmp_path)))
    optimizer.step()
    assert optimizer.report()["disk_bytes"] > 0
    optimizer.save(os.fsencode(tmp_path / "file"))
    optimizer.load(str(tmp_path / "file"))
    strange = os.fsdecode(os.fsencode(tmp_path) + b"/\xff")
    for call in (
        lambda: optimizer.save(strange),
        lambda: optimizer.load(strange),
        lambda: lowtide.AdamW(parameters(), memory=lowtide.Memory(host=0, disk=strange)),
        lambda: lowtide.measure_rates(strange),
    ):
        with pytest.raises(ValueError, match="UTF-8"):
            call()
    with pytest.raises(TypeError):
        optimizer.save(3)  # type: ignore[arg-type]


def test_a_group_keeps_its_budget_however_often_its_dict_is_used(tmp_path: Path) -> None:
    own = lowtide.Memory(host="64KiB", chunk="16KiB", disk=tmp_path)
    group = {"params": parameters(), "memory": own, "lr": -1.0}
    optimizer = lowtide.AdamW(parameters(1))
    with pytest.raises(ValueError, match="lr"):
        optimizer.add_param_group(group)
    group["lr"] = 1e-3
    optimizer.add_param_group(group)
    for again in (optimizer, lowtide.AdamW([group])):
        again.step()
        assert again.report()["disk_bytes"] > 0
        assert all("memory" not in group for group in again.param_groups)
    assert group["memory"] is own


def test_a_group_added_later_takes_no_memory_above_the_budget(tmp_path: Path, figure) -> None:
    def peak() -> int:
        lines = Path("/proc/self/status").read_text().splitlines()
        return next(int(line.split()[1]) * 1024 for line in lines if line.startswith("VmHWM"))

    def growth(memory: lowtide.Memory | None) -> int:
        optimizer = lowtide.AdamW(parameters(1), memory=memory)
        optimizer.step()
        late = torch.nn.Parameter(torch.empty(32 << 20))
        Path("/proc/self/clear_refs").write_text("5")
        start = peak()
        optimizer.add_param_group({"params": [late]})
        return peak() - start

    limited, free = growth(lowtide.Memory(host="4MiB", disk=tmp_path)), growth(None)
    figure(f"a group of 64 MiB of state added: peak grew by {limited >> 20} MiB under a budget, {free >> 20} without")
    assert free > 30 << 20, "control: codes of a first moment are not zero bytes"
    assert limited < 4 << 20


def test_numbers_of_numpy_can_be_saved(tmp_path: Path) -> None:
    optimizer = lowtide.AdamW(parameters(), lr=np.float32(0.5), min_quantized_numel=np.int64(16))
    optimizer.step()
    optimizer.save(tmp_path / "file")
    optimizer.load(tmp_path / "file")
    group = optimizer.param_groups[0]
    assert group["lr"] == 0.5 and type(group["lr"]) is float


def test_a_parameter_that_moved_without_a_gradient_stops_nothing(tmp_path: Path) -> None:
    arena = torch.randn(3, 20000)
    first, second = (torch.nn.Parameter(arena[i]) for i in range(2))
    optimizer = lowtide.AdamW([first, second], memory=lowtide.Memory(host="64KiB", disk=tmp_path, chunk="16KiB"))
    second.grad = torch.randn(20000)
    optimizer.step()
    first.data, second.data = arena[2], arena[0]  # second is where first was when a step last saw it
    optimizer.step()
    assert optimizer.report()["steps"] == 2
    first.grad = torch.randn(20000)
    optimizer.step()
    second.data = arena[2]
    with pytest.raises(ValueError, match="overlaps"):
        optimizer.step()
