#!/usr/bin/env python3
"""Checks documents and comments against the tree. Prints each offence as file:line and exits 1.

* A link in a page names an existing file or folder, and a heading that the page has.
* A path in code marks (`src/optim`, `tools/check_docs.py`) names an existing file or folder.
* The index docs/README.md lists every page of docs/.
* No comment or docstring opens with "Of" or "What": such a sentence has lost its subject.
* Pages of docs/ and README.md have none of the un-English PHRASES, and docs/ has at most LIMIT words.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import unquote

ROOT = Path(__file__).resolve().parent.parent
FOLDERS = ("bench", "cmake", "docs", "examples", "include", "python", "src", "tests", "tools")
SOURCES = {".h", ".hpp", ".inc", ".def", ".c", ".cpp", ".cu", ".py", ".cmake", ".map", ".sh", ".txt", ".toml"}
SKIPPED = {"build", ".venv", "__pycache__"}

LINK = re.compile(r"\]\(([^)\s]+)\)")
CODE = re.compile(r"`([^`\s]+)`")
PHRASES = {  # pattern: what to write instead
    r"\bof \d+ bits\b": "8-bit",
    r"\bof then\b": "at that time",
    r"\bas ever\b": "as before",
    r"[Rr]efused by name": "raises an error that names it",
    r"\blies? (in|on|beside)\b": "is in",
    r"LLaMA of \d": "LLaMA with",
    r" alone[,.]": "only",
    r"(^|[.:] )Of [a-z]": "a subject first",
}
LIMIT = 45_000
FRAGMENT = re.compile(r'(?:^|\s)(?://+!?<?|#|/\*\*?|"""|^\s\*) ?(?:Of|What)\b')


def files(suffixes: set[str]) -> Iterator[Path]:
    for path in sorted([*ROOT.iterdir(), *(found for top in FOLDERS for found in (ROOT / top).rglob("*"))]):
        if path.is_file() and path.suffix in suffixes and not SKIPPED & set(path.relative_to(ROOT).parts):
            yield path


def prose(text: str) -> Iterator[tuple[int, str]]:
    """The lines of a page outside code blocks, with their numbers."""
    inside = False
    for number, line in enumerate(text.splitlines(), 1):
        if line.lstrip().startswith("```"):
            inside = not inside
        elif not inside:
            yield number, line


def anchors(page: Path) -> set[str]:
    """The names that GitHub gives to a page's headings."""
    found = set()
    for _, line in prose(page.read_text(encoding="utf-8")):
        if heading := re.match(r"#+ (.*)", line):
            words = re.sub(r"[^\w\- ]", "", heading[1].lower())
            found.add(words.replace(" ", "-"))
    return found


def bad_link(page: Path, link: str) -> str | None:
    if re.match(r"[a-z]+:", link):
        return None
    name, _, anchor = unquote(link).partition("#")
    target = (page.parent / name).resolve() if name else page
    if not target.exists():
        return "no such file or folder"
    if anchor and target.suffix == ".md" and anchor not in anchors(target):
        return "no such heading"
    return None


def expanded(name: str) -> list[str]:
    """Expands a_{x,y}.h to both names."""
    match = re.search(r"\{([^{}]*)\}", name)
    if not match:
        return [name]
    return [path for word in match[1].split(",") for path in expanded(name[: match.start()] + word + name[match.end() :])]


def bad_path(word: str) -> str | None:
    """The error if a word in code marks looks like a path of the tree but is none."""
    if not re.fullmatch(rf"(?:{'|'.join(FOLDERS)})/[\w./{{}},*+-]+", word) or "build/" in word:
        return None
    for name in expanded(word.rstrip("/.,")):
        if not (any(ROOT.glob(name)) if "*" in name else (ROOT / name).exists()):
            return f"no {name} in the tree"
    return None


def offences_of_page(page: Path) -> Iterator[tuple[int, str, str]]:
    history = page.name == "CHANGELOG.md"  # may name files that are gone
    read_by_users = page.is_relative_to(ROOT / "docs") or page == ROOT / "README.md"
    for number, line in prose(page.read_text(encoding="utf-8")):
        for phrase, better in PHRASES.items() if read_by_users else ():
            if found := re.search(phrase, line):
                yield number, found[0].strip(), f"write: {better}"
        for link in LINK.findall(re.sub(r"`[^`]*`", "", line)) + re.findall(r"\[`[^`]*`\]\(([^)\s]+)\)", line):
            if problem := bad_link(page, link):
                yield number, link, problem
        for word in [] if history else CODE.findall(line):
            if problem := bad_path(word):
                yield number, word, problem


def offences_of_source(path: Path) -> Iterator[tuple[int, str, str]]:
    for number, line in enumerate(path.read_text(encoding="utf-8", errors="replace").splitlines(), 1):
        if FRAGMENT.search(line):
            yield number, line.strip()[:60], 'a comment opens with "Of" or "What": give the sentence a subject'


def main() -> int:
    offences: list[str] = []
    fragments = count = 0
    for page in files({".md"}):
        count += 1
        offences += [f"{page.relative_to(ROOT)}:{n}: {what}: {why}" for n, what, why in offences_of_page(page)]
    words = sum(len(page.read_text(encoding="utf-8").split()) for page in (ROOT / "docs").rglob("*.md"))
    if words > LIMIT:
        offences.append(f"docs: got {words} words, wanted {LIMIT} at most: make a page shorter")
    index = ROOT / "docs" / "README.md"
    for page in sorted((ROOT / "docs").rglob("*.md")):
        name = page.relative_to(index.parent).as_posix()
        if page != index and "benchmarks" not in page.parts and f"({name})" not in index.read_text(encoding="utf-8"):
            offences.append(f"docs/README.md: does not name {name}")
    for path in [ROOT / "Makefile", *files(SOURCES)]:
        count += 1
        found = [f"{path.relative_to(ROOT)}:{n}: {what}: {why}" for n, what, why in offences_of_source(path)]
        fragments += len(found)
        offences += found
    for offence in offences:
        print(offence)
    print(f"{count} files checked, {len(offences)} offences, fragments: {fragments}")
    return 1 if offences or count == 0 else 0


if __name__ == "__main__":
    sys.exit(main())
