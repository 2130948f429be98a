#!/usr/bin/env python3
"""Checks the order of the source tree: C++ by #include, Python by import. Prints each offence as file:line and exits 1.

C++: portable includes nothing, core nothing, backend both; then memory, optim, sign, capi and python, each only the modules
before it. Public headers (include/lowtide) include only each other, and all modules but portable may include them. Python: a
room (a folder of python/lowtide) imports only rooms before it in ROOMS, even for types, and no file uses a name with an
underscore that belongs to a class in another file. Files that use Linux beyond POSIX are listed. In both languages, no file
includes or imports itself through others.
"""

from __future__ import annotations

import ast
import re
import sys
from collections.abc import Iterable, Iterator, Mapping
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent

# Module -> modules that it may include besides itself. A new folder of src/ needs a line here.
ALLOWED: dict[str, set[str]] = {
    "portable": set(),
    "core": {"include"},
    "backend": {"include", "portable", "core"},
    "memory": {"include", "portable", "core", "backend"},
    "optim": {"include", "portable", "core", "backend", "memory"},
    "sign": {"include", "portable", "core", "backend"},
    "bnb": {"include", "portable", "core", "backend"},
    "capi": {"include", "portable", "core", "backend", "memory", "optim", "sign"},
    "python": {"include", "portable", "core", "backend", "memory", "optim", "sign"},
    "include": set(),
}
# Device compilers without a standard library read the portable kernels, too, so portable/ includes no system header.
NO_SYSTEM_HEADERS = {"portable"}
# Linux's own headers, calls and folders, and the only files that may name them, beside code for other systems: files and
# memory, cores, I/O engines. Plug-ins of devices whose drivers are Linux's may do so, too.
LINUX = re.compile(
    r"#\s*include\s*<(?:linux/\S+|sched\.h|liburing\.h|malloc\.h|features\.h|sys/(?:syscall|sysinfo|epoll|eventfd|prctl)\.h)>"
    r'|"/(?:proc|sys)/|\b(?:sched_\w+|cpu_set_t|CPU_(?:SET|CLR|ZERO|COUNT|ISSET|SETSIZE)|pthread_\w+_np|gettid|syscall|prctl'
    r"|mremap|fallocate|memfd_create|O_DIRECT|O_TMPFILE|F_OFD_\w+|MADV_HUGEPAGE|MADV_POPULATE_\w+|MAP_(?:POPULATE|HUGETLB)"
    r"|_SC_LEVEL\w+|malloc_\w+|getrandom|copy_file_range|sync_file_range|pipe2|accept4|program_invocation_\w+)\b"
)
ASK_LINUX = {
    "src/core/buffer.cpp", "src/core/cores.cpp", "src/core/env.cpp", "src/memory/io_uring_engine.cpp", "src/memory/scratch_file.cpp",
}  # fmt: skip
ASK_LINUX_FOLDERS = ("src/backend/cuda/", "src/backend/sycl/")
# Rooms of python/lowtide, lowest first. "" means the files beside the folders, except sign.py. A new folder needs a place here.
ROOMS = (
    "_core", "checks", "report", "devices", "sign", "memory", "options", "engine", "state", "optimizers", "planning", "streaming", "distributed",
    "compat", "cli", "",
)  # fmt: skip

SUFFIXES = {".h", ".hpp", ".inc", ".def", ".c", ".cpp", ".cu"}
INCLUDE = re.compile(r'^\s*#\s*include\s*(?:"([^"]+)"|<([^>]+)>)')


class Cpp:
    """The C and C++ sources of a tree."""

    def __init__(self, root: Path) -> None:
        self._root = root
        self.files = [
            path
            for top in ("src", "include", "python")
            for path in sorted((root / top).rglob("*"))
            if path.suffix in SUFFIXES
        ]
        self.includes: dict[str, list[str]] = {}  # our files, by name

    def offences(self) -> Iterator[str]:
        """All offences. Also fills `includes`."""
        for path in self.files:
            module = self._module_of(path)
            if module not in ALLOWED:
                yield f"{self._name(path)}: belongs to no module that tools/check_tree.py knows"
            else:
                yield from self._offences_of(path, module)
        yield from circles(self.includes)

    def _offences_of(self, path: Path, module: str) -> Iterator[str]:
        is_test = path.stem.endswith("_test")
        included = self.includes.setdefault(self._name(path), [])
        own_name = self._name(path)
        may_ask_linux = is_test or own_name in ASK_LINUX or own_name.startswith(ASK_LINUX_FOLDERS)
        for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), 1):
            if not may_ask_linux and (found := LINUX.search(line.split("//")[0])):
                yield f"{own_name}:{number}: {found[0]}: Linux's own, which only the files of ASK_LINUX may name"
            match = INCLUDE.match(line)
            if not match:
                continue
            name = match.group(1) or match.group(2)
            target = self._resolve(name, path)
            problem = None
            if target is not None:
                included.append(self._name(target))
                other = self._module_of(target)
                if other != module and other not in ALLOWED[module]:
                    problem = f"{module} must not depend on {other or 'files outside of src/ and include/'}"
            elif module in NO_SYSTEM_HEADERS and not is_test:
                problem = f"{module} includes nothing outside of its folder"
            elif match.group(1) and module != "python" and not is_test:
                problem = "no such file in src/ or include/ (headers of others go in <>)"
            if problem:
                yield f'{self._name(path)}:{number}: "{name}": {problem}'

    def _module_of(self, path: Path) -> str | None:
        """The module that a file belongs to; None outside our sources."""
        parts = path.relative_to(self._root).parts
        if parts[0] == "src" and len(parts) > 2:
            return parts[1]
        return parts[0] if parts[0] in ("include", "python") else None

    def _resolve(self, name: str, includer: Path) -> Path | None:
        """Our file that `#include "name"` means."""
        for folder in (includer.parent, self._root / "src", self._root / "include"):
            candidate = (folder / name).resolve()
            if candidate.is_file() and candidate.is_relative_to(self._root):
                return candidate
        return None

    def _name(self, path: Path) -> str:
        return str(path.relative_to(self._root))


