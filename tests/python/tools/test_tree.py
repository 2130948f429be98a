"""Claim: tools/check_tree.py finds circles, imports and includes against the order, Linux's own calls, and uses of
other files' private names; the tree is no larger than tools/size_limits.json lets it be."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).resolve().parents[3] / "tools"))
import check_size  # noqa: E402
import check_tree  # noqa: E402

CLEAN = {
    "src/core/low.h": "#include <vector>\n",
    "src/memory/high.h": '#include "core/low.h"\n',
    "python/lowtide/__init__.py": "from lowtide.optimizers import adam\n",
    "python/lowtide/memory/__init__.py": "",
    "python/lowtide/memory/low.py": "class Low:\n    _hidden = 1\n\n    def own(self):\n        return self._hidden\n",
    "python/lowtide/optimizers/__init__.py": "",
    "python/lowtide/optimizers/adam.py": "from lowtide.memory.low import Low\n\nprint(Low().own())\n",
}
PLANTED = {
    "a circle of headers": ({"src/core/low.h": '#include "core/back.h"\n', "src/core/back.h": '#include "core/low.h"\n'},
                            "src/core/back.h: a circle: src/core/back.h -> src/core/low.h -> src/core/back.h"),
    "a header that includes itself": ({"src/core/low.h": '#include "core/low.h"\n'}, "src/core/low.h: a circle"),
    "a header of Linux": (
        {"src/core/low.h": "#include <sched.h>\n"}, "src/core/low.h:1: #include <sched.h>: Linux's own",
    ),
    "a call of Linux": (
        {"src/core/low.h": "// sched_getcpu is named\nint core() { return sched_getcpu(); }\n"}, "src/core/low.h:2: sched_getcpu: Linux's",
    ),
    "an include against the order": ({"src/core/low.h": '#include "memory/high.h"\n'}, "core must not depend on memory"),
    "a circle of modules": (
        {
            "python/lowtide/memory/a.py": "from lowtide.memory import b\n",
            "python/lowtide/memory/b.py": "def late():\n    from lowtide.memory.a import x\n",
        },
        "python/lowtide/memory/a.py: a circle",
    ),
    "an import against the order": (
        {"python/lowtide/memory/up.py": "import lowtide.optimizers.adam\n"}, "memory comes before optimizers",
    ),
    "a type from above": (
        {
            "python/lowtide/memory/up.py": "from typing import TYPE_CHECKING\n\nif TYPE_CHECKING:\n"
            "    from lowtide.optimizers.adam import Low\n"
        },
        "python/lowtide/memory/up.py:4: lowtide.optimizers.adam: memory comes before optimizers",
    ),
    "a private name of another file": (
        {"python/lowtide/optimizers/reach.py": "def of(low):\n    return low._hidden\n"},
        "python/lowtide/optimizers/reach.py:2: ._hidden belongs to another file",
    ),
    "a room that nobody knows": ({"python/lowtide/attic/old.py": "from lowtide.memory.low import Low\n"}, "a room that"),
}  # fmt: skip


def offences(root: Path, extra: dict[str, str], capsys: pytest.CaptureFixture[str]) -> tuple[int, list[str]]:
    for name, text in {**CLEAN, **extra}.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    status = check_tree.main(root)
    return status, capsys.readouterr().out.splitlines()[:-1]


def test_a_clean_tree_has_no_offence(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert offences(tmp_path, {}, capsys) == (0, [])


@pytest.mark.parametrize("what", PLANTED)
def test_what_is_planted_is_found(what: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    extra, words = PLANTED[what]
    status, lines = offences(tmp_path, extra, capsys)
    assert status == 1 and any(words in line for line in lines), lines


def test_this_tree_is_clean(capsys: pytest.CaptureFixture[str]) -> None:
    assert check_tree.main() == 0, capsys.readouterr().out


def test_the_tree_is_within_its_limits(capsys: pytest.CaptureFixture[str]) -> None:
    assert check_size.main() == 0, capsys.readouterr().out


def test_a_size_above_its_limit_is_found(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    sizes = check_size.sizes()
    monkeypatch.setattr(check_size, "sizes", lambda: {**sizes, "lines of tests": sizes["lines of tests"] + 10**6})
    assert check_size.main() == 1
    assert "lines of tests: got" in capsys.readouterr().out


def test_a_circle_around_the_product_is_found(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    files = {"tools/a.py": "from . import b\n", "tools/b.py": "def late():\n    import a\n", "bench/c.py": "import d\n", "bench/d.py": ""}
    for name, text in files.items():
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(text)
    monkeypatch.setattr(check_size, "ROOT", tmp_path)
    monkeypatch.setattr(check_size, "tracked", lambda: [tmp_path / name for name in files])
    assert [line.split(":")[0] for line in check_size.circles_around()] == ["tools/a.py"]
