"""Reads kernels from nvcc's objects with NVIDIA's cuobjdump and nvdisasm: machine code, registers and shared memory."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from dataclasses import dataclass, field
from functools import cached_property
from importlib import metadata
from pathlib import Path
from typing import NoReturn

SKIPPED = 77  # exit status


@dataclass
class Instruction:
    address: int
    text: str  # without its predicate
    predicate: str

    @cached_property
    def name(self) -> str:
        return self.text.split(None, 1)[0]

    @property
    def is_store(self) -> bool:
        return self.name.startswith(("STG.", "ST."))


@dataclass
class Kernel:
    name: str
    architecture: str
    registers: int = 0
    shared: int = 0
    code: list[Instruction] = field(default_factory=list)
    functions: dict[int, str] = field(default_factory=dict)  # functions behind the kernel that it calls, by address

    @property
    def spills(self) -> int:
        return sum(i.name.startswith(("LDL", "STL")) for i in self.code)


def find_tool(name: str) -> Path | None:
    """Finds a tool on PATH or in the folder of its Python package."""
    if there := shutil.which(name):
        return Path(there)
    for package in (f"nvidia-cuda-{name}", f"nvidia-cuda-{name}-cu13", f"nvidia-cuda-{name}-cu12"):
        try:
            files = metadata.files(package) or []
        except metadata.PackageNotFoundError:
            continue
        for file in files:
            if file.name == name:
                return Path(str(file.locate()))
    return None


def run(*command: object, cwd: Path | None = None) -> str:
    words = [str(word) for word in command]
    done = subprocess.run(words, cwd=cwd, capture_output=True, text=True, check=False)
    if done.returncode:
        sys.exit(f"cubin_report: {Path(words[0]).name} failed with {done.returncode}\n{done.stdout}{done.stderr}")
    return done.stdout


def cubins_of(file: Path, architectures: list[str], cuobjdump: Path, folder: Path) -> list[Path]:
    """The cubins of these architectures, or of all if none is named."""
    if file.suffix == ".cubin":
        return [file]
    into = folder / file.name
    into.mkdir()
    run(cuobjdump, "-xelf", "all", file.resolve(), cwd=into)
    found = sorted(into.glob("*.cubin"))
    return [cubin for cubin in found if not architectures or any(f".sm_{a}." in cubin.name for a in architectures)]


def read_cubin(cubin: Path, cuobjdump: Path, nvdisasm: Path) -> list[Kernel]:
    """Every kernel of a cubin, all for one architecture."""
    kernels: dict[str, Kernel] = {}
    usage = run(cuobjdump, "-res-usage", cubin)
    for name, rest in re.findall(r"Function (\S+?):\s*\n\s*(REG:.*)", usage):
        values = dict(re.findall(r"(\w+):(\d+)", rest))
        kernels[name] = Kernel(name, "", int(values["REG"]), int(values["SHARED"]))
    text = run(nvdisasm, "-c", cubin)
    target = re.search(r"\.target\s+(sm_\w+)", text)
    architecture = target[1] if target else "?"
    for section in re.split(r"(?m)^\s*\.section\s+", text)[1:]:
        head = re.match(r"\.text\.(\S+?),", section)
        if not head or head[1] not in kernels:
            continue
        kernel = kernels[head[1]]
        kernel.architecture = architecture
        kernel.code, labels = read_code(section)
        kernel.functions = {address: label for label, address in labels.items() if label.startswith("$")}
    return [k for k in kernels.values() if k.code]


def read_code(section: str) -> tuple[list[Instruction], dict[str, int]]:
    """Instructions, and the addresses of labels."""
    labels: dict[str, int] = {}
    pending: list[str] = []
    lines: list[tuple[int, str]] = []
    for line in map(str.strip, section.splitlines()):
        if line.startswith("/*"):
            address, _, rest = line[2:].partition("*/")
            text, ends, _ = rest.partition(";")
            if not ends:
                continue
            labels |= dict.fromkeys(pending, int(address, 16))
            pending.clear()
            lines.append((int(address, 16), text.strip()))
        elif line.endswith(":"):
            pending.append(line[:-1])
    code = []
    for address, text in lines:
        predicate = ""
        if text.startswith("@"):
            predicate, text = text.split(None, 1)
        if "`(" in text:
            text = re.sub(r"`\((\S+?)\)", lambda m: hex(labels.get(m[1], -1)), text)
        if "(*" in text:
            text = re.sub(r"\s*\(\*.*\*\)", "", text)  # removes the targets of a table
        code.append(Instruction(address, text, predicate))
    return code, labels


def demangled(name: str) -> str:
    """A short name: "adamw dynamic8 exact" for the kernel of a step, otherwise the kernel's own."""
    words = re.findall(r"\d+([A-Za-z]\w*)", split_lengths(name))
    if "step_kernel" not in words:
        return " ".join(w for w in words if w not in ("lowtide", "StepArguments"))
    rule, codec = words[words.index("step_kernel") + 1 :][:2]
    return f"{rule.lower()} {codec.lower()} {'fast' if 'cuda_device_fast' in name else 'exact'}"


def split_lengths(name: str) -> str:
    """Spaces out a mangled name, in which each word follows its length."""
    out, at = [], 0
    while at < len(name):
        if number := re.match(r"\d+", name[at:]):
            length = int(number[0])
            end = at + len(number[0]) + length
            if length and end <= len(name):
                out.append(f" {number[0]}{name[at + len(number[0]) : end]} ")
                at = end
                continue
        out.append(name[at])
        at += 1
    return "".join(out)


def skip(reason: str) -> NoReturn:
    print(f"skipped: {reason}")
    sys.exit(SKIPPED)
