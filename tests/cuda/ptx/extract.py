#!/usr/bin/env python3
"""Takes the PTX out of objects of nvcc: extract.py FOLDER FILE.o ...

Writes FOLDER/<object>.ptx. Needs cuobjdump (tools/cubin_report.py says where from); exits with 77 without it.
"""

from __future__ import annotations

import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[3] / "tools"))
from sass.cubins import SKIPPED, find_tool


def main() -> int:
    folder, objects = Path(sys.argv[1]), [Path(name).resolve() for name in sys.argv[2:]]
    cuobjdump = find_tool("cuobjdump")
    if cuobjdump is None:
        print("skipped: no cuobjdump (pip install nvidia-cuda-cuobjdump)")
        return SKIPPED
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    for file in objects:
        with tempfile.TemporaryDirectory() as here:
            subprocess.run([cuobjdump, "-xptx", "all", file], cwd=here, check=True, stdout=subprocess.DEVNULL)
            found = sorted(Path(here).glob("*.ptx"))
            if len(found) != 1:
                print(f"got {len(found)} PTX files in {file}, wanted one: that of the newest architecture")
                return 1
            shutil.copy(found[0], folder / f"{file.stem}.ptx")
    print(f"{len(objects)} files of PTX")
    return 0


if __name__ == "__main__":
    sys.exit(main())
