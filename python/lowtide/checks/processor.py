"""Checks that this processor has the instructions that the compiled module uses. A missing one would kill the process."""

from __future__ import annotations

from pathlib import Path

BUILT_FOR = Path(__file__).parents[1] / "processor.txt"  # written by builds for one machine; flags as in /proc/cpuinfo


def check(built_for: Path = BUILT_FOR, cpuinfo: Path = Path("/proc/cpuinfo")) -> None:
    """Raises ImportError if an instruction set is missing. Accepts portable builds, and systems without cpuinfo."""
    try:
        wanted = set(built_for.read_text(encoding="ascii").split())
        with cpuinfo.open(encoding="utf-8", errors="replace") as lines:
            here = next((line for line in lines if line.startswith("flags")), "")
    except OSError:
        return
    if here and (missing := sorted(wanted - set(here.partition(":")[2].split()))):
        raise ImportError(
            f"got a processor without {', '.join(missing)}, wanted one like the processor that lowtide was compiled on: "
            "reinstall it on this machine, or build it for all processors with CMAKE_ARGS=-DLOWTIDE_NATIVE=OFF"
        )
