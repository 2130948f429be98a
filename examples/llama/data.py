"""Text for training: where it comes from and how it is cut into records, always in the same order."""

from __future__ import annotations

import hashlib
import json
import os
import platform
import sysconfig
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from .config import Config
from .errors import ExampleError, require_packages

# Installed packages and tests differ between machines; tables of numbers teach a language model nothing.
STDLIB_SKIP = frozenset({"site-packages", "dist-packages", "test", "tests", "idlelib", "lib2to3", "encodings",
                         "pydoc_data", "ensurepip", "__pycache__"})  # fmt: skip
# Long enough to hold whole functions and paragraphs, short enough that a small file still gives some records.
RECORD_BYTES = 8 << 10

PROMPT = "### Instruction:\n{instruction}\n\n### Response:\n{output}"
PROMPT_WITH_INPUT = "### Instruction:\n{instruction}\n\n### Input:\n{input}\n\n### Response:\n{output}"


@dataclass(frozen=True)
class Record:
    """One piece of text that goes into training or validation as a whole."""

    name: str
    text: str

    @property
    def key(self) -> str:
        """A hash of name and text: it orders records independently of the machine."""
        return hashlib.sha256(f"{self.name}\0{self.text}".encode()).hexdigest()


@dataclass(frozen=True)
class Corpus:
    """The records of a source, with a description that names no folder of this machine."""

    source: str
    records: list[Record]

    @property
    def size(self) -> int:
        """Bytes of text."""
        return sum(len(record.text.encode()) for record in self.records)


def load_corpus(config: Config) -> Corpus:
    """Read the text that the settings ask for; at most ``max_data_bytes`` of it, chosen by hash order."""
    if config.hf_dataset is not None:
        corpus = _hf_dataset(config)
    elif config.data is not None:
        corpus = _user_data(Path(config.data))
    else:
        corpus = _stdlib()
    if not corpus.records:
        raise ExampleError(f"{corpus.source} holds no text (UTF-8, not empty): choose another --data")
    # Hash order instead of name order: the part kept of a large source is a fair sample of it.
    kept: list[Record] = []
    room = config.max_data_bytes
    for record in sorted(corpus.records, key=lambda r: r.key):
        room -= len(record.text.encode())
        if room < 0 and kept:
            break
        kept.append(record)
    corpus = Corpus(corpus.source, kept)
    # A token is at least one byte, and one ends each record: with fewer bytes no tokenizer has to be trained to know.
    most, needed = corpus.size + len(kept), sum(needed_tokens(config).values())
    if most < needed:
        raise too_small(config, corpus.source, f"at most {most} tokens", needed)
    return corpus


def needed_tokens(config: Config) -> dict[str, int]:
    """The fewest tokens that each part of the text must have."""
    return {"train": config.batch * config.context + 1, "validation": config.context + 1}


def too_small(config: Config, source: str, have: str, needed: int) -> ExampleError:
    """The error for a text with fewer tokens than that."""
    return ExampleError(f"{source}: too small: {have}, and --batch {config.batch} x --context {config.context} needs {needed}; "
                        "give more text or lower them")  # fmt: skip


def render_alpaca(row: dict[str, Any], where: str) -> str:
    """Render a row with ``instruction``, optional ``input`` and ``output`` to the prompt template."""
    for field in ("instruction", "output"):
        if not isinstance(row.get(field), str):
            raise ExampleError(f"{where}: field {field!r} is missing or is not text; "
                               "expected rows with instruction, input (may be empty) and output")  # fmt: skip
    template = PROMPT_WITH_INPUT if row.get("input") else PROMPT
    # format does not look into the values: braces in the data stay as they are.
    return template.format(instruction=row["instruction"], input=row.get("input", ""), output=row["output"])


def _stdlib() -> Corpus:
    root = Path(sysconfig.get_path("stdlib"))
    files = [path for path in _walk(root, STDLIB_SKIP) if path.suffix == ".py"]
    records = [Record(path.relative_to(root).as_posix(), text) for path in files if (text := _read(path))]
    return Corpus(f"Python {platform.python_version()} standard library", records)


