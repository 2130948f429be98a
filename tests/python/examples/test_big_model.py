"""The example that trains with state on a disk and steps in backward: the same bits as with all state in RAM, bounded gradients,
budgets that are too small refused before anything is made."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest
from llama_support import EXAMPLES  # puts the example on the path

import big_model

assert Path(big_model.__file__).parent == EXAMPLES
SMALL = ["--params", "1e6", "--steps", "3", "--sequence", "16"]


@pytest.mark.parametrize("master", ["stochastic", "residual16"])
def test_a_disk_changes_no_bit(
    master: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], figure: Callable[[str], None]
) -> None:
    monkeypatch.setattr(big_model, "BUCKET", 100_000)
    runs = []
    for name, budget in (("disk", ["--ram", "2GiB", "--state", "512KiB", "--disk", str(tmp_path)]), ("ram", ["--ram", "none"])):
        file = tmp_path / f"{name}.json"
        assert big_model.main([*SMALL, *budget, "--master", master, "--json", str(file)]) == 0
        runs.append(json.loads(file.read_text()))
    disk, ram = runs
    assert disk["weights"] == ram["weights"] and disk["losses"] == ram["losses"]
    assert disk["disk_bytes"] > 500_000 and ram["disk_bytes"] == 0
    moved = disk["read_bytes"][-1] / disk["disk_bytes"]
    assert disk["read_bytes"][1:] == disk["written_bytes"][1:] and 1 <= moved <= 2, moved
    shape = big_model.SHAPES["1e6"]
    assert disk["params"] == shape.elements
    largest = 2 * shape.vocab * shape.width
    assert disk["largest_gradients"] <= largest + 100_000, "a gradient and a bucket that it found not full"
    assert "of 2 MB in all" in capsys.readouterr().out
    figure(f"{master}: {disk['disk_bytes']} bytes on disk, gradients {disk['largest_gradients']} of {2 * shape.elements} bytes at once; "
           f"{moved:.2f} of the disk moved a step; weights and losses alike")  # fmt: skip


def test_what_cannot_be_is_said(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for arguments, part in (
        (["--params", "7e9", "--ram", "4GiB"], "12.55 GiB of weights"),
        (["--params", "6e9"], "wanted one of 1e6, 125e6, 1.3e9, 7e9"),
        (["--steps", "0"], "wanted 1 or more"),
        (["--ram", "much"], "much"),
        (["--disk", str(tmp_path / "missing")], "missing"),
    ):
        assert big_model.main([*SMALL, *arguments]) == 2
        said = capsys.readouterr().err
        assert part in said and len(said.strip().splitlines()) == 1, said
