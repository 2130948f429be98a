"""Training text: its source, its tokens, the split into training and validation, and batches in a fixed order."""

from __future__ import annotations

import hashlib
import json
import os
import platform
import sysconfig
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from .common import ExampleError
from .config import Config

if TYPE_CHECKING:  # so that wrong options fail before these imports
    import numpy as np
    import torch

# Installed packages and tests differ between machines, and tables of numbers teach a language model nothing.
STDLIB_SKIP = frozenset({"site-packages", "dist-packages", "test", "tests", "idlelib", "lib2to3", "encodings", "pydoc_data",
                         "ensurepip", "__pycache__"})  # fmt: skip
# Long enough for whole functions and paragraphs, short enough that even a small file gives several records.
RECORD_BYTES = 8 << 10
END_OF_TEXT = "<|endoftext|>"
VALIDATION_SHARE = 0.05


class Record(NamedTuple):
    """A piece of text that belongs to training or validation as a whole."""

    name: str
    text: str

    @property
    def key(self) -> str:
        """A hash that orders records the same on every machine."""
        return hashlib.sha256(f"{self.name}\0{self.text}".encode()).hexdigest()


@dataclass(frozen=True)
class Corpus:
    source: str  # contains no folder of this machine
    records: list[Record]  # in the order of their keys

    @property
    def size(self) -> int:
        return sum(len(record.text.encode()) for record in self.records)


def load_corpus(config: Config) -> Corpus:
    """The text of `config.data` (a file, a folder, Alpaca's JSON; None: Python's standard library), at most
    `max_data_bytes`."""
    path = Path(config.data) if config.data is not None else None
    if path is None:
        root = Path(sysconfig.get_path("stdlib"))
        source, found = f"Python {platform.python_version()} standard library", _files(root, STDLIB_SKIP, ".py")
    elif path.is_dir():
        source, found = path.name or str(path), _files(path, frozenset({"__pycache__"}), "")
    elif path.is_file():
        text = _read(path)
        if text is None:
            raise ExampleError(f"--data {path}: not a text file (expected UTF-8)")
        source, found = path.name, _alpaca(path, text) if path.suffix in (".json", ".jsonl") else _cut(path.name, text)
    else:
        raise ExampleError(f"--data {path}: no such file or folder")
    return limited(source, found, config.max_data_bytes)


def limited(source: str, records: Iterable[Record], most: int) -> Corpus:
    """Keeps records in the order of hashes instead of names, so that the kept part of a large source is a fair sample."""
    kept: list[Record] = []
    for record in sorted(records, key=lambda record: record.key):
        most -= len(record.text.encode())
        if most < 0 and kept:
            break
        kept.append(record)
    if len(kept) < 2:
        raise ExampleError(f"{source}: too small: got {len(kept)} pieces of text (UTF-8, not empty), wanted one to train on and one "
                           "to validate on; give more text")  # fmt: skip
    return Corpus(source, kept)


def render_alpaca(row: Any, where: str) -> str:
    """Renders a row with `instruction`, `output` and perhaps `input` as Alpaca's prompt."""
    if not isinstance(row, dict) or not all(isinstance(row.get(field), str) for field in ("instruction", "output")):
        raise ExampleError(f"{where}: expected texts instruction, output and perhaps input")
    parts = {"Instruction": row["instruction"], "Input": row.get("input"), "Response": row["output"]}
    return "\n\n".join(f"### {name}:\n{text}" for name, text in parts.items() if text or name != "Input")


def _files(root: Path, skip: frozenset[str], suffix: str) -> Iterator[Record]:
    for folder, subfolders, names in os.walk(root):
        # Sorting in place fixes the order in which os.walk descends.
        subfolders[:] = sorted(name for name in subfolders if name not in skip and not name.startswith("."))
        for path in (Path(folder) / name for name in sorted(names)):
            if not path.name.startswith(".") and path.name.endswith(suffix) and path.is_file() and (text := _read(path)):
                yield Record(path.relative_to(root).as_posix(), text)


def _read(path: Path) -> str | None:
    """The text of a file; None for binary files and other encodings, which a folder of code may contain."""
    raw = path.read_bytes()
    try:
        return None if b"\0" in raw[:8192] else raw.decode("utf-8")
    except UnicodeDecodeError:
        return None


def _cut(name: str, text: str) -> Iterator[Record]:
    """Cuts a text at line ends, so that training and validation share no line."""
    lines: list[str] = []
    number = size = 0
    for line in text.splitlines(keepends=True):
        lines.append(line)
        size += len(line)
        if size >= RECORD_BYTES:
            yield Record(f"{name}#{number}", "".join(lines))
            lines, size, number = [], 0, number + 1
    if lines:
        yield Record(f"{name}#{number}", "".join(lines))


