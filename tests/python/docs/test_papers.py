"""Checks files around the code: workflows run existing make targets, forms ask for `lowtide info`, hooks can run."""

from __future__ import annotations

import ast
import itertools
import re
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
TARGETS = set(re.findall(r"^([a-z][a-z0-9-]*):", (ROOT / "Makefile").read_text(), re.M))


def read(path: Path) -> Any:
    return yaml.safe_load(path.read_text(encoding="utf-8"))


def commands(workflow: Any) -> Iterator[str]:
    """Every command of a workflow, for each value of its matrix."""
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
    helped = set(re.findall(r"^([a-z0-9-]+):.*## ", makefile, re.M))
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


def test_the_module_is_the_command():
    """`python -m lowtide` takes the same arguments as `lowtide`, and prints its help without any."""

    def run(*arguments):
        done = subprocess.run([sys.executable, "-m", "lowtide", *arguments], capture_output=True, text=True, timeout=120)
        assert not done.returncode and not done.stderr
        return done.stdout

    assert "Usage: lowtide COMMAND" in run()
    assert run("--version").strip() == lowtide.__version__


def test_messages_point_to_no_file_that_users_lack(figure):
    """A wheel has no folder docs, so messages must say everything themselves. Docstrings and comments may name pages."""
    texts = []
    for path in sorted((ROOT / "python" / "lowtide").rglob("*.py")):
        tree = ast.parse(path.read_text())
        bodies = [node.body[0] for node in ast.walk(tree) if isinstance(node, (ast.Module, ast.ClassDef, ast.FunctionDef)) and node.body]
        documents = {id(first.value) for first in bodies if isinstance(first, ast.Expr)}
        found = [node for node in ast.walk(tree) if isinstance(node, ast.Constant) and isinstance(node.value, str)]
        texts += [(path, node.value) for node in found if id(node) not in documents]
    for folder, kind in itertools.product(("src", "include", "python"), ("*.cpp", "*.h", "*.cu", "*.def")):
        for path in sorted((ROOT / folder).rglob(kind)):
            code = re.sub(r"/\*.*?\*/|//[^\n]*", "", path.read_text(), flags=re.DOTALL)
            texts += [(path, text) for text in re.findall(r'"((?:[^"\\\n]|\\.)*)"', code)]
    figure(f"{len(texts)} texts in the code")
    assert not [(str(path), text) for path, text in texts if re.search(r"docs/|\w\.md\b", text)]