class Python:
    """The modules of python/lowtide."""

    def __init__(self, root: Path) -> None:
        folder = root / "python" / "lowtide"
        self.files = sorted(folder.rglob("*.py"))
        self._names = {_module_name(path, folder): str(path.relative_to(root)) for path in self.files}
        self._names["lowtide._core"] = "python/core_module.cpp"
        self._trees = {
            _module_name(path, folder): ast.parse(path.read_text(encoding="utf-8"), str(path)) for path in self.files
        }
        self._private = {module: set(_private_names(tree)) for module, tree in self._trees.items()}

    def offences(self) -> Iterator[str]:
        imports: dict[str, list[str]] = {}
        for module, tree in self._trees.items():
            imports[self._names[module]] = found = []
            for node, target in self._imports_of(tree):
                found.append(self._names[target])
                here, there = room_of(module), room_of(target)
                if here not in ROOMS or there not in ROOMS:
                    yield f"{self._names[module]}:{node.lineno}: a room that tools/check_tree.py does not know"
                elif ROOMS.index(there) > ROOMS.index(here):
                    yield f"{self._names[module]}:{node.lineno}: {target}: {here} comes before {there or 'the top'}"
            yield from self._reaches_of(module, tree)
        yield from circles(imports)

    def _imports_of(self, tree: ast.Module) -> Iterator[tuple[ast.stmt, str]]:
        """Our modules that each import names. `from package import name` means `package.name` if that is a module."""
        for node in ast.walk(tree):
            names: list[str] = []
            if isinstance(node, ast.Import):
                names = [alias.name for alias in node.names]
            elif isinstance(node, ast.ImportFrom) and not node.level:
                inner = [f"{node.module}.{alias.name}" for alias in node.names]
                names = [name if name in self._names else str(node.module) for name in inner]
            assert isinstance(node, ast.stmt) or not names
            yield from ((node, name) for name in dict.fromkeys(names) if name in self._names)  # type: ignore[misc]

    def _reaches_of(self, module: str, tree: ast.Module) -> Iterator[str]:
        """Uses of names with an underscore that belong to another file."""
        own = self._private[module]
        others = set().union(*(names for other, names in self._private.items() if other != module)) - own
        for node in ast.walk(tree):
            if isinstance(node, ast.Attribute) and node.attr in others and not _is_own(node.value):
                yield f"{self._names[module]}:{node.lineno}: .{node.attr} belongs to another file"
            if isinstance(node, ast.ImportFrom) and str(node.module).startswith("lowtide"):
                for alias in node.names:
                    if _is_private(alias.name) and alias.name != "_core":
                        yield f"{self._names[module]}:{node.lineno}: {alias.name} belongs to another file"


def _module_name(path: Path, folder: Path) -> str:
    parts = ["lowtide", *path.relative_to(folder).with_suffix("").parts]
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def room_of(module: str) -> str:
    """The folder of a module; for a file beside the folders, its own name if that is a room."""
    parts = module.split(".")
    return parts[1] if len(parts) > 1 and parts[1] not in ("__main__", "interface") else ""


def _is_private(name: str) -> bool:
    return name.startswith("_") and not name.startswith("__")


def _is_own(value: ast.expr) -> bool:
    """True for self, cls and super()."""
    if isinstance(value, ast.Call):
        value = value.func
    return isinstance(value, ast.Name) and value.id in ("self", "cls", "super")


def _private_names(tree: ast.Module) -> Iterator[str]:
    """Attributes and methods of a module's classes that begin with an underscore."""
    for outer in ast.walk(tree):
        if not isinstance(outer, ast.ClassDef):
            continue
        for node in ast.walk(outer):
            if isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store) and _is_own(node.value):
                yield from filter(_is_private, [node.attr])
        for statement in outer.body:
            if isinstance(statement, (ast.FunctionDef, ast.AsyncFunctionDef)):
                yield from filter(_is_private, [statement.name])
            targets = statement.targets if isinstance(statement, ast.Assign) else [getattr(statement, "target", None)]
            yield from filter(_is_private, [target.id for target in targets if isinstance(target, ast.Name)])


def circles(graph: Mapping[str, Iterable[str]]) -> Iterator[str]:
    """A line for the first circle of files, if any."""
    try:
        TopologicalSorter({start: sorted(set(graph[start])) for start in sorted(graph)}).prepare()
    except CycleError as error:
        way = error.args[1][:0:-1]  # from includer to included
        first = way.index(min(way))
        way = [*way[first:], *way[:first]]
        yield f"{way[0]}: a circle: {' -> '.join([*way, way[0]])}"


def main(root: Path = ROOT) -> int:
    languages = (Cpp(root), Python(root))
    offences = [offence for language in languages for offence in language.offences()]
    for offence in offences:
        print(offence)
    counts = [len(language.files) for language in languages]
    print(f"{counts[0]} C++ and {counts[1]} Python files checked, {len(offences)} offences")
    return 1 if offences or 0 in counts else 0


if __name__ == "__main__":
    sys.exit(main())
