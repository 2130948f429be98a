"""MkDocs' hook for the site of docs/ (mkdocs.yml): adds pages from elsewhere in the tree, and links to them.

On GitHub and in an editor, pages of docs/ link to files anywhere in the tree. Here such a file becomes a page of the site:
documents of the root (ARCHITECTURE.md) beside those of docs/, sources (include/lowtide/sign.h) as listings under source/. A
public header becomes a page with a heading for each type and function. As griffe's extension, this file also lists the options
of optimizers in their signatures.
"""

from __future__ import annotations

import ast
import posixpath
import re
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import griffe
from mkdocs.structure.files import File, Files

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT / "tools"))  # MkDocs loads this file by its path
import check_docs  # noqa: E402

LINK = re.compile(r"(\]\()([^)\s#]+)((?:#[^)\s]*)?\))")
OF_THE_SITE = ("README.md",)  # the root's README is for the repository; the site's home is docs/README.md
REFERENCE = "python-api.md"  # the page with docstrings
HEADERS = "include/lowtide"
BELOW_GUIDES = ("headers/", "benchmarks/", "project/", "CHANGELOG", "TRUST")  # in the results of a search
OPTIONS = "python/lowtide/options/options.py"
TYPE = re.compile(r"^(?:typedef )?(?:enum class|enum|struct|class)(?: LT_API)? (\w+)(?: final)?(?: : [^{;]*)? \{", re.M)
OTHERS = re.compile(r"^(?!namespace|extern|using|[/ *]).*?(?:#define |\b)(\w+)(?<!_H_)(?:\(| =)", re.M)
LANGUAGES = {".h": "cpp", ".def": "cpp", ".inc": "cpp", ".cpp": "cpp", ".cu": "cpp", ".c": "c", ".py": "python"}


def page_of(path: str) -> str | None:
    """The page that shows a file of the tree; None for files that the site does not show, and for folders."""
    if path.startswith("docs/"):
        return path.removeprefix("docs/")
    if path in OF_THE_SITE:
        return "README.md"
    if not (ROOT / path).is_file():
        return None
    if (ROOT / path).parent == ROOT / HEADERS and path.endswith(".h"):
        return f"headers/{Path(path).name}.md"
    return path if "/" not in path and path.endswith(".md") else f"source/{path}.md"


def file_of(page: str) -> str:
    """The file of the tree that a page shows."""
    for room, folder in (("source/", ""), ("headers/", HEADERS + "/")):
        if page.startswith(room):
            return folder + page.removeprefix(room).removesuffix(".md")
    return page if "/" not in page and not (ROOT / "docs" / page).exists() else f"docs/{page}"


def linked_from(text: str, page: str) -> set[str]:
    """The files of the tree that a page's prose links to."""
    folder = posixpath.dirname(file_of(page))
    targets = (target for _, line in check_docs.prose(text) for _, target, _ in LINK.findall(line))
    return {posixpath.normpath(posixpath.join(folder, one)) for one in targets if not re.match(r"[a-z]+:", one)}


def headers() -> list[Path]:
    """The headers that have a page: all except export.h, whose one macro is for the compiler."""
    return [path for path in sorted((ROOT / HEADERS).glob("*.h")) if path.name != "export.h"]


def declarations(text: str) -> Iterator[str]:
    """The parts of a header between empty lines that no braces enclose except a namespace's."""
    part: list[str] = []
    depth = 0
    for line in text.splitlines():
        code = re.sub(r"//.*|/\*.*?\*/|/\*.*|^ \*.*", "", line)
        if not re.match(r'namespace|extern "C"|\}  // namespace', line):
            depth += code.count("{") - code.count("}")
        if line or depth > 0:
            part.append(line)
        elif part:
            yield "\n".join(part)
            part, depth = [], 0
    yield "\n".join(part)


def header_page(path: Path) -> str:
    text = f"# lowtide/{path.name}\n"
    for code in declarations(path.read_text(encoding="utf-8").replace("LT_API ", "")):
        if name := TYPE.search(code) or OTHERS.search(code):
            text += f"\n## {name[1]}\n"
        text += f"\n```cpp\n{code}\n```\n"
        listed = dict.fromkeys(re.findall(r"lowtide/(\w+\.def)", code)) if not code.startswith("#include") else ()
        for included in listed:
            text += f"\n`lowtide/{included}`:\n\n```cpp\n{(path.parent / included).read_text(encoding='utf-8')}```\n"
    return text


