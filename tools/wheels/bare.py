"""Tries a wheel as its user does: in an environment of its own, outside the clone, without a compiler.

Without torch, bits.py steps every rule and format. With torch, whose packages are lent from an environment that has it,
pip installs the wheel offline, README's first block runs, the committed hashes of results are compared, and pip takes the
wheel away again.
"""

from __future__ import annotations

import json
import re
import resource
import subprocess
import time
from pathlib import Path

from wheels.work import ROOT, Failure, Work, say

INSTALL_TO_STEP_S = 10.0  # with torch present; of processor time, since other work lengthens what a clock shows
_LISTED = """
import importlib.util, json, sys
if importlib.util.find_spec("torch"):
    print(json.dumps([path for path in sys.path if path.endswith("site-packages")]))
"""
Hashes = dict[str, dict[str, str]]  # by instruction set and cell


def _processor_seconds() -> float:
    """Processor time of the programs that this one has run."""
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def lent_packages(python: Path, version: str) -> list[Path]:
    """The folders from which an environment of Python `version` may borrow torch; none if `python` has none for it."""
    if not python.is_file():
        return []
    probe = f"import sys\nif '%d.%d' % sys.version_info[:2] != '{version}': sys.exit()\n{_LISTED}"
    done = subprocess.run([python, "-c", probe], capture_output=True, text=True, check=False)
    return [Path(path) for path in json.loads(done.stdout or "[]")]


class Bare:
    """An environment of one interpreter."""

    def __init__(self, work: Work, wheel: Path, version: str, interpreter: Path) -> None:
        self._work, self._wheel, self._version = work, wheel, version
        self._venv = work.folder / "bare" / version
        self._python = self._venv / "bin" / "python"
        work.run(f"bare environment of Python {version}", [interpreter, "-m", "venv", "--clear", self._venv])

    def bits(self) -> Hashes:
        """Installs the wheel alone, and returns what bits.py prints."""
        self._pip("install", "--no-deps", self._wheel)
        printed = self._run("steps without torch", [Path(__file__).with_name("bits.py")])
        self._pip("uninstall", "--yes", "lowtide")
        self._check_gone()
        hashes: Hashes = json.loads(printed.splitlines()[-1])
        return hashes

    def use(self, lent: list[Path]) -> None:
        """Installs the wheel beside torch, runs README's first block and the golden hashes, and uninstalls it."""
        self._lend(lent)
        block = re.findall(r"^```python\n(.*?)^```", (ROOT / "README.md").read_text(), re.S | re.M)[0]
        start, before = time.monotonic(), _processor_seconds()
        self._pip("install", self._wheel)
        self._run("README's block", ["-c", block])
        seconds, used = time.monotonic() - start, _processor_seconds() - before
        took = f"pip install to README's last step took {used:.1f} s of a processor, wanted {INSTALL_TO_STEP_S:.0f} at most"
        if used > INSTALL_TO_STEP_S:
            raise Failure(took)
        say(f"Python {self._version}: {took} ({seconds:.1f} s by the clock)")
        if any((folder / "pytest").is_dir() for folder in lent):
            golden = ROOT / "tests" / "python" / "test_golden.py"
            text = self._run("golden hashes", ["-m", "pytest", "-q", "-p", "no:cacheprovider", golden])
            say(f"Python {self._version}: golden hashes: {text.strip().splitlines()[-1]}")
        else:
            say(
                f"Python {self._version}: golden hashes not compared, for want of pytest (tools/bootstrap.sh --extras test)"
            )
        self._pip("uninstall", "--yes", "lowtide")
        self._check_gone()

    def _lend(self, folders: list[Path]) -> None:
        """Links packages into the environment, all but the package itself."""
        [own] = self._venv.glob("lib/python*/site-packages")
        for folder in folders:
            for path in folder.iterdir():
                is_ours = (
                    path.name.lower().startswith(("lowtide", "__pycache__", "_virtualenv")) or path.suffix == ".pth"
                )
                if not is_ours and not (own / path.name).exists():
                    (own / path.name).symlink_to(path)

    def _pip(self, *words: str | Path) -> None:
        pip = ["-m", "pip", "--no-input", "--disable-pip-version-check", words[0]]
        if words[0] == "install":
            pip += ["--no-index"]
        self._run(f"pip {words[0]}", [*pip, *words[1:]])

    def _run(self, what: str, words: list[str | Path]) -> str:
        # From a folder that is not the clone, and without its compilers.
        env = {"PATH": f"{self._python.parent}", "PYTHONDONTWRITEBYTECODE": "1"}
        return self._work.run(f"Python {self._version}, {what}", [self._python, *words], env=env, cwd=self._venv)

    def _check_gone(self) -> None:
        left = [path.name for path in self._venv.glob("lib/python*/site-packages/*owtide*")]
        if left:
            raise Failure(f"pip uninstall lowtide left {', '.join(left)}")