def _alpaca(path: Path, text: str) -> list[Record]:
    try:
        rows = [json.loads(line) for line in text.splitlines() if line.strip()] if path.suffix == ".jsonl" else json.loads(text)
    except json.JSONDecodeError as error:
        raise ExampleError(f"--data {path}: not valid JSON ({error})") from error
    if not isinstance(rows, list):
        raise ExampleError(f"--data {path}: expected a list of objects with instruction, input and output")
    return [Record(f"{path.name}#{i}", render_alpaca(row, f"--data {path}, row {i}")) for i, row in enumerate(rows)]


@dataclass(frozen=True)
class Tokens:
    train: np.ndarray  # uint16
    validation: np.ndarray  # uint16
    vocab: int  # number of ids; a small text may give fewer than requested
    source: str
    sha256: str  # of both arrays


def split(records: list[Record]) -> tuple[list[Record], list[Record]]:
    """Whole records, in the order of keys, go to validation until it has its share. Each part is then ordered by name."""
    goal = VALIDATION_SHARE * sum(len(record.text) for record in records)
    count = size = 0
    while size < goal:
        size += len(records[count].text)
        count += 1
    return sorted(records[count:]), sorted(records[:count])


def prepare(config: Config, corpus: Corpus) -> Tokens:
    """Trains a tokenizer, encodes the corpus, and stores both in the folder `data` of the output."""
    import numpy as np
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

    parts = dict(zip(("train", "validation"), split(corpus.records), strict=True))
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=config.vocab,
        special_tokens=[END_OF_TEXT],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),  # every byte has an id, so no text is "unknown"
        show_progress=False,
    )
    # The tokenizer sees only the training part. Otherwise validation would measure text that it was fitted to.
    tokenizer.train_from_iterator((record.text for record in parts["train"]), trainer)
    end = tokenizer.token_to_id(END_OF_TEXT)
    arrays = {}
    needed = {"train": config.batch * config.context + 1, "validation": config.context + 1}
    for part, records in parts.items():
        ids = [[*encoding.ids, end] for encoding in tokenizer.encode_batch([record.text for record in records])]
        arrays[part] = np.concatenate([np.asarray(one, dtype=np.uint16) for one in ids]) if ids else np.empty(0, np.uint16)
        if arrays[part].size < needed[part]:
            raise ExampleError(f"{corpus.source}: too small: {arrays[part].size} {part} tokens, and --batch {config.batch} x "
                               f"--context {config.context} needs {needed[part]}; give more text or lower them")  # fmt: skip
    folder = Path(config.out) / "data"
    folder.mkdir(parents=True, exist_ok=True)
    tokenizer.save(str(folder / "tokenizer.json"))
    np.savez(folder / "tokens.npz", **arrays, vocab=tokenizer.get_vocab_size(), source=corpus.source)
    return load(config)


def load(config: Config) -> Tokens:
    """Reads what `prepare` has stored."""
    import numpy as np

    with np.load(Path(config.out) / "data" / "tokens.npz") as kept:
        train, validation = kept["train"], kept["validation"]
        digest = hashlib.sha256(train.tobytes() + validation.tobytes()).hexdigest()
        return Tokens(train, validation, int(kept["vocab"]), str(kept["source"]), digest)


class Batches:
    """Windows of the training tokens. Batch k depends only on the seed and k.

    So the position in the data is one number: continuing a run needs nothing else, and two runs with the same seed see the same
    text in the same order, whatever their optimizer.
    """

    def __init__(self, tokens: np.ndarray, batch: int, context: int, seed: int) -> None:
        self._tokens, self._batch, self._context, self._seed = tokens, batch, context, seed
        self._windows = (tokens.size - 1) // context
        self._epoch = -1
        self._order: Any = None

    def __getitem__(self, index: int) -> torch.Tensor:
        """The ids of batch `index`, shape (batch, context + 1). The extra one is the last target."""
        import numpy as np
        import torch

        rows = [self._window(index * self._batch + row) for row in range(self._batch)]
        return torch.from_numpy(np.stack(rows))

    def _window(self, number: int) -> np.ndarray:
        import numpy as np

        epoch, place = divmod(number, self._windows)
        if epoch != self._epoch:
            self._epoch = epoch
            self._order = np.random.default_rng([self._seed, epoch]).permutation(self._windows)
        start = int(self._order[place]) * self._context
        return self._tokens[start : start + self._context + 1].astype(np.int64)


def validation_windows(tokens: np.ndarray, context: int, count: int) -> torch.Tensor:
    """Up to `count` windows spread evenly over the validation tokens, shape (count, context + 1)."""
    import numpy as np
    import torch

    available = (tokens.size - 1) // context
    count = min(count, available)
    starts = [i * available // count * context for i in range(count)]
    return torch.from_numpy(np.stack([tokens[s : s + context + 1].astype(np.int64) for s in starts]))
