"""The Hugging Face code of documents and examples runs as it stands: in this process, because imports take seconds."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import lowtide
import pytest
from llama_support import EXAMPLES
from lora_support import one_thread  # noqa: F401

ROOT = EXAMPLES.parent


def blocks(document: str) -> list[str]:
    return re.findall(r"^```py\n(.*?)^```", (ROOT / document).read_text(), re.S | re.M)


def test_documents(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.chdir(tmp_path)
    names: dict[str, Any] = {}
    shown = blocks("docs/hugging-face.md")[0]
    exec(shown, names)
    opt = names["trainer"].optimizer.optimizer
    assert isinstance(opt, lowtide.AdamW) and opt.report()["steps"] == 2
    assert {tuple(group["betas"]) for group in opt.param_groups} == {(0.9, 0.95)}


def test_documents_have_every_name() -> None:
    rows = re.findall(r"^\| (`.*) \| (`.*`) \| (\w+) \|$", (ROOT / "docs/hugging-face.md").read_text(), re.M)
    listed = {}
    for names, classes, state in rows:
        names, classes = re.findall(r"`(\w+)`", names), re.findall(r"`(\w+)`", classes)
        listed |= {name: (classes[i % len(classes)], state) for i, name in enumerate(names)}
    assert listed == {name: (recipe.optimizer.__name__, recipe.state) for name, recipe in lowtide.hf.RECIPES.items()}
    assert f"takes {len(listed)} of the Trainer's names" in (ROOT / "docs/hugging-face.md").read_text()


def test_lora_example(tmp_path: Path, capsys: pytest.CaptureFixture[str], figure: Any) -> None:
    import finetune_lora

    small = ["--steps", "4", "--width", "64", "--layers", "1", "--out", str(tmp_path / "out")]
    assert finetune_lora.main([*small, "--host", "64KiB", "--disk", str(tmp_path)]) == 0
    report = json.loads((tmp_path / "out" / "report.json").read_text())
    assert report["same"] and len(report["whole"]["losses"]) == 4 and report["whole"]["moved_per_step"] > 0
    figure(capsys.readouterr().out.splitlines()[-2])
    for arguments, part in (
        (["--optim", "lomo"], "'lomo', wanted one of adamw_torch"),
        (["--host", "1MiB"], "--disk"),
        (["--steps", "3"], "even"),
        (["--data", str(tmp_path / "none")], "none"),
    ):
        assert finetune_lora.main([*small, *arguments]) == 2
        assert part in capsys.readouterr().err


def test_qlora_example(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], figure: Any
) -> None:
    """As it stands, but in this process, where torch is imported. Its peaks of memory mean nothing here."""
    pytest.importorskip("bitsandbytes")
    import qlora

    monkeypatch.setattr(qlora.memory, "alone", lambda function, *arguments: function(*arguments))
    small = ["--steps", "6", "--width", "64", "--layers", "1", "--out", str(tmp_path / "out"), "--disk", str(tmp_path)]
    assert qlora.main([*small, "--host", "64KiB"]) == 0
    report = json.loads((tmp_path / "out" / "report.json").read_text())
    theirs, ours = report["torch's AdamW"], report["PagedAdamW8bit"]
    # 8 bits of both averages and their scales, of which some would not fit into RAM; torch has 8 bytes a weight.
    assert 8 * theirs["trained"] <= theirs["state_bytes"] and ours["disk_bytes"] > 0
    assert ours["state_bytes"] + ours["disk_bytes"] < 0.5 * theirs["state_bytes"] and ours["state_bytes"] < 1.25 * (64 << 10)
    # A matrix of the base has half a byte a weight, so that all of it is smaller than the adapters in float32.
    assert theirs["frozen_bytes"] < 4 * theirs["trained"]
    figure(f"QLoRA's loss {ours['losses'][0]:.3f} → {ours['losses'][-1]:.3f} (torch {theirs['losses'][-1]:.3f}), state "
           f"{theirs['state_bytes']} → {ours['state_bytes']} bytes of RAM")  # fmt: skip
    assert abs(ours["losses"][-1] - theirs["losses"][-1]) < 0.1 * (theirs["losses"][0] - theirs["losses"][-1])
    runs: list[Any] = []
    monkeypatch.setattr(qlora.memory, "alone", lambda function, *arguments: runs.append(function) or function(*arguments))
    for arguments, part in ((["--steps", "1"], "2 or more"), (["--host", "8 gigs"], "8 gigs"), (["--data", "none"], "none")):
        assert qlora.main([*small, *arguments]) == 2
        assert part in capsys.readouterr().err
        assert not runs or "--data" in arguments, "a bad argument is refused before a run"
