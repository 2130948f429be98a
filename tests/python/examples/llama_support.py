"""For tests of the training example: its folder on the path, a text, and settings of a tiny run."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest

EXAMPLES = Path(__file__).resolve().parents[3] / "examples"
sys.path.insert(0, str(EXAMPLES))

for _package in ("torch", "transformers", "tokenizers", "matplotlib"):
    pytest.importorskip(_package)

from llama.config import Config  # noqa: E402


@pytest.fixture(scope="module")
def text(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with some files of the example: real text, equal everywhere."""
    folder = tmp_path_factory.mktemp("text")
    for path in sorted((EXAMPLES / "llama").glob("*.py")):
        (folder / path.name).write_text(path.read_text())
    return folder


def tiny(out: Path, source: Path | str | None, **more: Any) -> Config:
    """Twenty steps of a model with a few matrices large enough for quantized state."""
    settings: dict[str, Any] = {
        "optimizers": "torch", "steps": 20, "warmup": 4, "batch": 4, "context": 32, "width": 64, "layers": 1,
        "heads": 2, "vocab": 384, "eval_windows": 8, "eval_every": 5, "checkpoint_every": 6,
    }  # fmt: skip
    return Config(out=str(out), data=None if source is None else str(source), **{**settings, **more})
