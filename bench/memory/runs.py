"""One run, and the runs that are stored."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from dataclasses import asdict
from datetime import date
from functools import partial
from pathlib import Path
from typing import Any

from common import machine
from llama import memory, paged
from llama.config import Config
from llama.data import load_corpus
from llama.errors import ExampleError
from quality.store import Store

from memory.variants import VARIANTS, Variant


def text_of(data: str) -> bytes:
    """The instructions, one after another; a byte is a token."""
    records = load_corpus(Config(data=data, batch=1, context=16)).records
    return "\n\n".join(record.text for record in records).encode()


def conditions(job: paged.Job, text: bytes) -> dict[str, Any]:
    """Stored runs have the same ones. A revision does not say what was built, so that the compiled files count, too."""
    from lowtide import _core

    built = hashlib.sha256()
    for file in sorted(Path(_core.__file__).parent.glob("*.so")):
        built.update(file.read_bytes())
    return {"job": asdict(job), "text": hashlib.sha256(text).hexdigest(), "revision": machine.revision(), "built": built.hexdigest()}


def measure(job: paged.Job, variant: Variant, text: bytes, disk: str | None) -> dict[str, Any]:
    """One run, in this process. Every variant begins with the same weights and sees the same batches."""
    import numpy
    import torch
    from quality.corpus import windows

    if job.vocab_size < 256:
        raise ExampleError(f"--vocab_size: got {job.vocab_size}, wanted 256 or more: a byte of the text is a token")
    source = torch.from_numpy(numpy.frombuffer(text, dtype=numpy.uint8).copy())
    if source.numel() <= job.seq_len + 1:
        raise ExampleError(f"--seq_len: got {job.seq_len}, wanted less than the text, which has {source.numel()} bytes")
    generator = torch.Generator().manual_seed(0)
    batches = [windows(source, job.batch_size, job.seq_len + 1, generator) for _ in range(job.train_steps)]
    found = paged.train(job, lambda params, memory: variant.make(params, job.lr, memory), batches, disk)
    return {"api": variant.api, "name": variant.name, "date": date.today().isoformat(), "load_average": machine.load_average(),
            "peak_bytes": found.peak_bytes, **asdict(found)}  # fmt: skip


def collect(
    job: paged.Job, text: bytes, variants: list[Variant], folder: Path, disk: str | None, told: Callable[[str], None]
) -> list[dict[str, Any]]:
    """Runs the variants that have no stored result, each in a process of its own; all that are stored then, of this revision and build."""
    store = Store(folder, conditions(job, text))
    for variant in variants:
        if store.make(variant.id, partial(memory.alone, measure, job, variant, text, disk)):
            told(f"{variant.id}: {store.get(variant.id)}")
    return [found for variant in VARIANTS if (found := store.get(variant.id))]