def _user_data(path: Path) -> Corpus:
    if not path.exists():
        raise ExampleError(f"--data {path}: no such file or folder")
    if path.is_dir():
        files = _walk(path, frozenset({"__pycache__"}))
        records = [Record(file.relative_to(path).as_posix(), text) for file in files if (text := _read(file))]
    elif path.suffix in (".json", ".jsonl"):
        records = _alpaca(path)
    else:
        text = _read(path)
        if text is None:
            raise ExampleError(f"--data {path}: not a text file (expected UTF-8)")
        records = _cut(path.name, text)
    return Corpus(path.name or str(path), records)


def _walk(root: Path, skip: frozenset[str]) -> Iterator[Path]:
    for folder, subfolders, names in os.walk(root):
        # Sorting in place fixes the order in which os.walk descends.
        subfolders[:] = sorted(name for name in subfolders if name not in skip and not name.startswith("."))
        for name in sorted(names):
            path = Path(folder) / name
            if not name.startswith(".") and path.is_file():
                yield path


def _read(path: Path) -> str | None:
    """The text of a file, or None for binary and other encodings, which a folder of code may well hold."""
    try:
        raw = path.read_bytes()
    except OSError as error:
        raise ExampleError(f"cannot read {path}: {error.strerror}") from error
    if b"\0" in raw[:8192]:
        return None
    try:
        return raw.decode("utf-8")
    except UnicodeDecodeError:
        return None


def _cut(name: str, text: str) -> list[Record]:
    """Cut one text at line ends into records, so that training and validation never share a line."""
    records: list[Record] = []
    lines: list[str] = []
    size = 0
    for line in text.splitlines(keepends=True):
        lines.append(line)
        size += len(line)
        if size >= RECORD_BYTES:
            records.append(Record(f"{name}#{len(records)}", "".join(lines)))
            lines, size = [], 0
    if lines:
        records.append(Record(f"{name}#{len(records)}", "".join(lines)))
    return records


def _alpaca(path: Path) -> list[Record]:
    text = _read(path)
    if text is None:
        raise ExampleError(f"--data {path}: not a text file (expected UTF-8)")
    try:
        if path.suffix == ".jsonl":
            rows = [json.loads(line) for line in text.splitlines() if line.strip()]
        else:
            rows = json.loads(text)
    except json.JSONDecodeError as error:
        raise ExampleError(f"--data {path}: not valid JSON ({error})") from error
    if not isinstance(rows, list) or not all(isinstance(row, dict) for row in rows):
        raise ExampleError(f"--data {path}: expected a list of objects with instruction, input and output")
    return [Record(f"{path.name}#{i}", render_alpaca(row, f"--data {path}, row {i}")) for i, row in enumerate(rows)]


def _hf_dataset(config: Config) -> Corpus:
    require_packages(["datasets"])
    import datasets  # only this source needs it

    label = f"{config.hf_dataset}{'/' + config.hf_config if config.hf_config else ''} ({config.hf_split})"
    records: list[Record] = []
    room = config.max_data_bytes
    try:
        # Streaming reads only as much as is used, and leaves no copy of the whole data set behind.
        rows = datasets.load_dataset(config.hf_dataset, config.hf_config, split=config.hf_split, streaming=True)
        for index, row in enumerate(rows):
            if isinstance(row.get(config.text_column), str):
                text = row[config.text_column]
            elif "instruction" in row:
                text = render_alpaca(row, f"--hf-dataset {label}, row {index}")
            else:
                raise ExampleError(f"--hf-dataset {label} has no text column {config.text_column!r}; "
                                   f"choose one of {', '.join(row)} with --text-column")  # fmt: skip
            room -= len(text.encode())
            if room < 0:
                break
            if text.strip():
                records.append(Record(f"{label}#{index}", text))
    except ExampleError:
        raise
    except Exception as error:  # the library raises many unrelated types for "no network" and "no such data set"
        raise ExampleError(f"--hf-dataset {label} could not be read ({type(error).__name__}: {error}); "
                           "check its name and the network, or use --data with a local file")  from error  # fmt: skip
    return Corpus(label, records)
