"""Checks the code blocks in README.md, CONTRIBUTING.md and docs/. Every block is of a kind that is tested.

* ```python runs unchanged. ```py is a fragment: it runs after the code that it assumes (document_fragments.py), or another
  test runs it, and its Lowtide names exist.
* ```sh: make targets, scripts and arguments of `lowtide` exist. Outputs that begin with "$ lowtide" count, too.
* ```json and ```yaml can be parsed; ```cpp and ```c compile after the code that they assume; ```diff adds Python or C++.
"""

from __future__ import annotations

import ast
import json
import os
import re
import shlex
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NamedTuple

import lowtide
import lowtide.distributed
import pytest
import yaml
from document_fragments import CPP_PRELUDES, PRELUDES, RUN_ELSEWHERE
from lowtide.cli.main import parser_of

ROOT = Path(__file__).parents[3]
DEVICE = os.environ.get("LOWTIDE_LISTINGS_ON")  # "cuda": tools/gpu_check.py runs them on a GPU
TARGETS = set(re.findall(r"^([a-z][a-z0-9-]*):", (ROOT / "Makefile").read_text(), re.M))
# Files of new parts, which tests/new_part builds, and programs that tests/install builds.
BUILT = {"docs/cpp.md", *(f"docs/project/adding-a-{part}.md" for part in ("rule", "codec", "hyper-parameter", "backend"))}


class Block(NamedTuple):
    page: str
    number: int  # among the page's of its language, from 0
    language: str
    code: str

    def __str__(self) -> str:
        return f"{self.page}-{self.language or 'text'}-{self.number}"


def blocks() -> Iterator[Block]:
    pages = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").rglob("*.md"))]
    for path in pages:
        page, counts = path.relative_to(ROOT).as_posix(), dict[str, int]()
        for match in re.finditer(r"^( *)```(\w*)\n(.*?)^\1```$", path.read_text(encoding="utf-8"), re.S | re.M):
            number = counts[match[2]] = counts.get(match[2], -1) + 1
            yield Block(page, number, match[2], match[3])


ALL = list(blocks())


def of(*languages: str) -> pytest.MarkDecorator:
    return pytest.mark.parametrize("block", [block for block in ALL if block.language in languages], ids=str)


# Imports torch once, which takes seconds, and forks for each program.
RUNNER = """
import atexit, json, os, sys, traceback
import torch, lowtide
lowtide.AdamW
for line in sys.stdin:
    job = json.loads(line)
    child = os.fork()
    if child == 0:
        status = 1
        os.chdir(job["folder"])
        os.dup2(os.open("output", os.O_WRONLY | os.O_CREAT), 1)
        os.dup2(1, 2)
        try:
            exec(compile(job["program"], "block", "exec"), {"__name__": "__main__"})
            atexit._run_exitfuncs()
            status = 0
        except BaseException:
            traceback.print_exc()
        sys.stdout.flush(), sys.stderr.flush()
        os._exit(status)
    print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), flush=True)
"""


@pytest.fixture(scope="module")
def run() -> Iterator[Callable[[str, Path], None]]:
    """Runs a program in its own process and folder."""
    command = [sys.executable, "-c", RUNNER]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, bufsize=1) as runner:
        assert runner.stdin and runner.stdout

        def one(program: str, folder: Path) -> None:
            if DEVICE:  # what the documents do on the CPU, there
                program = program.replace('"gloo"', '"cpu:gloo,cuda:nccl"').replace('"cpu"', f'"{DEVICE}"')
                program = f"import torch\ntorch.set_default_device('{DEVICE}')\n{program}"
            assert runner.stdin and runner.stdout
            print(json.dumps({"program": program, "folder": str(folder)}), file=runner.stdin, flush=True)
            status = runner.stdout.readline().strip()
            assert status == "0", f"status {status}\n{program}\n{(folder / 'output').read_text()}"

        yield one


