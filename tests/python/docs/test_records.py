"""Each page of records names commands that exist. Programs with a `main` here read all options; of `make bench`, the rows exist."""

from __future__ import annotations

import re
import shlex
import sys
from pathlib import Path

import pytest
import torch

ROOT = Path(__file__).resolve().parents[3]
sys.path.append(str(ROOT / "bench"))

from e2e import run as e2e  # noqa: E402
from quality import finetune, rl  # noqa: E402
from quality import run as quality  # noqa: E402
from step.rows import GROUPS  # noqa: E402

PAGES = [ROOT / "docs/evidence.md", *sorted((ROOT / "docs/benchmarks").glob("*-20*.md"))]
PROGRAMS = {
    "make bench": None, "make bench-paging": None, "make bench-sign": None, "make bench-sign-network": None,
    "make bench-e2e": e2e.main, "make bench-quality": quality.main, "bench/quality/run.py": quality.main,
    "bench/quality/finetune.py": finetune.main, "bench/quality/rl.py": rl.main, "bench/sign/overlap.py": None,
    "examples/big_model.py": None, "examples/train_ddp_sign.py": None, "tools/gpu_check.py": None,
}  # fmt: skip
COMMAND = re.compile(
    r"(make bench[a-z0-9-]*)(?: ARGS=\"([^\"]*)\")?|((?:bench/\w+|examples)/\w+\.py|tools/gpu_check\.py)([^`\n#]*)"
)


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_a_record_has_commands_that_start(
    page: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    found = COMMAND.findall(page.read_text(encoding="utf-8"))
    assert found, f"{page.name}: got no command, wanted the one that measures its table again"

    def stop(*_: object) -> None:
        raise SystemExit(0)

    for module, name in ((quality, "train_all"), (finetune, "study"), (rl, "study")):
        monkeypatch.setattr(module, name, stop)  # what a program does once it has read its options
    monkeypatch.chdir(tmp_path)
    Path("PACKAGES").mkdir()
    threads = torch.get_num_threads()
    for target, given, script, rest in found:
        main = PROGRAMS[target or script]
        assert target or (ROOT / script).is_file(), script
        words = shlex.split((given or rest).replace("$scale", "25M").replace("--device cuda", ""))
        if target == "make bench" and "--rows" in words:
            names = {id for group in GROUPS for id in (group.id, *(line.id for line in group.lines))}
            assert set(words[words.index("--rows") + 1].split(",")) <= names, words
        if main is None:
            continue
        monkeypatch.setattr(sys, "argv", [script, *words, *(["--list"] if main is e2e.main else [])])
        try:
            status = main()
        except SystemExit as end:
            status = end.code
        finally:
            torch.set_num_threads(threads)
        assert not status, f"{words}: {capsys.readouterr().err}"
