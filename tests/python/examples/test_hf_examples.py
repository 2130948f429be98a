"""The Hugging Face code in documents runs unchanged, in this process because imports take seconds."""

from __future__ import annotations

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


def test_documents(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
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
