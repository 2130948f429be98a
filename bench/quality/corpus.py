"""Training text, as bytes: the source code of the running Python's standard library, and the headers of C++.

Nothing is downloaded or kept.
"""

from __future__ import annotations

import hashlib
import sysconfig
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Any

import numpy as np
import torch

VALIDATION_SHARE = 20  # one file in this many
HEADERS = Path("/usr/include/c++")


@dataclass(frozen=True)
class Corpus:
    """Bytes of whole files, concatenated. No file is in both parts."""

    train: torch.Tensor  # uint8
    validation: torch.Tensor  # uint8
    sha256: str  # of the training bytes followed by the validation bytes


def load(root: Path | None = None) -> Corpus:
    """Loads all .py files, except installed packages, of the running Python or of the standard library in `root`. Raises
    FileNotFoundError if there are none."""
    root = root or Path(sysconfig.get_path("stdlib"))
    names = [path.relative_to(root).as_posix() for path in root.rglob("*.py")]
    own = [name for name in names if "site-packages" not in name and "dist-packages" not in name]
    if not own:
        raise FileNotFoundError(f"{root}: got no .py file, wanted the folder of a Python's standard library")
    return _split(root, own)


def headers() -> Corpus:
    """Loads all headers of libstdc++, which g++ installs. Raises FileNotFoundError if there are none."""
    names = [path.relative_to(HEADERS).as_posix() for path in HEADERS.rglob("*") if path.is_file()]
    if not names:
        raise FileNotFoundError(f"{HEADERS}: got no file, wanted the headers of C++: install g++")
    return _split(HEADERS, names)


def _split(root: Path, names: Iterable[str]) -> Corpus:
    """Orders files by name. A hash of the name picks the part of a file, so that the split is the same on every machine."""
    parts: tuple[list[bytes], list[bytes]] = ([], [])
    for name in sorted(names, key=PurePosixPath):
        digest = hashlib.sha256(name.encode()).digest()
        parts[int.from_bytes(digest[:4], "little") % VALIDATION_SHARE == 0].append((root / name).read_bytes())
    train, validation = (b"".join(part) for part in parts)
    digest_all = hashlib.sha256(train + validation).hexdigest()
    return Corpus(_tensor(train), _tensor(validation), digest_all)


def describe(text: Corpus) -> dict[str, Any]:
    return {"train": text.train.numel(), "validation": text.validation.numel(), "sha256": text.sha256}


def _tensor(data: bytes) -> torch.Tensor:
    return torch.from_numpy(np.frombuffer(data, dtype=np.uint8).copy())


def windows(source: torch.Tensor, count: int, length: int, generator: torch.Generator) -> torch.Tensor:
    """(count, length) bytes as int64, from places that `generator` draws."""
    starts = torch.randint(0, source.numel() - length, (count, 1), generator=generator)
    return source[starts + torch.arange(length)].long()
