"""Claims about the files around the code: workflows run make targets that exist, forms ask for `lowtide info`, hooks can run."""

from __future__ import annotations

import re
import runpy
import shlex
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import lowtide
import pytest
import yaml

ROOT = Path(__file__).parents[3]
WORKFLOWS = sorted((ROOT / ".github" / "workflows").glob("*.yml"))
TARGETS = set(re.findall(r"^([a-z][a-z-]*):", (ROOT / "Makefile").read_text(), re.M))


def read(path: Path) -> Any:
    return yaml.safe_load(path.read_text(encoding="utf-8"))


def commands(workflow: Any) -> Iterator[str]:
    """Every command of a workflow, once for each value of its matrix."""
    for job in workflow["jobs"].values():
        matrix = job.get("strategy", {}).get("matrix", {})
        for step in job["steps"]:
            if "run" not in step:
                continue
            names = re.findall(r"\$\{\{ matrix\.(\w+) \}\}", step["run"])
            for value in matrix[names[0]] if names else [""]:
                yield re.sub(r"\$\{\{ matrix\.\w+ \}\}", str(value), step["run"])


@pytest.mark.parametrize("path", WORKFLOWS, ids=lambda path: path.name)
def test_workflows_run_make_targets_that_exist(path, figure):
    run = list(commands(read(path)))
    figure(f"{path.name}: {', '.join(run)}")
    assert run
    for command in run:
        words = shlex.split(command)
        assert words[0] == "make" and words[1] in TARGETS, f"{command!r}: the Makefile has {', '.join(sorted(TARGETS))}"


@pytest.mark.parametrize("path", WORKFLOWS, ids=lambda path: path.name)
def test_workflows_may_only_read_and_end_in_time(path):
    workflow = read(path)
    assert workflow["permissions"] == {"contents": "read"}
    assert all(job["timeout-minutes"] <= 360 for job in workflow["jobs"].values())


def test_every_make_target_is_listed():
    makefile = (ROOT / "Makefile").read_text()
    phony = set(re.search(r"^\.PHONY:(.*)$", makefile, re.M)[1].split())  # type: ignore[index]
    helped = set(re.findall(r"^([a-z-]+):.*## ", makefile, re.M))
    assert phony == TARGETS == helped


def test_forms_ask_for_lowtide_info():
    forms = sorted((ROOT / ".github" / "ISSUE_TEMPLATE").glob("[!c]*.yml"))
    for form in forms:
        fields = [field for field in read(form)["body"] if "lowtide info" in field["attributes"]["label"]]
        assert fields, form.name
    assert read(ROOT / ".github/ISSUE_TEMPLATE/bug.yml")["body"][2]["validations"]["required"]
    assert forms and "lowtide info" in (ROOT / ".github/pull_request_template.md").read_text()


def test_citation_and_hooks_can_be_read():
    citation = read(ROOT / "CITATION.cff")
    assert citation["cff-version"] == "1.2.0" and citation["license"] == "Apache-2.0" and citation["authors"]
    hooks = [hook for repo in read(ROOT / ".pre-commit-config.yaml")["repos"] for hook in repo["hooks"]]
    assert {"clang-format", "ruff", "mypy", "check-docs", "check-tree"} == {hook["id"] for hook in hooks}
    for hook in hooks:
        for word in hook["entry"].split():
            assert not word.startswith("tools/") or (ROOT / word).exists(), word


def test_ruff_finds_nothing(figure):
    done = subprocess.run([sys.executable, "-m", "ruff", "check", "."], cwd=ROOT, capture_output=True, text=True, timeout=120)
    figure(f"ruff: {done.stdout.strip().splitlines()[-1]}")
    assert done.returncode == 0, done.stdout + done.stderr


def test_the_module_alone_is_lowtide_info(monkeypatch, capsys, share):
    """`python -m lowtide` takes the same arguments as `lowtide`, and is `lowtide info` without any."""
    if share < 1:  # nearly all of the time goes to rates, which test_cli.py and test_planning.py look at
        rates = lowtide.measure_rates(elements=4096, seconds=0.001)
        monkeypatch.setattr("lowtide.cli.commands.measure_rates", lambda *_: rates)
    monkeypatch.setattr(sys, "argv", ["python -m lowtide"])
    with pytest.raises(SystemExit) as ended:
        runpy.run_module("lowtide", run_name="__main__", alter_sys=True)
    alone = capsys.readouterr().out
    assert not ended.value.code and alone.startswith("lowtide") and lowtide.__version__ in alone
    assert "backend cpu" in alone
    run = [sys.executable, "-m", "lowtide"]
    version = subprocess.run([*run, "--version"], capture_output=True, text=True, timeout=120)
    assert version.stdout.strip() == lowtide.__version__
