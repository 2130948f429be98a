"""Checks the documentation site: it builds without warnings, has every public name, and every page can be searched."""

from __future__ import annotations

import html
import inspect
import json
import re
import subprocess
import sys
from pathlib import Path

import lowtide
import lowtide.distributed
import pytest
from lowtide.optimizers.classes import CLASSES
from lowtide.options.options import OPTIONS

ROOT = Path(__file__).parents[3]
HEADERS = sorted((ROOT / "include" / "lowtide").glob("*.h"))


def build(folder: Path, *options: str) -> subprocess.CompletedProcess[str]:
    """Not quiet, because warnings that are not printed do not count in strict mode."""
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--site-dir", str(folder), *options]
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=300)


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("site")
    done = build(folder)
    assert done.returncode == 0, done.stdout + done.stderr
    return folder


def words(page: Path) -> str:
    """The text of a page without markup."""
    return html.unescape(re.sub(r"<[^>]+>", "", page.read_text(encoding="utf-8")))


def test_it_builds_without_a_warning(site, figure):
    pages = sorted(site.rglob("*.html"))
    assert len(pages) > 60 and (site / "index.html").exists()
    figure(f"pages {len(pages)}, warnings 0")


def test_a_link_that_leads_nowhere_fails_the_build(tmp_path):
    """A site of one page with a bad heading in a link, by the same settings."""
    (tmp_path / "docs").mkdir()
    (tmp_path / "docs" / "index.md").write_text("# Home\n\n[gone](#no-such-heading)\n")
    settings = (ROOT / "mkdocs.yml").read_text().partition("\nnav:")[0]
    settings = re.sub(r"\nhooks: .*|\nextra_css: .*|\nnot_in_nav: \|(\n  .*)+", "", settings)
    (tmp_path / "mkdocs.yml").write_text(settings)
    done = build(tmp_path / "site", "--config-file", str(tmp_path / "mkdocs.yml"))
    assert done.returncode != 0 and "no-such-heading" in done.stdout + done.stderr, done.stdout + done.stderr


def test_every_public_name_of_python_has_an_entry(site, figure):
    """The reference has a heading with the name as its anchor."""
    page = site / "python-api.html"
    anchors = {name.rpartition(".")[2] for name in re.findall(r'<h\d id="(lowtide[\w.]*)"', page.read_text(encoding="utf-8"))}
    text = words(page)
    modules = {"compat", "distributed", "hf", "master", "sign", "__version__"}
    public = {*lowtide.__all__, *lowtide.distributed.__all__, *lowtide.sign.__all__} - modules
    missing = {name for name in public if name not in anchors and f"lowtide.{name}" not in text}
    figure(f"public names of Python {len(public)}, without an entry {len(missing)}")
    assert not missing


@pytest.mark.parametrize("header", HEADERS, ids=lambda path: path.name)
def test_every_function_and_type_of_a_header_has_an_entry(site, header, figure):
    if header.name == "export.h":  # a macro alone
        return
    code = re.sub(r"//.*|/\*.*?\*/", "", header.read_text(), flags=re.S if header.name.startswith("lowtide") else 0)
    names = set(re.findall(r"LT_API [^;{(]*?[ *&](\w+)\(", code))
    names = names or set(re.findall(r"^#define (\w+)(?<!_H_)\b", code, re.M))
    names |= set(re.findall(r"^(?:typedef )?(?:enum class|enum|struct|class)(?: LT_API)? (\w+)", code, re.M))
    text = words(site / "headers" / f"{header.name}.html")
    missing = {name for name in names if not re.search(rf"\b{name}\b", text)}
    figure(f"{header.name}: names {len(names)}, without an entry {len(missing)}")
    assert names and not missing


def test_every_type_of_a_header_has_a_heading(site, figure):
    text = (site / "headers" / "lowtide.h.html").read_text()
    headings = set(re.findall(r'<h2 id="(\w+)"', text))
    types = set(re.findall(r"^typedef (?:struct|enum) (\w+) \{", (ROOT / "include/lowtide/lowtide.h").read_text(), re.M))
    figure(f"types of lowtide.h {len(types)}, without a heading {len(types - headings)}")
    assert types and types <= headings


