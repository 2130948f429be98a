"""Examples that teach one thing run unchanged, with fewer steps; so does the notebook."""

from __future__ import annotations

import json
import re
import runpy
import sys
from collections.abc import Callable
from typing import Any

import pytest
from llama_support import EXAMPLES
from lora_support import one_thread  # noqa: F401

Figure = Callable[[str], None]
LOSS = re.compile(r"loss (\d+\.\d+)")
RUNS = {
    "plain_loop.py 20": r"2\.0\d bytes of optimizer state",
    "trainer_bf16.py 8": r"resumed from step 4: the same weights",
    "lora.py 20": r"0\.2\d MB in RAM, 1\.\d\d MB on disk",
    "lora.py 20 4bit": r"0\.2\d MB in RAM, 1\.\d\d MB on disk",
    "from_bitsandbytes.py 40": r"2\.weight .* exp_avg_codes uint8, .*\n2\.bias .*\n3\.weight .* exp_avg float32, exp_avg_sq float32",
    "state_on_disk.py": r"state: 4\.\d MB in RAM, 3\d\.\d MB on disk\n[^$]*a run in RAM that never stopped: the same",
    "rl_handover.py cpu 3": r"round 2/3: 3\.\d\d MB of state away while sampling",
}


@pytest.mark.parametrize("line", RUNS)
def test_examples(line: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], figure: Figure) -> None:
    name, *arguments = line.split()
    if "4bit" in arguments:
        pytest.importorskip("bitsandbytes")
    monkeypatch.setattr(sys, "argv", [name, *arguments])
    runpy.run_path(str(EXAMPLES / name), run_name="__main__")
    told = capsys.readouterr().out
    assert re.search(RUNS[line], told), told
    losses = [*map(float, LOSS.findall(told))]
    assert all(loss < 6 for loss in losses), "ln 256 is 5.5"
    figure(told.strip().splitlines()[-1])


def test_the_notebook(capsys: pytest.CaptureFixture[str], figure: Figure) -> None:
    cells = json.loads((EXAMPLES / "quick_start.ipynb").read_text(encoding="utf-8"))["cells"]
    names: dict[str, Any] = {}
    for cell in cells:
        if cell["cell_type"] == "code":
            assert not cell["outputs"], "outputs grow stale"
            exec("".join(cell["source"]), names)
    told = capsys.readouterr().out
    mb = {line.split(":")[0]: float(line.split()[-4]) for line in told.splitlines() if line.endswith("MB of state")}
    assert mb["lowtide.AdamW"] < 0.3 * mb["torch.optim.AdamW"]
    assert "same weights: True" in told and "steps so far: 60" in told, told
    figure(told.splitlines()[1])


def test_every_example_is_listed() -> None:
    listed = {*re.findall(r"\]\(([\w.]+)\)", (EXAMPLES / "README.md").read_text(encoding="utf-8"))}
    there = {path.name for path in EXAMPLES.iterdir() if path.suffix in (".py", ".ipynb") or (path / "CMakeLists.txt").exists()}
    there |= {path.parent.name for path in EXAMPLES.glob("*/main.c*")}
    assert listed == there
