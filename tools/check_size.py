#!/usr/bin/env python3
"""Holds the tree to the limits in tools/size_limits.json. They only fall; a change that must raise one says why there.

    check_size.py            prints each size and its limit; exits 1 if a size exceeds its limit
    check_size.py --write    lowers limits to half a percent above the current sizes; raises none

Sizes: lines of files that git tracks or would track (product: include, src, python and packages), product files under 40 lines,
types, public names, and bytes. In tools, bench, examples and tests, no Python file may import itself through others.
"""

from __future__ import annotations

import ast
import json
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

from check_tree import ROOT, circles

LIMITS = ROOT / "tools" / "size_limits.json"
PRODUCT = ("include", "src", "python", "packages")
AROUND = ("tools", "bench", "examples")
CODE = {".h", ".hpp", ".inc", ".def", ".c", ".cpp", ".cu", ".py"}
TYPE = re.compile(r"^\s*(?:template\s*<[^;{]*>\s*)?(?:class|struct|enum(?: class)?)\s+(?:\[\[\w+\]\]\s*|alignas\(\w+\)\s*)?\w+[^;()]*\{", re.M)
C_FUNCTION = re.compile(r"^LT_API\b", re.M)


def tracked() -> list[Path]:
    listed = subprocess.run(["git", "ls-files", "-co", "--exclude-standard", "-z"], cwd=ROOT, capture_output=True, check=True).stdout
    return [path for name in listed.decode().split("\0") if name and (path := ROOT / name).is_file() and not path.is_symlink()]


def sizes() -> dict[str, int]:
    lines, texts, all_bytes = {}, {}, 0
    for path in tracked():
        data, name = path.read_bytes(), path.relative_to(ROOT).as_posix()
        all_bytes += len(data)
        lines[name] = data.count(b"\n")
        if path.suffix in CODE:
            texts[name] = data.decode(errors="replace")

    def of(*folders: str) -> int:
        return sum(count for name, count in lines.items() if name.startswith(tuple(f"{folder}/" for folder in folders)))

    product = {name: text for name, text in texts.items() if name.startswith(tuple(f"{folder}/" for folder in PRODUCT))}
    exported = ast.parse(texts["python/lowtide/interface.py"])
    names = next(node.value for node in exported.body if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "__all__")
    return {
        "tracked bytes": all_bytes,
        "tracked lines": sum(lines.values()),
        "lines of the product": of(*PRODUCT),
        "lines of tests": of("tests"),
        "lines of tools, bench and examples": of(*AROUND),
        "product files under 40 lines": sum(lines[name] < 40 and not name.endswith("_test.cpp") for name in product),
        "types": sum(len(TYPE.findall(text)) for name, text in product.items() if not name.endswith(".py"))
        + sum(text.count("\nclass ") for name, text in product.items() if name.endswith(".py")),
        "public names": len(C_FUNCTION.findall(texts["include/lowtide/lowtide.h"])) + len(ast.unparse(names).split(",")),
    }


def _imports(path: Path, known: dict[str, str]) -> Iterator[str]:
    """Files of the same folder tree that a Python file imports, also by relative imports."""
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            found = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            base = ".".join([*path.relative_to(ROOT).parts[: -node.level], node.module or ""]).rstrip(".") if node.level else str(node.module)
            found = [base, *(f"{base}.{alias.name}" for alias in node.names)]
        else:
            continue
        yield from (known[name] for name in found if name in known)


def circles_around() -> Iterator[str]:
    everything = tracked()
    for folder in (*AROUND, "tests"):
        files = [path for path in everything if path.suffix == ".py" and path.relative_to(ROOT).parts[0] == folder]
        known = {}
        for path in files:
            parts = path.relative_to(ROOT).with_suffix("").parts
            for start in range(len(parts)):  # whichever folder is on the path
                known.setdefault(".".join(parts[start:]), str(path.relative_to(ROOT)))
        name = {path: str(path.relative_to(ROOT)) for path in files}
        yield from circles({name[path]: [other for other in _imports(path, known) if other != name[path]] for path in files})


def main() -> int:
    writes = "--write" in sys.argv[1:]
    limits: dict[str, dict[str, object]] = json.loads(LIMITS.read_text(encoding="utf-8")) if LIMITS.is_file() else {}
    now, bad = sizes(), list(circles_around())
    for name, size in now.items():
        limit = int(str(limits.get(name, {}).get("most", size if writes else 0)))
        print(f"{name}: {size:,} of {limit:,}")
        if size > limit:
            bad.append(f"{name}: got {size:,}, wanted {limit:,} at most: make it smaller, or raise it in tools/size_limits.json and say why there")
        if writes:
            limits.setdefault(name, {"most": 0, "why": ""})["most"] = min(limit, size + size // 200)
    if writes:
        LIMITS.write_text("{\n" + ",\n".join(f"{json.dumps(name)}: {json.dumps(limits[name])}" for name in now) + "\n}\n", encoding="utf-8")
    print("\n".join(bad), end="\n" if bad else "")
    return 1 if bad else 0


if __name__ == "__main__":
    sys.exit(main())
