"""bitsandbytes' example of paged optimizers, with its options: tiny models, in this process."""

from __future__ import annotations

import json
import re
import signal
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[3]
sys.path.append(str(ROOT / "examples"))

import paged_xpu_training  # noqa: E402
from llama import memory  # noqa: E402
from llama.common import ExampleError  # noqa: E402

Figure = Callable[[str], None]


def training(tmp_path: Path, *arguments: str) -> int:
    small = ["--shape=64x1x128x2x512", "--max_length=32", "--steps=6", "--log_interval=2", "--budget=64KiB", "--device=cpu"]
    return paged_xpu_training.main([*small, f"--disk={tmp_path}", f"--out={tmp_path / 'out'}", *arguments])


def test_training_paged_and_not_has_the_same_losses(tmp_path: Path, capsys: pytest.CaptureFixture[str], figure: Figure) -> None:
    assert training(tmp_path, "--compare", "--optimizer=paged_lion", "--lr=1e-3") == 0
    losses = json.loads((tmp_path / "out" / "report.json").read_text())
    assert list(losses) == ["lion", "paged_lion"] and losses["lion"] == losses["paged_lion"]
    out = capsys.readouterr().out
    assert "largest difference: 0\n" in out
    taken = [tuple(map(float, line)) for line in re.findall(r"state: (.+) MB; taken for it, with buffers: RAM (.+) MB, disk (.+) MB", out)]
    assert len(taken) == 2 and taken[0][2] == 0 < taken[1][2], "Lion in RAM, PagedLion on disk"
    assert all(ram + disk >= state for state, ram, disk in taken), "places are counted with alignment and buffers, apart from the state"
    assert training(tmp_path, "--optimizer=paged_adamw8bit", "--lr=1e-3") == 0  # its loss fell
    figure(f"Lion's {len(losses['lion'])} losses, paged and not, {losses['lion'][0]:.3f} → {losses['lion'][-1]:.3f}")


def test_every_name_of_an_optimizer_is_a_class() -> None:
    from lowtide.compat.bitsandbytes import optim

    assert len(paged_xpu_training.CLASSES) == 18
    for name, cls in paged_xpu_training.CLASSES.items():
        assert getattr(optim, cls).__name__.lower() == name.replace("_", "")


def test_the_trainer_saves_what_it_trained(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("accelerate", reason="transformers' Trainer needs it")
    assert training(tmp_path, "--use_trainer", "--optimizer=paged_adamw8bit") == 0
    assert "loaded: the same weights" in capsys.readouterr().out


@pytest.mark.parametrize("device", ["cuda", "xpu"])
def test_devices_that_are_not_there_are_refused(device: str, capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    import torch

    if getattr(torch, device).is_available():
        pytest.skip(f"torch has a {device} device")
    assert paged_xpu_training.main(["--device", device, f"--out={tmp_path}"]) == 2
    assert f"--device {device}: torch {torch.__version__} finds no {device} device" in capsys.readouterr().err


def test_what_cannot_be_is_said(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    cases: list[tuple[list[str], str]] = [
        (["--steps=0"], "--steps: got 0, wanted 1 or more"),
        (["--steps=1"], "--steps: got 1, wanted 2 or more: the last loss must be below the first"),
        (["--shape=64x1"], "wanted five numbers"),
        (["--shape=64x1xax2x512"], "--shape: got 64x1xax2x512, wanted five numbers"),
        (["--shape=64x1x128x0x512"], "--shape, heads: got 0, wanted 1 or more"),
        (["--shape=64x1x128x3x512"], "--shape, width: got 64, wanted a multiple of 6"),
        (["--shape=64x1x128x2x100"], "--shape: got a vocabulary of 100, wanted 51"),
        ([f"--dataset={tmp_path / 'none.json'}"], "none.json"),
    ]
    for arguments, part in cases:
        assert paged_xpu_training.main(["--device=cpu", f"--out={tmp_path}", *arguments]) == 2
        assert part in capsys.readouterr().err
    with pytest.raises(SystemExit):
        paged_xpu_training.main(["--compare", "--use_trainer"])
    assert "not allowed with argument --compare" in capsys.readouterr().err


def test_a_process_that_was_killed_is_told() -> None:
    with pytest.raises(ExampleError, match="memory ran out, or it was killed"):
        memory.alone(signal.raise_signal, signal.SIGKILL)
