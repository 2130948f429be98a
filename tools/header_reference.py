"""Pages of reference from the public headers (include/lowtide): one for each header, read by Doxygen.

Doxygen finds declarations and the comments in front of them; the pages show a type as the header has it, with the comments
of its members, and a function with its comment as text. The headers have plain comments: a filter marks them for Doxygen
(run as a program, this file is that filter: header_reference.py HEADER prints it marked).
"""

from __future__ import annotations

import re
import subprocess
import sys
import xml.etree.ElementTree as ET
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

FOLDER = "include/lowtide"
NO_TEXT = re.compile(r"\s*(//|/\*) (--|clang-format)")  # a heading between declarations
SETTINGS = """
INPUT = {root}/{folder}
FILE_PATTERNS = *.h
OUTPUT_DIRECTORY = {scratch}
INPUT_FILTER = "{python} {filter}"
GENERATE_HTML = NO
GENERATE_LATEX = NO
GENERATE_XML = YES
XML_PROGRAMLISTING = NO
EXTRACT_ALL = YES
MARKDOWN_SUPPORT = NO
AUTOLINK_SUPPORT = NO
ENABLE_PREPROCESSING = YES
MACRO_EXPANSION = YES
EXPAND_ONLY_PREDEF = YES
PREDEFINED = LT_API= __cplusplus
QUIET = YES
WARNINGS = NO
"""


def marked(text: str) -> str:
    """A header whose comments in front of declarations Doxygen takes for documentation, with the same lines."""
    lines = []
    in_comment = False  # of C, which began a line
    in_head = True
    for line in text.splitlines():
        in_head = in_head and not line.startswith("#")
        begins = None if in_head else re.match(r"\s*(//|/\*)(?!\*)", line)
        is_text = in_comment or begins and not NO_TEXT.match(line)
        in_comment = (in_comment or bool(begins and begins[1] == "/*")) and "*/" not in line
        if is_text:
            line = re.sub(r"([\\@<>&#%])", r"\\\1", line)
            line = re.sub(r"^(\s*)//", r"\1///", re.sub(r"^(\s*)/\*", r"\1/**", line))
        lines.append(line)
    return "\n".join(lines) + "\n"


@dataclass
class Entry:
    """A declaration: its name, the lines [first, last] of the header (from 1) that have it, and its comment."""

    name: str
    kind: str
    first: int
    last: int
    text: list[str]
    inside: str = ""  # the class that it is a function of


def paragraphs(node: ET.Element | None) -> list[str]:
    """The paragraphs and lists of a description, in Markdown."""
    found: list[str] = []
    for para in () if node is None else node:
        words = para.text or ""
        for part in para:
            if part.tag in ("itemizedlist", "orderedlist"):
                found += [words] if words.strip() else []
                found += ["* " + " ".join(" ".join(paragraphs(item)).split()) for item in part]
                words = part.tail or ""
            elif part.tag == "programlisting" or part.tag == "verbatim":
                words += "".join(part.itertext()) + (part.tail or "")
            else:
                words += "".join(part.itertext()) + (part.tail or "")
        if words.strip():
            found.append(escaped(" ".join(words.split())))
    return found


def escaped(text: str) -> str:
    """Prose that Markdown shows as it is, but for code marks."""
    parts = text.split("`")
    return "`".join(part if number % 2 else re.sub(r"([<*_])", r"\\\1", part) for number, part in enumerate(parts))


def entries_of(root: ET.Element, inside: str = "") -> Iterator[tuple[str, Entry]]:
    """The header and the entry of each declaration in a file of Doxygen's."""
    for member in root.iter("memberdef"):
        if member.get("prot") == "public" and member.get("kind") in ("function", "enum", "define", "variable", "typedef"):
            yield _entry(member, str(member.findtext("name")), inside)


