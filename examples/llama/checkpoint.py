"""Checkpoints that are whole or refused: everything needed to continue a run bit for bit.

A checkpoint is ``checkpoint.pt`` and, for an optimizer that writes its own files, the one that it names. That one is
written first, under a name that no other has, and the one before is removed last: whenever the job dies, ``checkpoint.pt`` names
a file that is there and of the same moment.
"""

from __future__ import annotations

import pickle
import secrets
import zipfile
from pathlib import Path
from typing import Any

import torch

from .errors import ExampleError
from .files import write_atomically

FORMAT = "llama-example-checkpoint-2"
OPTIMIZER_FILE = "optimizer-{}.lowtide"
KEYS = {"format", "identity", "environment", "step", "batch_hash", "model", "optimizer", "scheduler", "rng", "history", "sessions"}


def save(path: Path, content: dict[str, Any]) -> None:
    """Write a checkpoint; the one before stays until the new one is on disk."""
    write_atomically(path, lambda file: torch.save({"format": FORMAT, **content}, file))


def save_optimizer(folder: Path, optimizer: torch.optim.Optimizer, step: int) -> dict[str, Any]:
    """The optimizer's part of ``checkpoint.pt``: its state, or the name of the file that it has written.

    Lowtide's ``save`` streams state from wherever it lives; ``state_dict`` would copy all of it into memory at once.
    """
    if not hasattr(optimizer, "save"):
        return {"state_dict": optimizer.state_dict()}
    folder.mkdir(parents=True, exist_ok=True)
    # A step alone would not do: a new run in the same folder could replace the file of the checkpoint before.
    name = OPTIMIZER_FILE.format(f"{step}-{secrets.token_hex(4)}")
    try:
        optimizer.save(folder / name)
    except OSError as error:
        raise ExampleError(f"cannot write {folder / name}: {error}; the checkpoint before is untouched") from error
    return {"file": name, "bytes": (folder / name).stat().st_size}


def load_optimizer(folder: Path, optimizer: torch.optim.Optimizer, content: dict[str, Any]) -> None:
    """Undo ``save_optimizer``. Raises what the optimizer raises."""
    if "file" in content:
        optimizer.load(folder / Path(content["file"]).name)
    else:
        optimizer.load_state_dict(content["state_dict"])


def remove_old(folder: Path, content: dict[str, Any]) -> None:
    """Remove the optimizer's files of earlier checkpoints, once a new one is on disk."""
    for path in folder.glob(OPTIMIZER_FILE.format("*")):
        if path.name != content.get("file"):
            path.unlink(missing_ok=True)


def load(path: Path, identity: dict[str, Any]) -> dict[str, Any]:
    """Read a checkpoint of the run that ``identity`` describes.

    Only tensors and plain values are unpickled, so a checkpoint from a stranger cannot run code.
    """
    advice = f"delete it to start this run anew, or restore {path.name} from a copy"
    try:
        with zipfile.ZipFile(path) as archive:
            # torch.load does not compare checksums: without this a flipped bit would load in silence.
            damaged = archive.testzip()
        if damaged is not None:
            raise ExampleError(f"checkpoint {path} is damaged (checksum of {damaged} differs): {advice}")
        content = torch.load(path, map_location="cpu", weights_only=True)
    except FileNotFoundError as error:
        raise ExampleError(f"no checkpoint {path}") from error
    except (zipfile.BadZipFile, EOFError) as error:
        raise ExampleError(f"checkpoint {path} is truncated or not a checkpoint ({error}): {advice}") from error
    except pickle.UnpicklingError as error:
        raise ExampleError(f"checkpoint {path} holds objects other than tensors and plain values and was not "
                           f"loaded: {advice}") from error  # fmt: skip
    except (OSError, RuntimeError) as error:
        raise ExampleError(f"checkpoint {path} cannot be read ({error}): {advice}") from error
    if not isinstance(content, dict) or content.get("format") != FORMAT or not KEYS <= content.keys():
        raise ExampleError(f"checkpoint {path} was not written by this example: {advice}")
    _check_identity(path, content["identity"], identity)
    return content


def _check_identity(path: Path, stored: dict[str, Any], wanted: dict[str, Any]) -> None:
    changed = [name for name in wanted if stored.get(name) != wanted[name]]
    if changed:
        lines = "".join(f"\n  {name}: {stored.get(name)} there, {wanted[name]} now" for name in changed)
        raise ExampleError(f"checkpoint {path} belongs to a run with other settings:{lines}\n"
                           "  repeat the old settings, or choose another --out for a new run")  # fmt: skip