def on_files(files: Files, config: Any, **_: Any) -> Files:
    """Adds documents of the root, the reference of the headers, and a listing of each source that a page links to."""
    for path in sorted(ROOT.glob("*.md")):
        if path.name not in OF_THE_SITE:
            files.append(File.generated(config, path.name, content=path.read_text(encoding="utf-8")))
    for path in headers():
        files.append(File.generated(config, f"headers/{path.name}.md", content=header_page(path)))
    linked = {target for page in list(files.documentation_pages()) for target in linked_from(page.content_string, page.src_uri)}
    for target in sorted(linked):
        page = page_of(target)
        if page and page.startswith("source/"):
            language = LANGUAGES.get(Path(target).suffix, "text")
            listing = (ROOT / target).read_text(encoding="utf-8")
            text = f"---\nsearch: {{exclude: true}}\n---\n# {target}\n\n````{language}\n{listing}````\n"
            files.append(File.generated(config, page, content=text))
    return files


def on_page_markdown(markdown: str, page: Any, files: Files, **_: Any) -> str:
    """Redirects links that leave docs/ to their pages. A link to a folder becomes plain text."""
    here = page.file.src_uri
    folder = posixpath.dirname(file_of(here))
    if here.startswith(BELOW_GUIDES):
        page.meta.setdefault("search", {"boost": 0.2})

    def moved(match: re.Match[str]) -> str:
        target = match[2]
        if re.match(r"[a-z]+:", target):
            return match[0]
        path = posixpath.normpath(posixpath.join(folder, target))
        there = page_of(path)
        if there is None:
            return match[0]
        return match[1] + posixpath.relpath(there, posixpath.dirname(here) or ".") + match[3]

    inside = False
    lines = []
    for line in markdown.split("\n"):
        if line.lstrip().startswith("```"):
            inside = not inside
        lines.append(line if inside else LINK.sub(moved, line))
    return "\n".join(lines)


def on_page_content(html: str, page: Any, files: Files, **_: Any) -> str:
    """Links page names such as docs/rules.md in docstrings and in comments of headers."""
    here = page.file.src_uri
    if here != REFERENCE and not here.startswith("headers/"):
        return html

    def linked(match: re.Match[str]) -> str:
        there = files.get_file_from_path(match[1])
        return match[0] if there is None else f'<a href="{there.url_relative_to(page.file)}">{match[0]}</a>'

    return re.sub(r"(?<![\w/\">=])docs/([\w/-]+\.md)(?![^<>]*>)", linked, html)


def on_env(env: Any, config: Any, files: Files, **_: Any) -> Any:
    """Adds llms.txt (llmstxt.org), which lists the pages of docs/ with their first sentences for programs."""
    lines = [f"# {config['site_name']}", "", f"> {config['site_description']}", "", "## Pages", ""]
    for file in sorted(files.documentation_pages(), key=lambda file: file.src_uri):
        page = file.page
        if page and page.parent and not file.src_uri.startswith(("source/", "headers/", "benchmarks/")):
            lines.append(f"- [{page.title}]({file.url}): {first_sentence(page.markdown or '')}")
    files.append(File.generated(config, "llms.txt", content="\n".join(lines) + "\n"))
    return env


def first_sentence(markdown: str) -> str:
    """The first sentence of a page's prose, without links."""
    parts = re.split(r"\n\n+", re.sub(r"^```.*?^```", "", markdown, flags=re.M | re.S))
    prose = next((" ".join(part.split()) for part in parts if part.strip() and part.strip()[0] not in "#`|:<-*!["), "")
    return re.split(r"(?<=[.:]) ", re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", prose))[0].rstrip(":")


def option_defaults() -> dict[str, str]:
    """The default of each option, as code, from the table of options."""
    for node in ast.parse((ROOT / OPTIONS).read_text(encoding="utf-8")).body:
        if isinstance(node, ast.AnnAssign) and ast.unparse(node.target) == "OPTIONS" and isinstance(node.value, ast.Dict):
            rows = zip(node.value.keys, node.value.values, strict=True)
            return {ast.literal_eval(name): ast.unparse(row.elts[0]) for name, row in rows if name and isinstance(row, ast.Tuple)}
    raise ValueError(f"{OPTIONS}: got no table OPTIONS, wanted one with the defaults")


class OptionsInSignatures(griffe.Extension):
    """Replaces `**options: Unpack[Options]` by the options. (griffe's own extension knows no defaults, and repeats all options
    in the text of each class.)"""

    def on_function(self, *, func: griffe.Function, **_: Any) -> None:
        options = next((one for one in func.parameters if str(one.annotation) == "Unpack[Options]"), None)
        if options is None:
            return
        del func.parameters[options.name]
        refused = func.parent.all_members["REFUSES"].value if func.parent else "{}"
        without = [ast.unparse(name) for name in ast.parse(str(refused), mode="eval").body.keys]  # type: ignore[attr-defined]
        kinds = func.modules_collection["lowtide.options.options.Options"].attributes
        for name, default in option_defaults().items():
            if repr(name) in without:
                continue
            func.parameters.add(griffe.Parameter(name, annotation=kinds[name].annotation, kind=griffe.ParameterKind.keyword_only, default=default))
