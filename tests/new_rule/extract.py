"""Makes the sources of the rule of docs/adding-a-rule.md, from the page itself: extract.py PAGE SRC OUT.

OUT/portable gets a copy of SRC/portable with the page's header, and with its lines in rules.def; OUT/reference.inc the
page's reference; OUT/step_new.cpp the kernels. Fails if the page has not the blocks that are wanted.
"""

from __future__ import annotations

import re
import shutil
import sys
from pathlib import Path


def blocks_of(page: str) -> dict[str, str]:
    """The blocks of code by the name in their first line: a file's path, or "reference: ..."."""
    found = re.findall(r"^```cpp\n// ([^\n]+)\n(.*?)^```$", page, re.MULTILINE | re.DOTALL)
    return {name.split(":")[0]: text for name, text in found}


def with_lines(listed: str, added: str) -> str:
    """rules.def with what the page adds: headers behind the headers, rules behind the rules."""
    headers = [line for line in added.splitlines() if line.startswith("#include")]
    rules = [line for line in added.splitlines() if line.startswith("LT_RULE(")]
    if len(headers) != 1 or len(rules) != 1 or len(added.split("\n")) != 3:
        sys.exit(f"got\n{added}wanted the line of a header and that of a rule for rules.def")
    if "#else\n" not in listed or not listed.endswith("#endif\n"):
        sys.exit("rules.def is no more a list of headers, '#else', a list of rules and '#endif'")
    listed = listed.replace("#else\n", f"{headers[0]}\n#else\n")
    return listed.removesuffix("#endif\n") + f"{rules[0]}\n#endif\n"


def main(page: Path, src: Path, out: Path) -> None:
    blocks = blocks_of(page.read_text())
    header = [name for name in blocks if name.startswith("src/portable/rules/")]
    if sorted(blocks) != sorted([*header, "src/portable/rules.def", "reference"]) or len(header) != 1:
        sys.exit(f"{page}: got blocks of {sorted(blocks)}, wanted a rule's header, its lines in rules.def, a reference")
    shutil.copytree(src / "portable", out / "portable", dirs_exist_ok=True)
    (out / header[0].removeprefix("src/")).write_text(blocks[header[0]])
    listed = (src / "portable/rules.def").read_text()
    (out / "portable/rules.def").write_text(with_lines(listed, blocks["src/portable/rules.def"]))
    (out / "reference.inc").write_text(blocks["reference"])
    _, name, struct = re.findall(r"LT_RULE\((\d+), (\w+), (\w+)\)", blocks["src/portable/rules.def"])[0]
    if not re.search(rf"^double {name}\(double p, double g, double& \w+, double lr\)", blocks["reference"], re.MULTILINE):
        sys.exit(f"{page}: the reference has no double {name}(double p, double g, double& state, double lr)")
    (out / "new_rule.h").write_text(f'#define LT_NEW_RULE {name}\n#define LT_NEW_RULE_NAME "{name}"\n')
    kernels = f'#define LT_CPU_RULE {struct}\n#define LT_CPU_RULE_NAME {name}\n#include "backend/cpu/step_rule.inc"\n'
    (out / "step_new.cpp").write_text(kernels)
    # The sources that the list is compiled into.
    for changed in ("backend/catalog.cpp", "backend/cpu/step_table.cpp", "backend/cpu/cpu_backend.cpp"):
        (out / Path(changed).name).write_text((src / changed).read_text())


if __name__ == "__main__":
    main(*map(Path, sys.argv[1:]))
