#!/usr/bin/env python3
"""Takes the PTX out of objects of nvcc: extract.py FOLDER FILE.o ...

Writes FOLDER/<object>.ptx, of the newest architecture, and FOLDER/oldest/<object>.ptx. Needs cuobjdump (tools/cubin_report.py
says where from); exits with 77 without it.
"""

from __future__ import annotations

import re
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
    (folder / "oldest").mkdir(parents=True)
    for file in objects:
        with tempfile.TemporaryDirectory() as here:
            subprocess.run([cuobjdump, "-xptx", "all", file], cwd=here, check=True, stdout=subprocess.DEVNULL)
            found = {int(re.findall(r"sm_(\d+)", path.name)[-1]): path for path in Path(here).glob("*.ptx")}
            if not found:
                print(f"no PTX in {file}")
                return 1
            shutil.copy(found[max(found)], folder / f"{file.stem}.ptx")
            shutil.copy(found[min(found)], folder / "oldest" / f"{file.stem}.ptx")
    print(f"{len(objects)} files of PTX")
    return 0


if __name__ == "__main__":
    sys.exit(main())
