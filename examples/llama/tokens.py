"""Tokenizer, split into training and validation, the cache of both, and batches in a fixed order."""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from .config import Config
from .data import Corpus, Record, needed_tokens, too_small
from .errors import ExampleError
from .files import write_atomically, write_json

if TYPE_CHECKING:  # only what trains imports it: it takes seconds
    import torch

END_OF_TEXT = "<|endoftext|>"
VALIDATION_SHARE = 0.05


@dataclass(frozen=True)
class Tokens:
    """Token ids of both parts, and what is known about them."""

    train: np.ndarray
    validation: np.ndarray
    info: dict[str, Any]

    @property
    def vocab(self) -> int:
        """Number of different ids; a small text may have fewer than asked for."""
        return int(self.info["vocab"])


def split(records: list[Record]) -> tuple[list[Record], list[Record]]:
    """Whole records go to validation until it holds its share; the hash order makes the choice arbitrary but fixed."""
    ordered = sorted(records, key=lambda record: record.key)
    goal = VALIDATION_SHARE * sum(len(record.text) for record in ordered)
    count = size = 0
    while count < len(ordered) and size < goal:
        size += len(ordered[count].text)
        count += 1
    by_name = sorted(ordered[count:], key=lambda record: record.name)
    return by_name, sorted(ordered[:count], key=lambda record: record.name)


def prepare(config: Config, corpus: Corpus) -> Tokens:
    """Train the tokenizer and encode the corpus, or take both from the cache in the output folder."""
    folder = Path(config.out) / "data"
    digest = hashlib.sha256(f"{version('tokenizers')} {config.vocab} {VALIDATION_SHARE}".encode())
    for record in corpus.records:  # already in hash order
        digest.update(record.key.encode())
    fingerprint = digest.hexdigest()
    try:
        tokens = load(config)
    except ExampleError:
        tokens = None
    if tokens is None or tokens.info["fingerprint"] != fingerprint:
        tokens = _encode(config, corpus, fingerprint, folder)
    _check_size(config, tokens)
    return tokens


def load(config: Config) -> Tokens:
    """Read the cache; an error if it is absent or not what was written."""
    folder = Path(config.out) / "data"
    try:
        info = json.loads((folder / "info.json").read_text())
        parts = [np.load(folder / f"{part}.npy", mmap_mode="r") for part in ("train", "validation")]
        if [_digest(part) for part in parts] != [info["train_sha256"], info["validation_sha256"]]:
            raise ValueError("contents differ from what was written")
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise ExampleError(f"no usable tokens in {folder} ({error}); run without --resume to make them anew") from error
    return Tokens(parts[0], parts[1], info)


def _encode(config: Config, corpus: Corpus, fingerprint: str, folder: Path) -> Tokens:
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

    train, validation = split(corpus.records)
    if not train:
        raise ExampleError(f"{corpus.source}: {len(corpus.records)} record(s) leave nothing to train on besides "
                           "validation; give more text")  # fmt: skip
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=config.vocab,
        special_tokens=[END_OF_TEXT],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),  # every byte has an id: no text is "unknown"
        show_progress=False,
    )
    # The tokenizer sees the training part only, or validation would measure text it was fitted to.
    tokenizer.train_from_iterator((record.text for record in train), trainer)
    end = tokenizer.token_to_id(END_OF_TEXT)

    def encode(records: list[Record]) -> np.ndarray:
        ids: list[np.ndarray] = []
        for encoding in tokenizer.encode_batch([record.text for record in records]):
            ids.append(np.asarray([*encoding.ids, end], dtype=np.uint16))
        return np.concatenate(ids)

    arrays = {"train": encode(train), "validation": encode(validation)}
    info = {
        "fingerprint": fingerprint,
        "source": corpus.source,
        "vocab": tokenizer.get_vocab_size(),
        "bytes": corpus.size,
        "records": {"train": len(train), "validation": len(validation)},
        "tokens": {name: int(array.size) for name, array in arrays.items()},
        **{f"{name}_sha256": _digest(array) for name, array in arrays.items()},
    }
    write_atomically(folder / "tokenizer.json", lambda file: file.write(tokenizer.to_str().encode()))
    for name, array in arrays.items():
        write_atomically(folder / f"{name}.npy", lambda file, array=array: np.save(file, array))
    write_json(folder / "info.json", info)  # last: its presence says that the others are whole
    return Tokens(arrays["train"], arrays["validation"], info)


def _digest(array: np.ndarray) -> str:
    return hashlib.sha256(np.ascontiguousarray(array)).hexdigest()


def _check_size(config: Config, tokens: Tokens) -> None:
    for part, minimum in needed_tokens(config).items():
        have = tokens.info["tokens"][part]
        if have < minimum:
            raise too_small(config, tokens.info["source"], f"{have} {part} tokens", minimum)


class Batches:
    """Windows of the training tokens; batch k is a function of the seed and k alone.

    That makes the position in the data one number: nothing else has to be stored to continue a run, and two runs
    with the same seed see the same text in the same order whatever their optimizer.
    """

    def __init__(self, tokens: np.ndarray, batch: int, context: int, seed: int) -> None:
        self._tokens, self._batch, self._context, self._seed = tokens, batch, context, seed
        self._windows = (tokens.size - 1) // context
        self._epoch = -1
        self._order = np.empty(0, dtype=np.int64)

    def __getitem__(self, index: int) -> torch.Tensor:
        """Ids of batch ``index``, shape (batch, context + 1): the extra one is the last target."""
        import torch

        rows = [self._window(index * self._batch + row) for row in range(self._batch)]
        return torch.from_numpy(np.stack(rows))

    def _window(self, number: int) -> np.ndarray:
        epoch, place = divmod(number, self._windows)
        if epoch != self._epoch:
            self._epoch = epoch
            self._order = np.random.default_rng([self._seed, epoch]).permutation(self._windows)
        start = int(self._order[place]) * self._context
        return self._tokens[start : start + self._context + 1].astype(np.int64)


def validation_windows(tokens: np.ndarray, context: int, count: int) -> torch.Tensor:
    """Up to ``count`` windows spread evenly over the validation tokens, shape (count, context + 1)."""
    import torch

    available = (tokens.size - 1) // context
    count = min(count, available)
    starts = [i * available // count * context for i in range(count)]
    return torch.from_numpy(np.stack([tokens[s : s + context + 1].astype(np.int64) for s in starts]))
