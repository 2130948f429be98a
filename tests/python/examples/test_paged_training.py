"""The example that trains with paged and unpaged state: it runs, says what it found, and refuses what cannot be."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from llama_support import EXAMPLES  # puts the example on the path

import paged_training

EXAMPLE = EXAMPLES / "paged_training.py"


def run(*arguments: object) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, str(EXAMPLE), *map(str, arguments)]
    return subprocess.run(command, capture_output=True, text=True, env={**os.environ, "HF_HUB_OFFLINE": "1"})


def test_paged_and_unpaged_give_the_same_bits(tmp_path: Path, figure) -> None:
    done = run("--steps", 4, "--width", 64, "--layers", 2, "--budget", "256KiB", "--disk", tmp_path, "--out", tmp_path / "out")
    assert done.returncode == 0, done.stderr
    rows = json.loads((tmp_path / "out" / "report.json").read_text())["rows"]
    assert [row["state"] for row in rows] == ["fp32", "dynamic8"]
    for row in rows:
        assert row["largest_difference"] == 0 and row["same_weights"]
        assert row["paged_other_bytes"] > 0 and row["paged_fast_bytes"] <= 256 << 10 < row["unpaged_fast_bytes"]
        figure(f"{row['state']}: losses of {len(row['paged_losses'])} steps and weights alike; state in RAM "
               f"{row['unpaged_fast_bytes']} -> {row['paged_fast_bytes']} bytes")  # fmt: skip
    assert not [name for name in os.listdir(tmp_path) if name.startswith("tmp")], "scratch is gone"


def test_what_cannot_be_is_said(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    for arguments, part in (
        (("--device", "cuda"), "cuda"),
        (("--device", "xpu"), "xpu"),
        (("--data", tmp_path / "none.json"), "none.json"),
        (("--disk", tmp_path / "missing", "--steps", 1, "--out", tmp_path), "missing"),
    ):
        monkeypatch.setattr(sys, "argv", ["paged_training.py", *map(str, arguments)])
        status, said = paged_training.main(), capsys.readouterr().err
        assert status == 2 and part in said and len(said.strip().splitlines()) == 1, said
