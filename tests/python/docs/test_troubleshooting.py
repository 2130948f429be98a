"""Checks docs/troubleshooting.md: the sources have each quoted message, and the page has the messages that programs get."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path

import lowtide
import pytest
import torch

ROOT = Path(__file__).parents[3]
PAGE = (ROOT / "docs" / "troubleshooting.md").read_text(encoding="utf-8")
ROWS = re.findall(r"^\| `([^|]*)` \| [^|]* \| [^|]* \|$", PAGE, re.M)


def sources() -> str:
    """All Python and C++ sources, with consecutive literals joined."""
    paths = [*(ROOT / "python").rglob("*.py"), *(path for path in (ROOT / "src").rglob("*.cpp") if "_test" not in path.name)]
    text = "\n".join(path.read_text(encoding="utf-8") for path in paths)
    return re.sub(r"[\"']\s*\n\s*f?[\"']", "", text)


@pytest.fixture(scope="module")
def text() -> str:
    return sources()


def missing(message: str, text: str) -> list[str]:
    """The constant pieces of a message that the sources lack. `got A, wanted B` may be assembled."""
    pieces = [piece.strip(" ,:") for piece in re.split(r"…|got |, wanted ", message)]
    return [piece for piece in pieces if piece not in text]


@pytest.mark.parametrize("message", ROWS)
def test_a_message_on_the_page_is_in_the_sources(message, text):
    if any(word in message for word in ("torch.float64", "got eps=0")):  # values in it: the tests below get these
        return
    assert missing(message, text) == []


def test_a_message_that_is_gone_is_noticed(text):
    assert missing("got … for a teapot, wanted torch.strided (dense)", text) == ["for a teapot"]
    assert missing("no plug-in, …build from source with the CUDA toolkit", text) == []


def weight(*sizes: int, dtype: torch.dtype = torch.float32) -> torch.nn.Parameter:
    found = torch.nn.Parameter(torch.randn(*sizes or (128, 512)).to(dtype))
    found.grad = torch.randn_like(found)
    return found


def stepped(param: torch.nn.Parameter | None = None, **options: object) -> lowtide.AdamW:
    opt = lowtide.AdamW([weight() if param is None else param], **options)  # type: ignore[arg-type]
    opt.step()
    return opt


def damaged(folder: Path, change: Callable[[bytearray], object]) -> None:
    path = folder / "state"
    opt = stepped()
    opt.save(path)
    content = bytearray(path.read_bytes())
    change(content)
    path.write_bytes(content)
    opt.load(path)


def bad_gradient(_: Path) -> None:
    param = weight()
    param.grad[0, 0] = torch.nan
    stepped(param, nonfinite="raise")


def sparse(_: Path) -> None:
    layer = torch.nn.Embedding(100, 64, sparse=True)
    layer(torch.tensor([1])).sum().backward()
    lowtide.AdamW(layer.parameters()).step()


MISTAKES: dict[str, Callable[[Path], object]] = {
    "a misspelt option": lambda _: lowtide.AdamW([weight()], weight_decy=0.1),  # type: ignore[call-arg]
    "an unknown format": lambda _: lowtide.AdamW([weight()], state="int8"),
    "a long average in 4 bits": lambda _: lowtide.AdamW([weight()], state="dynamic4", betas=(0.95, 0.999)),
    "float8 to nearest": lambda _: lowtide.AdamW([weight()], state="float8", rounding="nearest"),
    "float64": lambda _: lowtide.AdamW([weight(dtype=torch.float64)]),
    "eps of zero": lambda _: lowtide.AdamW([weight()], eps=0),
    "an expanded parameter": lambda _: lowtide.AdamW([torch.nn.Parameter(torch.randn(1, 8).expand(4, 8))]),
    "a name that the module lacks": lambda _: lowtide.override(torch.nn.Linear(4, 4), "wieght", lr=1.0),
    "a NaN": bad_gradient,
    "a sparse gradient": sparse,
    "a budget that is too small": lambda _: stepped(memory=lowtide.Memory(host="64KiB")),
    "no such scratch directory": lambda p: stepped(memory=lowtide.Memory(host="64KiB", disk=p / "none")),
    "another format": lambda _: stepped(state="bf16").load_state_dict(stepped().state_dict()),
    "other parameters": lambda _: lowtide.AdamW([weight(), weight()]).load_state_dict(stepped().state_dict()),
    "a flipped bit": lambda p: damaged(p, lambda content: content.__setitem__(5000, content[5000] ^ 1)),
    "a short file": lambda p: damaged(p, lambda content: content.__delitem__(slice(-100, None))),
    "another file": lambda p: damaged(p, lambda content: content.__setitem__(0, 0)),
}


@pytest.mark.parametrize("mistake", MISTAKES)
def test_the_page_has_what_a_program_gets(mistake, tmp_path, figure):
    with pytest.raises((ValueError, TypeError, OSError, MemoryError)) as caught:
        MISTAKES[mistake](tmp_path)
    said = str(caught.value)
    rows = [row for row in ROWS if re.search(".*".join(map(re.escape, row.split("…"))), said, re.S)]
    figure(f"{mistake}: {said[:60]}…: rows {len(rows)}")
    assert len(rows) == 1, f"{said!r} is quoted by {rows}"
