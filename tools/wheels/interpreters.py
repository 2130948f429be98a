"""Finds the CPython interpreters that wheels are made for on this machine."""

from __future__ import annotations

import re
import shutil
import subprocess
from pathlib import Path

from wheels.work import Failure, Work

VERSIONS = ("3.10", "3.11", "3.12", "3.13")
STABLE = "cp312"  # from this version on, one wheel with the stable ABI serves all
# Prints the version and the path, not of a shim that chooses an interpreter, if the headers are there.
_PROBE = """
import os, sys, sysconfig
if sys.implementation.name == "cpython" and os.path.isfile(os.path.join(sysconfig.get_path("include"), "Python.h")):
    print("%d.%d" % sys.version_info[:2], os.path.realpath(sys.executable))
"""


def is_stable(version: str) -> bool:
    """True if Python `version` takes the wheel of the stable ABI."""
    return [int(n) for n in version.split(".")] >= [int(STABLE[2]), int(STABLE[3:])]


def find(work: Work, version: str) -> Path:
    """CPython `version` with its headers, from PATH or the folders of pyenv and uv. If there is none, uv fetches it."""
    found = _look_for(version)
    if found is None:
        try:
            work.run(f"installing Python {version}", [work.tools() / "uv", "python", "install", version])
        except Failure as failure:
            raise Failure(f"{failure}\n{_advice(version)}") from failure
        found = _look_for(version)
    if found is None:
        raise Failure(_advice(version))
    return found


def _advice(version: str) -> str:
    return (
        f"got no CPython {version} with Python.h in PATH, ~/.pyenv or ~/.local/share/uv, wanted one (pyenv install "
        f"{version}); --python names the versions to make wheels for"
    )


def _look_for(version: str) -> Path | None:
    named = shutil.which(f"python{version}")
    candidates = [Path(named)] if named else []
    for folder in (Path.home() / ".pyenv" / "versions", Path.home() / ".local" / "share" / "uv" / "python"):
        found = folder.glob(f"*{version}.*/bin/python{version}")
        candidates += sorted(found, key=lambda path: [int(n) for n in re.findall(r"\d+", str(path))], reverse=True)
    for candidate in candidates:
        done = subprocess.run([candidate, "-c", _PROBE], capture_output=True, text=True, check=False)
        if done.returncode == 0 and done.stdout.split()[:1] == [version]:
            return Path(done.stdout.split(maxsplit=1)[1].strip())
    return None