def _entry(node: ET.Element, name: str, inside: str = "") -> tuple[str, Entry]:
    place = node.find("location")
    assert place is not None
    first = int(place.get("line", "0"))
    last = int(place.get("bodyend", "-1"))
    text = paragraphs(node.find("briefdescription")) + paragraphs(node.find("detaileddescription"))
    kind = str(node.get("kind"))
    whole = kind in ("enum", "struct", "class", "define") and int(place.get("bodystart", "0")) > 0
    return Path(place.get("file", "")).name, Entry(name, kind, first, last if whole else -1, text, inside)


def declarations(root: Path, scratch: Path) -> dict[str, list[Entry]]:
    """header → its public declarations, in order."""
    settings = SETTINGS.format(
        root=root, folder=FOLDER, scratch=scratch, python=sys.executable, filter=Path(__file__).resolve()
    )
    try:
        subprocess.run(["doxygen", "-"], input=settings, text=True, check=True, capture_output=True)
    except FileNotFoundError:
        raise RuntimeError("got no program doxygen, wanted one to read the headers: apt-get install doxygen") from None
    found: dict[str, list[Entry]] = {}
    for path in sorted((scratch / "xml").glob("*.xml")):
        if path.name in ("index.xml", "Doxyfile.xml"):
            continue
        for compound in ET.parse(path).getroot().iter("compounddef"):
            kind, name = compound.get("kind"), str(compound.findtext("compoundname")).split("::")[-1]
            if kind in ("struct", "class") and "_1_1" in str(compound.get("id")).replace("lowtide_1_1", "", 1).replace(
                "sign_1_1", "", 1
            ):
                continue  # a type within a class: its listing has it
            pairs = []
            if kind in ("struct", "class"):
                pairs.append(_entry(compound, name))
            if kind in ("class", "file", "namespace"):
                pairs += entries_of(compound, name if kind == "class" else "")
            for header, entry in pairs:
                if not any((entry.name, entry.first) == (other.name, other.first) for other in found.setdefault(header, [])):
                    found[header].append(entry)
    return {header: sorted(entries, key=lambda entry: entry.first) for header, entries in found.items()}


def pages(root: Path, scratch: Path) -> dict[str, str]:
    """Page of the site → its Markdown."""
    found = declarations(root, scratch)
    return {
        f"headers/{path.name}.md": page(path, found.get(path.name, []))
        for path in headers(root)
    }


def headers(root: Path) -> list[Path]:
    """The headers that have a page: all but the one that has a macro of the compiler's alone."""
    return [path for path in sorted((root / FOLDER).glob("*.h")) if path.name != "export.h"]


def page(path: Path, entries: list[Entry]) -> str:
    lines = path.read_text(encoding="utf-8").splitlines()
    sections: list[Section] = []
    structs = [entry for entry in entries if entry.kind == "struct"]
    covered = 0  # lines that a listing has shown
    for entry in entries:
        inside_struct = any(other.first < entry.first <= other.last for other in structs)
        if entry.first <= covered or inside_struct or is_hidden(entry, lines):
            continue
        code, last = listing(lines, entry)
        covered = max(covered, last)
        previous = sections[-1] if sections else None
        repeats = previous is not None and bool(entry.text) and entry.text == previous.text
        if previous and previous.inside == entry.inside and (repeats or entry.kind == previous.kind and is_plain(entry)):
            previous.code.append(code)
        else:
            sections.append(Section(entry.name, entry.kind, entry.inside, entry.text, [code]))
    parts = [f"# lowtide/{path.name}", head(lines)]
    for section in sections:
        parts += section.markdown()
        for name in re.findall(r'#include "lowtide/(\w+\.def)"', section.code[0]):
            parts += [f"`lowtide/{name}`:", f"```cpp\n{(path.parent / name).read_text(encoding='utf-8')}```"]
    return "\n\n".join(part for part in parts if part) + "\n"


