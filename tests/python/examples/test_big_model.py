"""The example that trains with weights and state on a disk has the same bits as in RAM, even after a kill, and refuses budgets
that are too small before it makes anything."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path

import pytest
import xpu_device
from llama_support import EXAMPLES  # puts the example on the path

import big_model
from lowtide.planning import units as planning

assert Path(big_model.__file__).parent == EXAMPLES
SMALL = ["--params", "1e6", "--sequence", "16"]


@pytest.mark.parametrize("master", ["stochastic", "residual16"])
def test_a_disk_changes_no_bit(
    master: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], figure: Callable[[str], None]
) -> None:
    monkeypatch.setattr(planning, "STREAMED_STATE", 256 << 10)
    monkeypatch.setattr(big_model, "BUCKET", 100_000)
    runs = []
    ram = big_model.BESIDE + 1_900_000  # four of six layers, of 1.7 MB of weights and as much state
    on_disk = ["--ram", str(ram), "--disk", str(tmp_path), "--save", str(tmp_path / "saves"), "--save-every", "2"]
    for name, steps, budget in (("killed", "2", on_disk), ("disk", "3", on_disk), ("ram", "3", ["--ram", "none"])):
        file = tmp_path / f"{name}.json"
        assert big_model.main([*SMALL, "--steps", steps, *budget, "--master", master, "--json", str(file)]) == 0
        runs.append(json.loads(file.read_text()))
        assert runs[-1]["params"] == big_model.SHAPES["1e6"].elements
    killed, disk, ram_alone = runs
    assert killed["losses"] + disk["losses"] == ram_alone["losses"] and disk["weights"] == ram_alone["weights"]
    assert [each.name for each in (tmp_path / "saves").iterdir()] == ["3"], "the last step is saved, and its save alone stays"
    assert killed["state_on_disk"] > 500_000 and ram_alone["state_on_disk"] == 0 and not ram_alone["streaming"]
    planned, moved = killed["streaming"], killed["moved"][-1]
    assert moved["weights read"] == planned["planned_read_bytes"] > 0
    assert moved["weights written"] == planned["planned_written_bytes"] > 0
    assert "planned: 0.00 GB of weights read" in capsys.readouterr().out
    figure(f"{master}: {planned['memory_bytes']} of {planned['weight_bytes']} bytes of weights in memory, {moved['weights read']} read "
           f"a step as planned; weights and losses alike, one step of them after a save")  # fmt: skip


def test_a_gpu_changes_no_bit(xpu: xpu_device.Xpu, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, figure: Callable[[str], None]) -> None:
    """Whatever is on the GPU, in RAM or on the disk; a save goes on with another budget."""
    monkeypatch.setattr(planning, "STREAMED_STATE", 256 << 10)
    monkeypatch.setattr(big_model, "BUCKET", 100_000)
    beside, unit = big_model.SHAPES["1e6"].beside(16), 1_500_000
    ram, saves = big_model.BESIDE + 1_900_000, ["--save", str(tmp_path / "saves")]
    runs = []
    for steps, budget in (
        ("3", ["--gpu", str(beside + 100 * unit), "--ram", "none"]), ("2", ["--gpu", str(beside + unit), "--ram", "none", *saves]),
        ("3", ["--gpu", str(beside + unit), "--ram", str(ram), "--disk", str(tmp_path), *saves]),
    ):  # fmt: skip
        file = tmp_path / "run.json"
        assert big_model.main([*SMALL, "--steps", steps, *budget, "--json", str(file)]) == 0
        runs.append(json.loads(file.read_text()))
    whole, streamed, on_disk = runs
    assert streamed["losses"] + on_disk["losses"] == whole["losses"] and on_disk["weights"] == whole["weights"]
    assert not any(whole["streaming"].values()) and streamed["streaming"]["to_device_bytes"] > 0
    assert on_disk["state_on_disk"] > 0 and on_disk["moved"][-1]["weights read"] > 0
    figure(f"{len(whole['losses'])} losses and the weights alike; {on_disk['streaming']}")


def test_what_cannot_be_is_said(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for arguments, part in (
        (["--params", "7e9", "--ram", "2GiB"], "three layers, their gradients, and buffers for state"),
        (["--ram", "1GiB"], "wanted more than the 1.25 GiB of Python and torch"),
        (["--params", "6e9"], "wanted one of 1e6, 125e6, 1.3e9, 7e9"),
        (["--steps", "0"], "wanted 1 or more"),
        (["--ram", "much"], "much"),
        (["--gpu", "500MB"], "wanted more than 0.75 GiB for activations and the GPU's runtime"),
        (["--disk", str(tmp_path / "missing")], "missing"),
    ):
        assert big_model.main([*SMALL, *arguments]) == 2
        said = capsys.readouterr().err
        # Without torch's log of what torchao does, and words about waits.
        ours = [line for line in said.splitlines() if not re.match(r"\.*(W\d+ |$)|big_model: (importing|making)", line)]
        assert part in said and len(ours) == 1, said