def test_every_option_is_explained(site, figure):
    text = words(site / "python-api.html")
    without = [name for name in lowtide.Options.__annotations__ if not re.search(rf"\b{name}\b[^–]{{0,120}}–\s+\S", text)]
    figure(f"options {len(lowtide.Options.__annotations__)}, without an explanation {len(without)}")
    assert not without


def test_signatures_show_the_options_with_their_defaults(site, figure):
    """Like `inspect.signature`, for each class."""
    found = 0
    text = words(site / "python-api.html")
    for cls in (*CLASSES.values(), lowtide.NAdam, lowtide.distributed.Signum):
        parameters = inspect.signature(cls).parameters.values()
        signature = text.partition(f"\n{cls.__name__}(\n    params: ")[2].partition("\n)\n")[0]
        shown = dict(re.findall(r"^    (\w+): [^=]*= (.*),$", signature, re.M))
        wanted = {one.name: repr(one.default).replace("'", '"') for one in parameters if one.name in OPTIONS}
        assert wanted and {name: default for name, default in shown.items() if name in OPTIONS} == wanted, cls
        found += len(wanted)
    figure(f"options in signatures {found}, with another default 0")


def test_search_finds_pages_and_names(site, figure):
    found = json.loads((site / "search" / "search_index.json").read_text())["docs"]
    text = "\n".join(entry["title"] + " " + entry["text"] for entry in found)
    figure(f"searchable sections {len(found)}")
    for word in ("lt_optimizer_step", "StableEmbedding", "cgroup", "dynamic8"):
        assert word in text


def test_comments_in_front_of_functions_are_their_text(site):
    text = words(site / "headers" / "optimizer.h.html")
    assert "Adds a group and returns its number, from 0." in " ".join(text.split())


def test_memory_tables_are_those_of_lowtide_plan(figure):
    """tools/memory_tables.py --check: the page is what the command prints now for these models, the charts show it and the records."""
    command = [sys.executable, ROOT / "tools" / "memory_tables.py", "--check"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120)
    figure(f"memory tables: {done.stdout.strip() or 'as lowtide plan says'}")
    assert done.returncode == 0, done.stdout + done.stderr


def test_no_table_shows_its_marks(site, figure):
    """A table without a header, or with a line between its rows, is a paragraph with bars in it."""
    broken = [page.name for page in site.rglob("*.html") if re.search(r"<p>\|", page.read_text(encoding="utf-8"))]
    tables = sum(page.read_text(encoding="utf-8").count("<table>") for page in site.rglob("*.html"))
    figure(f"tables {tables}, broken {broken or 0}")
    assert not broken


def test_programs_find_the_pages(site, figure):
    """llms.txt names every guide, with its first sentence."""
    listed = dict(re.findall(r"^- \[[^\]]+\]\(([^)]+)\): (.*)$", (site / "llms.txt").read_text(encoding="utf-8"), re.M))
    pages = {path.relative_to(site).as_posix() for path in [*site.glob("*.html"), *site.glob("api/*.html")]} - {"404.html", "index.html"}
    assert pages <= listed.keys() and all((site / name).is_file() for name in listed)
    told = [name for name, sentence in listed.items() if sentence]
    assert len(told) > 0.8 * len(listed)
    figure(f"{len(listed)} pages, {len(told)} with a sentence")


def test_pages_that_docstrings_name_are_links(site, figure):
    pages = [site / "python-api.html", *(site / "headers").glob("*.html")]
    links = [(page, link) for page in pages for link in re.findall(r'<a href="([^"]+)">docs/[\w/-]+\.md</a>', page.read_text())]
    figure(f"links from the reference to pages {len(links)}")
    assert links and all((page.parent / link).exists() for page, link in links)
