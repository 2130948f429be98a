#!/usr/bin/env python3
"""The speed of an optimizer step, as ratios to torch's fused AdamW and to the memory ceiling of the same run.

    make bench                       all rows
    make bench ARGS="--quick"        a smoke run: small sizes, few rounds; the figures mean nothing
    make bench ARGS="--json x.json --markdown x.md"
"""

from __future__ import annotations

import argparse
import json
import os
import sys
from pathlib import Path

# torch's OpenMP threads bound to cores, from the start: a worker woken from sleep is otherwise put on its waker's core, and
# two threads run like one. Bound before torch loads its OpenMP.
if os.environ.get("OMP_PROC_BIND") is None:
    os.environ.update(OMP_PROC_BIND="true", OMP_PLACES="cores")
    os.execv(sys.executable, [sys.executable, *sys.argv])

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from step.groups import Settings, codes_row, large_rows, peer_rows, state_row, tiny_rows  # noqa: E402
from step.table import markdown, show  # noqa: E402

from common.measure import machine  # noqa: E402


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="4 Mi elements, few rounds")
    parser.add_argument("--rounds", type=int, default=None, help="rounds per contender (default 15, quick 3)")
    parser.add_argument("--json", type=Path, default=Path("out/bench/step.json"), help="where the figures go")
    parser.add_argument("--markdown", type=Path, default=None, help="write the tables as Markdown too")
    args = parser.parse_args()

    settings = Settings(
        elements=(4 if args.quick else 64) << 20,
        peer_elements=(1 if args.quick else 16) << 20,
        tiny_tensors=500 if args.quick else 10_000,
        rounds=args.rounds or (3 if args.quick else 15),
    )
    result: dict[str, object] = {"machine": machine(), "settings": vars(settings)}
    result["large"] = large_rows(settings)
    result["peers"] = peer_rows(settings)
    result["tiny"] = tiny_rows(settings)
    result["state"] = state_row()
    result["codes"] = codes_row()
    result["load_average_after"] = os.getloadavg()

    show(result)
    args.json.parent.mkdir(parents=True, exist_ok=True)
    args.json.write_text(json.dumps(result, indent=1) + "\n")
    print(f"wrote {args.json}")
    if args.markdown:
        args.markdown.write_text(markdown(result))
        print(f"wrote {args.markdown}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
