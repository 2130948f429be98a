"""The example whose phases of samples and training take turns on one memory: it runs, frees the memory, and refuses what cannot be."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from llama_support import EXAMPLES  # puts the example on the path

import rl_offload

assert Path(rl_offload.__file__).parent == EXAMPLES
SMALL = ["--rounds", "3", "--batch", "4", "--length", "8", "--width", "64", "--layers", "1"]


def test_phases_take_turns_and_change_no_bit(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], figure: Callable[[str], None]
) -> None:
    assert rl_offload.main([*SMALL, "--disk", str(tmp_path)]) == 0
    told = capsys.readouterr().out.splitlines()
    assert told[0].endswith("0.00 while samples are made"), told[0]
    moved = [line for line in told if line.startswith("round")]
    assert [line.split()[2] for line in moved] == ["offload()", "onload()"] * 2
    assert len({line.split(" MB")[0].split()[-1] for line in moved}) == 1, "what goes comes back"
    assert told[-1].endswith("the same")
    figure(told[0])


def test_what_cannot_be_is_said(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for arguments, part in (
        *([] if torch.cuda.is_available() else [(["--device", "cuda"], "cuda")]),
        (["--length", "4"], "--length: got 4"),
        (["--disk", str(tmp_path / "missing")], "missing"),
    ):
        assert rl_offload.main([*SMALL, *arguments]) == 2
        said = capsys.readouterr().err
        assert part in said and len(said.strip().splitlines()) == 1, said