def test_every_block_is_of_a_kind_that_is_tested(figure):
    kinds = {"python", "py", "sh", "json", "yaml", "toml", "cpp", "c", "cmake", "diff", ""}
    counts = {kind or "text": sum(block.language == kind for block in ALL) for kind in kinds}
    figure(f"blocks {len(ALL)}: {counts}")
    assert {block.language for block in ALL} <= kinds and counts["python"] >= 8
    fragments = {(block.page, block.number) for block in ALL if block.language == "py"}
    assert fragments == {*PRELUDES, *RUN_ELSEWHERE}, "a fragment without a prelude, or a prelude without its fragment"
    assert all((Path(__file__).parents[1] / name).exists() for name in RUN_ELSEWHERE.values())


@of("python")
def test_example_runs(block, run, tmp_path):
    run(block.code, tmp_path)


@of("py")
def test_fragment_runs(block, run, tmp_path):
    ast.parse(block.code)
    if (block.page, block.number) not in RUN_ELSEWHERE:
        run(PRELUDES[block.page, block.number] + "\n" + block.code, tmp_path)


@of("py")
def test_a_fragment_names_what_there_is(block):
    for name in re.findall(r"\blowtide((?:\.\w+)+)", block.code):
        found: object = lowtide
        for part in name[1:].split("."):
            assert hasattr(found, part), f"{block}: lowtide{name}"
            found = getattr(found, part)
    for name in re.findall(r"\bvotes\.(\w+)", block.code):
        assert hasattr(lowtide.distributed, name), f"{block}: votes.{name}"


def commands() -> Iterator[tuple[str, str]]:
    """Shell lines, and the commands that outputs show as typed."""
    for block in ALL:
        lines = block.code.replace("\\\n", " ").splitlines()
        if block.language == "":
            lines = [line[2:] for line in lines if line.startswith("$ ")]
        elif block.language != "sh":
            continue
        for line in lines:
            for command in re.split(r"\s*(?:&&|;)\s*", line.partition(" #")[0].strip()):
                if command:
                    yield block.page, command


@pytest.mark.parametrize("page, command", list(commands()))
def test_a_command_names_what_there_is(page, command):
    words = [word for word in shlex.split(command) if not re.match(r"[A-Z_]+=", word)]
    if words and words[0] == "make":
        assert [word for word in words[1:] if not word.startswith("-")][0] in TARGETS, command
    for word in words:
        if re.match(r"(?:tools|examples|bench|tests)/", word):
            assert (ROOT / word).exists(), word
    if words and words[0] == "lowtide":
        parser_of(words[1]).parse_args(words[2:])  # refuses unknown options


@of("json", "yaml")
def test_data_can_be_read(block):
    (json.loads if block.language == "json" else yaml.safe_load)(block.code)


@of("cpp", "c")
def test_a_fragment_of_cpp_or_c_compiles(block, tmp_path):
    if block.page in BUILT and (block.page, block.language) not in CPP_PRELUDES:
        return  # by CMake's tests
    compiler = shutil.which("g++" if block.language == "cpp" else "gcc")
    assert compiler, "wanted gcc and g++, with which the package is built"
    source = tmp_path / f"fragment.{block.language}"
    source.write_text(CPP_PRELUDES[block.page, block.language].replace("BLOCK", block.code))
    standard = "-std=c++20" if block.language == "cpp" else "-std=c11"
    command = [compiler, standard, "-fsyntax-only", "-I", str(ROOT / "include"), str(source)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr


@of("cmake")
def test_a_target_of_cmake_is_that_of_the_installed_library(block, figure):
    """tests/install builds programs with it."""
    targets = set(re.findall(r"\b\w+::\w+", block.code))
    figure(f"targets {targets}")
    assert targets and all(target in (ROOT / "tests/install/CMakeLists.txt").read_text() for target in targets)


@of("diff")
def test_a_line_that_a_diff_adds_is_code(block):
    if block.page in BUILT:
        return  # by CMake's tests, which apply it
    added = "\n".join(line[1:].strip() for line in block.code.splitlines() if line.startswith("+"))
    assert added and ast.parse(added)
    for name in re.findall(r"lowtide\.(\w+)", added):
        assert hasattr(lowtide, name), name
