"""Text to train on: the source code of the running Python's standard library, as bytes. Nothing is downloaded or kept."""

from __future__ import annotations

import hashlib
import sysconfig
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch

VALIDATION_SHARE = 20  # one file in so many


@dataclass(frozen=True)
class Corpus:
    """Bytes of whole files, one file after another; no file is in both parts."""

    train: torch.Tensor  # uint8
    validation: torch.Tensor  # uint8
    sha256: str  # of the training bytes followed by the validation bytes


def load() -> Corpus:
    """All .py files but installed packages, in the order of their paths. A hash of the path says which part has a file,
    so the split is the same on every machine with the same Python."""
    root = Path(sysconfig.get_path("stdlib"))
    parts: tuple[list[bytes], list[bytes]] = ([], [])
    for path in sorted(root.rglob("*.py")):
        name = path.relative_to(root).as_posix()
        if "site-packages" in name or "dist-packages" in name:
            continue
        digest = hashlib.sha256(name.encode()).digest()
        parts[int.from_bytes(digest[:4], "little") % VALIDATION_SHARE == 0].append(path.read_bytes())
    train, validation = (b"".join(part) for part in parts)
    digest_all = hashlib.sha256(train + validation).hexdigest()
    return Corpus(_tensor(train), _tensor(validation), digest_all)


def _tensor(data: bytes) -> torch.Tensor:
    return torch.from_numpy(np.frombuffer(data, dtype=np.uint8).copy())


def windows(source: torch.Tensor, count: int, length: int, generator: torch.Generator) -> torch.Tensor:
    """(count, length) bytes as int64, from places that `generator` draws."""
    starts = torch.randint(0, source.numel() - length, (count, 1), generator=generator)
    return source[starts + torch.arange(length)].long()
