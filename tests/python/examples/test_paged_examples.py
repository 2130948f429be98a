"""bitsandbytes' two examples of paged optimizers, with its options: tiny models, in this process. What they count of memory means nothing
here."""

from __future__ import annotations

import json
import re
import signal
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).resolve().parents[3]
sys.path.append(str(ROOT / "examples"))

import benchmark_paged_memory  # noqa: E402
import paged_xpu_training  # noqa: E402
from llama import memory, paged  # noqa: E402
from llama.common import ExampleError  # noqa: E402

ALONE = memory.alone
Figure = Callable[[str], None]
TINY = paged.Job(hidden_size=64, num_layers=1, intermediate_size=128, num_heads=2, vocab_size=512, seq_len=16, train_steps=2,
                 budget="64KiB", device="cpu")  # fmt: skip
OPTIONS = [f"--{name}={getattr(TINY, name)}" for name in ("hidden_size", "num_layers", "intermediate_size", "num_heads", "vocab_size",
           "seq_len", "train_steps", "budget", "device")]  # fmt: skip


@pytest.fixture(autouse=True)
def one_process(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(memory, "alone", lambda function, *arguments: function(*arguments))
    if not memory.reset_peak():  # some containers forbid it; no test here reads a peak
        monkeypatch.setattr(memory, "reset_peak", lambda: True)


def test_the_benchmark_counts_state_where_it_is(tmp_path: Path, capsys: pytest.CaptureFixture[str], figure: Figure) -> None:
    assert benchmark_paged_memory.main([*OPTIONS, "--batch_size=2", "--dtype=bf16", f"--disk={tmp_path}", f"--out={tmp_path}"]) == 0
    found = json.loads((tmp_path / "report.json").read_text())["runs"]
    assert list(found) == ["AdamW", "AdamW8bit", "PagedAdamW", "PagedAdamW8bit"]
    count = found["AdamW"]["parameters"]
    for name, run in found.items():
        assert run["weight_bytes"] == run["gradient_bytes"] == 2 * count  # bf16
        # Two averages: 8 bytes a parameter, or 2 and a scale of 4 for each 256 (small tensors stay at 8).
        wanted = 8 * count if "8bit" not in name else 2 * (1 + 4 / 256) * count
        assert wanted <= run["state_bytes"] < 1.1 * wanted
        if name.startswith("Paged"):
            assert run["fast_state_bytes"] <= 64 << 10 and run["other_state_bytes"] > 0 and run["moved_per_step"] > 0
            twin = found[name.removeprefix("Paged")]
            assert (run["losses"], run["weights"]) == (twin["losses"], twin["weights"])
        else:
            assert run["fast_state_bytes"] >= run["state_bytes"] and run["other_state_bytes"] == 0
    saved = 1 - found["PagedAdamW"]["fast_state_bytes"] / found["AdamW"]["fast_state_bytes"]
    figure(f"{count} parameters: {100 * saved:.1f} % of 32-bit state out of RAM, losses and weights of both pairs alike")
    assert "the same bits" in capsys.readouterr().out


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
    for main in (benchmark_paged_memory.main, paged_xpu_training.main):
        assert main(["--device", device, f"--out={tmp_path}"]) == 2
        assert f"--device {device}: torch {torch.__version__} finds no {device} device" in capsys.readouterr().err


def test_what_cannot_be_is_said(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    cases: list[tuple[Any, list[str], str]] = [
        (paged_xpu_training.main, ["--steps=0"], "--steps: got 0, wanted 1 or more"),
        (paged_xpu_training.main, ["--steps=1"], "--steps: got 1, wanted 2 or more: the last loss must be below the first"),
        (paged_xpu_training.main, ["--shape=64x1"], "wanted five numbers"),
        (paged_xpu_training.main, ["--shape=64x1xax2x512"], "--shape: got 64x1xax2x512, wanted five numbers"),
        (paged_xpu_training.main, ["--shape=64x1x128x0x512"], "--shape, heads: got 0, wanted 1 or more"),
        (paged_xpu_training.main, ["--shape=64x1x128x3x512"], "--shape, width: got 64, wanted a multiple of 6"),
        (paged_xpu_training.main, ["--shape=64x1x128x2x100"], "--shape: got a vocabulary of 100, wanted 51"),
        (paged_xpu_training.main, [f"--dataset={tmp_path / 'none.json'}"], "none.json"),
        *((benchmark_paged_memory.main, [f"--{name}=0"], f"--{name}: got 0, wanted 1 or more") for name in paged.SIZES),
        (benchmark_paged_memory.main, ["--hidden_size=100"], "--hidden_size: got 100, wanted a multiple of 32"),
        (benchmark_paged_memory.main, [*OPTIONS, "--budget=much"], "much"),
    ]
    for main, arguments, part in cases:
        assert main(["--device=cpu", f"--out={tmp_path}", *arguments]) == 2
        assert part in capsys.readouterr().err
    with pytest.raises(SystemExit):
        paged_xpu_training.main(["--compare", "--use_trainer"])
    assert "not allowed with argument --compare" in capsys.readouterr().err


def test_a_run_without_an_honest_peak_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(ExampleError, match="memory ran out, or it was killed"):
        ALONE(signal.raise_signal, signal.SIGKILL)
    monkeypatch.setattr(memory, "reset_peak", lambda: False)
    with pytest.raises(ExampleError, match="clear_refs cannot be written"):
        paged.Ram.reset()