@dataclass
class Section:
    """Declarations that share a comment."""

    name: str
    kind: str
    inside: str
    text: list[str]
    code: list[str]

    def markdown(self) -> list[str]:
        title = escaped(f"### {self.inside}::{self.name}" if self.inside else f"## {self.name}")
        block = "```cpp\n" + "\n".join(self.code) + "\n```"
        return [title, block, *self.text] if self.kind == "function" else [title, *self.text, block]


def is_plain(entry: Entry) -> bool:
    """Without a comment, so that the one before is about it, too."""
    return entry.kind in ("function", "define") and not entry.text


def is_hidden(entry: Entry, lines: list[str]) -> bool:
    """Members that a listing has, guards, calls of macros, and functions that are deleted."""
    if entry.kind == "define":
        return entry.name.endswith("_H_")
    if entry.kind == "variable":
        return bool(entry.inside)
    return entry.kind == "function" and (entry.name.isupper() or "= delete" in lines[entry.first - 1])


def head(lines: list[str]) -> str:
    """The comment on top of a header, in Markdown: what is indented, and not part of a list, is code."""
    text: list[str] = []
    room = ""  # "list", until an empty line, or "code", until a line that is not indented
    for raw in lines:
        if raw.startswith("#"):
            break
        line = re.sub(r"^\s?(//|/\*|\*/|\*) ?", "", raw).removesuffix("*/").rstrip()
        item = re.match(r"\s*(-|\d+\.) (.*)", line)
        if item:
            text += [""] if room != "list" else []
            text.append(f"{'*' if item[1] == '-' else item[1]} {escaped(item[2])}")
            room = "list"
        elif room != "list" and line.startswith("  "):
            text += ["```text" if ";" not in line else "```cpp"] if room != "code" else []
            text.append(line.removeprefix("  "))
            room = "code"
        else:
            text += ["```"] if room == "code" else []
            room = room if room == "list" and line else ""
            text.append(re.sub(r"^Conventions$", "**Conventions**\n", escaped(line.strip())))
    return "\n".join(text).strip()


def listing(lines: list[str], entry: Entry) -> tuple[str, int]:
    """The declaration as the header has it, and its last line. Of a class, the line that opens it."""
    first = last = entry.first
    if entry.kind == "class":
        return lines[first - 1].replace("LT_API ", "").strip().removesuffix("{").strip() + ";", first
    if entry.kind == "function":
        return prototype(lines, first)
    if entry.last >= first:
        last = entry.last
    elif entry.kind == "define":
        while lines[last - 1].endswith("\\"):
            last += 1
    else:
        while last < len(lines) and ";" not in lines[last - 1].split("//")[0]:
            last += 1
    if entry.kind == "struct" and re.match(r"#define \w+_INIT", lines[last] if last < len(lines) else ""):
        last += 2  # with the macro that sets it up
    code = lines[first - 1 : last]
    margin = min((len(line) - len(line.lstrip()) for line in code if line.strip()), default=0)
    return "\n".join(line[margin:] for line in code).replace("LT_API ", ""), last


def prototype(lines: list[str], first: int) -> tuple[str, int]:
    """A function's declaration without its body and what its constructor initializes, and the last line of that."""
    margin = len(lines[first - 1]) - len(lines[first - 1].lstrip())
    exported = "LT_API " in lines[first - 1]
    found, depth = "", 0
    for number, line in enumerate(lines[first - 1 :], first):
        code, mark, note = line[margin:].partition("//")
        code = code.removeprefix(" " * 7) if exported and number > first else code.replace("LT_API ", "")
        for place, sign in enumerate(code):
            depth += (sign in "([") - (sign in ")]")
            starts = sign == ":" and ":" not in (code[place - 1 : place], code[place + 1 : place + 2])
            if depth == 0 and (sign in "{;" or starts):
                return found.rstrip() + ";" + (f"  {mark}{note}" if mark and code.rstrip()[-1] in ";}" else ""), number
            found += sign
        found = found.rstrip() + "\n"
    return found, len(lines)


if __name__ == "__main__":
    print(marked(Path(sys.argv[1]).read_text(encoding="utf-8")), end="")
