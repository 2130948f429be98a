"""Checkpoints that are whole or refused: everything needed to continue a run bit for bit."""

from __future__ import annotations

import pickle
import zipfile
from pathlib import Path
from typing import Any

import torch

from .errors import ExampleError
from .files import write_atomically

FORMAT = "llama-example-checkpoint-1"
KEYS = {"format", "identity", "environment", "step", "batch_hash", "model", "optimizer", "scheduler", "rng", "history", "sessions"}


def save(path: Path, content: dict[str, Any]) -> None:
    """Write a checkpoint; the one before stays until the new one is on disk."""
    write_atomically(path, lambda file: torch.save({"format": FORMAT, **content}, file))


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
