"""The example of votes, small: two workers on localhost, and its errors when it cannot run."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from llama_support import EXAMPLES, text  # noqa: F401, I001 - text is a fixture; puts the example on the path

import train_ddp_sign

SCRIPT = EXAMPLES / "train_ddp_sign.py"
METHODS = ("fp32", "error_feedback", "lion")
SMALL = (
    "--workers", "2", "--rate", "none", "--steps", "16", "--width", "64", "--layers", "1", "--vocab", "512",
    "--context", "16", "--eval-windows", "8",
)  # fmt: skip


def run(*arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, str(SCRIPT), *arguments]
    return subprocess.run(command, capture_output=True, text=True, timeout=300, check=False)


def test_methods_train_and_are_compared(tmp_path: Path, text: Path, share: float) -> None:
    methods = METHODS if share == 1 else METHODS[::2]  # each is two processes that import torch
    done = run(*SMALL, "--methods", ",".join(methods), "--data", str(text), "--out", str(tmp_path))
    assert done.returncode == 0, done.stdout + done.stderr
    report = json.loads((tmp_path / "report.json").read_text())
    assert tuple(report["rows"]) == methods
    starts = {run["validation"][0][2] for run in report["runs"].values()}
    ends = [row["validation_loss"] for row in report["rows"].values()]
    print(f"{len(ends)} methods: start {starts}, end {ends}, of {report['parameters']} parameters")
    assert len(starts) == 1, "all start from the same weights"
    assert all(end < next(iter(starts)) for end in ends), "and learn"
    assert "DistributedLion" in done.stdout and "validation loss" in done.stdout.replace("\n", " ")


def test_what_cannot_be_is_said(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    for arguments, wanted in (
        (("--methods", "fp32,morse"), "morse"),
        (("--workers", "0"), "at least 1"),
    ):
        monkeypatch.setattr(sys, "argv", [str(SCRIPT), *SMALL, *arguments, "--out", str(tmp_path)])
        before = signal.getsignal(signal.SIGTERM)
        status, said = train_ddp_sign.main(), capsys.readouterr().err
        signal.signal(signal.SIGTERM, before)
        assert status == 2 and wanted in said, said
