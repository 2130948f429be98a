"""Claim: a rule is the files of docs/project/adding-a-rule.md: what finds rules in Python finds it, and it steps as its
reference.

rule_from_python.py ROOT PART PACKAGE: PART has the files of the page (extract.py), PACKAGE the module that was built with
them. The tests of the package that ask each rule for its parts run on a copy of the tree's tests with the page's documents.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

from package import completed

TESTS = (
    "options/test_options.py::test_every_rule_has_a_class_and_a_row",
    "options/test_options.py::test_defaults_and_options_are_those_of_the_core",
    "engine/test_promises.py::test_bytes_per_parameter_are_those_of_its_moments",
)


def merged_files(root: Path) -> list[str]:
    """The files that the page's table names, one a row; of the header, its folder."""
    page = (root / "docs" / "project" / "adding-a-rule.md").read_text(encoding="utf-8")
    table = page[page.index("## What a merge touches") :]
    return re.findall(r"^\| [^`|]*`([^`]+/[^`]+)`", table, re.MULTILINE)


def check_every_rule(root: Path, merged: list[str]) -> str:
    """Rules of every kind of rules.def that users name have their parts in these files, which are text; a rule's class, and its
    reference, may have a file beside the one that the table names."""
    listed = (root / "src/portable/rules.def").read_text(encoding="utf-8")
    kinds: dict[str, int] = {}
    for kind, name, struct in re.findall(r"^(LT_\w*RULE)\(\d+, (\w+), (\w+)\)$", listed, re.MULTILINE):
        if f'@steps("{name}")' not in "".join(path.read_text(encoding="utf-8") for path in (root / "python/lowtide/optimizers").glob("*.py")):
            continue  # of a family: users do not name it
        parts = {"src/portable/rules": f"struct {struct} ", "src/portable/rules.def": name, "docs/rules.md": f"| `{name}` |",
                 "python/lowtide/optimizers/rules.py": f'@steps("{name}")', "tests/reference/rules_test.cpp": f'"{name}',
                 "tests/golden/list.txt": name}  # fmt: skip
        assert set(parts) <= {*merged}, (parts, merged)
        if (root / f"tests/python/optimizers/test_{name}.py").exists():  # which compares it with a package
            del parts["tests/reference/rules_test.cpp"]
        for file, text in parts.items():
            where = root / file
            beside = [where] if where.suffix in (".def", ".md", ".txt") else (where if where.is_dir() else where.parent).iterdir()
            assert any(text in path.read_text(encoding="utf-8") for path in beside if path.is_file()), (name, file)
        kinds[kind] = kinds.get(kind, 0) + 1
    assert kinds.keys() == {"LT_RULE", "LT_NORM_RULE", "LT_SUM_RULE"}, kinds
    return ", ".join(f"{count} of {kind}" for kind, count in kinds.items())


def check_parts(root: Path, part: Path, package: Path) -> None:
    """Has the tests of the tree look for the parts of the new rule."""
    tree = part.parent / "rule_tree"
    shutil.rmtree(tree, ignore_errors=True)
    shutil.copytree(root / "tests/python", tree / "tests/python", ignore=shutil.ignore_patterns("__pycache__"))
    shutil.copytree(part / "docs", tree / "docs")
    shutil.copyfile(root / "pyproject.toml", tree / "pyproject.toml")
    names = [f"tests/python/{test}" for test in TESTS]
    command = [sys.executable, "-m", "pytest", "-v", "-k", "row or accumulatedsign", "-p", "no:cacheprovider", *names]
    environment = {**os.environ, "PYTHONPATH": str(package.parent)}
    done = subprocess.run(command, cwd=tree, env=environment, capture_output=True, text=True)
    assert done.returncode == 0 and done.stdout.count(" PASSED") == len(TESTS), done.stdout + done.stderr
    print(f"{len(TESTS)} tests of the package find the rule and its parts")


def main(root: Path, part: Path, package: Path) -> None:
    try:
        import pytest  # noqa: F401
        import torch
    except ImportError as error:
        print(f"skipped: no {error.name}")
        sys.exit(77)
    touched, merged = completed(root, part, package), merged_files(root)
    named = [name for name in touched if name in merged or str(Path(name).parent) in merged]
    assert len(touched) == 4 and touched == named, (touched, merged)
    print(f"{len(merged)} files of a rule's merge: {', '.join(merged)}")
    assert len(merged) == 6 and all((root / name).exists() for name in merged), merged
    print(f"the parts of every rule are there: {check_every_rule(root, merged)}")
    check_parts(root, part, package)

    sys.path.insert(0, str(package.parent))
    import lowtide
    from lowtide.optimizers.rules import AccumulatedSign

    assert Path(lowtide.__file__).parent == package, lowtide.__file__
    compared = 0
    for state in ("fp32", "dynamic8"):
        p = torch.nn.Parameter(torch.linspace(-1, 1, 6000).view(6, 1000))
        wanted, total = p.detach().double(), torch.zeros(6, 1000, dtype=torch.float64)
        opt = AccumulatedSign([p], lr=0.01, state=state)
        for _ in range(5):
            p.grad = torch.randn(6, 1000)
            total += p.grad.double().abs()
            wanted -= 0.01 * p.grad.double().sign() / (1 + total)
            opt.step()
        assert ("sum" if state == "fp32" else "sum_codes") in opt.state_dict()["state"][0]
        # dynamic8 rounds the sum: to about 1/16 of itself.
        worst = float((p.detach().double() - wanted).abs().max())
        assert worst < (1e-6 if state == "fp32" else 5e-3), (state, worst)
        compared += p.numel()
    print(f"{compared} elements as the reference has them, in 2 state formats")


if __name__ == "__main__":
    main(*(Path(argument).resolve() for argument in sys.argv[1:]))
