"""Tries a wheel as a user would: in its own environment, outside the clone, without a compiler.

Without torch, bits.py steps every rule and format. With torch, whose packages are lent (borrowed.py), pip installs the wheel
offline, README's first block and the program `lowtide` run, results are compared with the committed hashes, and pip uninstalls
the wheel.
"""

from __future__ import annotations

import re
import resource
import time
from pathlib import Path

from wheels.hashes import Hashes, hashes_in
from wheels.work import ROOT, Failure, Words, Work, say

INSTALL_TO_STEP_S = 10.0  # with torch present; processor time, which other work does not lengthen
BITS = Path(__file__).with_name("bits.py")
GOLDEN = ROOT / "tests" / "python" / "optimizers" / "test_golden.py"
PYTEST = ("-m", "pytest", "-q", "-p", "no:cacheprovider", GOLDEN)


def readme_block() -> str:
    """The first Python block of README."""
    return str(re.findall(r"^```python\n(.*?)^```", (ROOT / "README.md").read_text(), re.S | re.M)[0])


def _processor_seconds() -> float:
    """The processor time of child programs."""
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


class Bare:
    """An environment of Python `version`, which uv looks for and else fetches; wheels: the package's, and nanobind-backend's."""

    def __init__(self, work: Work, wheels: list[Path], version: str) -> None:
        self._work, self._wheels, self._version = work, wheels, version
        self._venv = work.folder / "bare" / version
        self._python = self._venv / "bin" / "python"
        uv: Words = [work.tools() / "uv", "venv", "--clear", "--seed", "--python", version, self._venv]
        work.run(f"bare environment of Python {version}", uv)

    def bits(self) -> Hashes:
        """Installs the wheels alone, and returns what bits.py prints."""
        self._pip("install", "--no-deps", *self._wheels)
        printed = self._run("steps without torch", BITS)
        self._uninstall()
        return hashes_in(printed)

    def use(self, lent: list[Path]) -> None:
        """Installs the wheels beside torch, runs README's first block, its programs and the golden hashes, and
        uninstalls it."""
        self._lend(lent)
        start, before = time.monotonic(), _processor_seconds()
        self._pip("install", *self._wheels)
        self._run("README's block", "-c", readme_block())
        seconds, used = time.monotonic() - start, _processor_seconds() - before
        took = f"pip install to README's last step took {used:.1f} s of a processor, wanted {INSTALL_TO_STEP_S:.0f} at most"
        if used > INSTALL_TO_STEP_S:
            raise Failure(took)
        say(f"Python {self._version}: {took} ({seconds:.1f} s by the clock)")
        self._try_programs()
        if any((folder / "hypothesis").is_dir() for folder in lent):
            text = self._run("golden hashes", *PYTEST)
            say(f"Python {self._version}: golden hashes: {text.strip().splitlines()[-1]}")
        else:
            say(f"Python {self._version}: golden hashes not compared: tools/bootstrap.sh --extras test brings pytest")
        self._uninstall()

    def _try_programs(self) -> None:
        """Runs `lowtide info`, `python -m lowtide`, and `lowtide bench`, which steps."""
        program = self._python.with_name("lowtide")
        said = self._run("lowtide info", program, "info")
        if "cpu" not in said:
            raise Failure(f"lowtide info names no cpu:\n{said}")
        self._run("python -m lowtide", "-m", "lowtide")
        measured = self._run("lowtide bench", program, "bench", "--elements", "65536", "--rounds", "2", "--json")
        if "lowtide" not in measured:
            raise Failure(f"lowtide bench measured no step of its own:\n{measured}")

    def _lend(self, folders: list[Path]) -> None:
        """Links packages into the environment, except the package itself."""
        [own] = self._venv.glob("lib/python*/site-packages")
        for folder in folders:
            for path in folder.iterdir():
                ours = path.name.lower().startswith(("lowtide", "__pycache__", "_virtualenv")) or path.suffix == ".pth"
                if not ours and not (own / path.name).exists():
                    (own / path.name).symlink_to(path)

    def _pip(self, *words: str | Path) -> None:
        options = ["--no-input", "--disable-pip-version-check"]
        offline = ["--no-index"] if words[0] == "install" else []
        self._run(f"pip {words[0]}", "-m", "pip", *options, words[0], *offline, *words[1:])

    def _run(self, what: str, *words: str | Path) -> str:
        # Runs outside the clone and without its compilers.
        env = {"PATH": f"{self._python.parent}", "PYTHONDONTWRITEBYTECODE": "1"}
        return self._work.run(f"Python {self._version}, {what}", [self._python, *words], env=env, cwd=self._venv)

    def _uninstall(self) -> None:
        self._pip("uninstall", "--yes", "lowtide")
        left = [path.name for path in self._venv.glob("lib/python*/site-packages/*owtide*")]
        if left:
            raise Failure(f"pip uninstall lowtide left {', '.join(left)}")
