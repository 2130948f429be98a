"""The training example's text: where it may come from, how it is split, and which batches it makes."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from llama_support import text, tiny  # noqa: F401, I001 - text is a fixture; this puts the example on the path

import torch
import train_llama
from llama import data, tokens
from llama.errors import ExampleError

Figure = Callable[[str], None]


def test_alpaca_json(tmp_path: Path, figure: Figure) -> None:
    rows = [{"instruction": f"Add {a} and {b} {{braces}}.", "input": "now" if a % 2 else "", "output": f"It is {a + b}."}
            for a in range(20) for b in range(20)]  # fmt: skip
    as_json, as_lines = tmp_path / "alpaca.json", tmp_path / "alpaca.jsonl"
    as_json.write_text(json.dumps(rows))
    as_lines.write_text("\n".join(map(json.dumps, rows)))
    corpora = [data.load_corpus(tiny(tmp_path, path)) for path in (as_json, as_lines)]
    assert [len(corpus.records) for corpus in corpora] == [400, 400]
    assert {r.text for r in corpora[0].records} == {r.text for r in corpora[1].records}
    sample = next(r.text for r in corpora[0].records if r.name == "alpaca.json#23")
    assert sample == "### Instruction:\nAdd 1 and 3 {braces}.\n\n### Input:\nnow\n\n### Response:\nIt is 4."
    report = train_llama.run(tiny(tmp_path / "out", as_json, steps=3))
    assert report["data"]["records"]["train"] + report["data"]["records"]["validation"] == 400
    figure(f"alpaca: 400 rows, {report['data']['tokens']['train']} training tokens")

    as_json.write_text(json.dumps([{"instruction": "x"}]))
    with pytest.raises(ExampleError, match="row 0: field 'output'"):
        data.load_corpus(tiny(tmp_path, as_json))
    as_json.write_text('{"instruction": ')
    with pytest.raises(ExampleError, match="not valid JSON"):
        data.load_corpus(tiny(tmp_path, as_json))


def test_sources_are_deterministic_and_parts_disjoint(tmp_path: Path, text: Path, figure: Figure) -> None:
    first, second = (data.load_corpus(tiny(tmp_path, None, max_data_bytes=1 << 20)) for _ in range(2))
    assert first == second and 0.5 * (1 << 20) < first.size <= 1 << 20
    assert not any("site-packages" in record.name or "test" in record.name.split("/") for record in first.records)
    train, validation = tokens.split(first.records)
    assert not {r.name for r in train} & {r.name for r in validation} and len(train) + len(validation) == len(
        first.records
    )
    one = tmp_path / "one.txt"
    one.write_text("".join(f"line {i}\n" for i in range(5000)))
    cut = data.load_corpus(tiny(tmp_path, one)).records
    by_place = sorted(cut, key=lambda r: int(r.name.partition("#")[2]))
    assert len(cut) > 3 and "".join(r.text for r in by_place) == one.read_text()
    figure(f"standard library: {len(train)} files train, {len(validation)} validate, no file in both")


def test_batches_depend_on_seed_and_number_only() -> None:
    import numpy as np

    ids = np.arange(1001, dtype=np.uint16)
    one, two, other = (tokens.Batches(ids, 4, 10, seed) for seed in (1, 1, 2))
    forward = [one[k] for k in range(60)]
    assert all(torch.equal(two[k], forward[k]) for k in reversed(range(60)))
    assert not torch.equal(other[0], forward[0])
    # 100 windows, 25 batches: one epoch shows every window once.
    starts = sorted(int(row[0]) for batch in forward[:25] for row in batch)
    assert starts == list(range(0, 1000, 10))


def test_hf_dataset(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """With a stand-in for the ``datasets`` package: what is asked of it, and what its failures become."""
    import importlib.machinery
    import types

    fake = types.ModuleType("datasets")
    fake.__spec__ = importlib.machinery.ModuleSpec("datasets", None)
    asked: list[Any] = []
    rows = [{"text": f"row {i}", "id": i} for i in range(50)]

    def load_dataset(*args: Any, **more: Any) -> list[dict[str, Any]]:
        asked.append((args, more))
        if args[0] == "absent":
            raise ConnectionError("no network")
        return rows

    fake.load_dataset = load_dataset  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "datasets", fake)
    corpus = data.load_corpus(tiny(tmp_path, None, hf_dataset="some/name", hf_config="en"))
    assert len(corpus.records) == 50 and asked[0] == (("some/name", "en"), {"split": "train", "streaming": True})
    with pytest.raises(ExampleError, match="ConnectionError: no network.*--data"):
        data.load_corpus(tiny(tmp_path, None, hf_dataset="absent"))
    with pytest.raises(ExampleError, match="no text column 'body'; choose one of text, id"):
        data.load_corpus(tiny(tmp_path, None, hf_dataset="some/name", text_column="body"))
