#!/usr/bin/env python3
"""Trains a small language model with every state format, seed and beta2, and compares state with its average.

    .venv/bin/python bench/quality/run.py                          all missing results, then the report
    .venv/bin/python bench/quality/run.py --variants fp32,dynamic8 only these; the report has all results
    .venv/bin/python bench/quality/run.py --report                 only the report of existing results
    .venv/bin/python bench/quality/run.py --known FILE.json        continues from an earlier report of equal settings and text
    .venv/bin/python bench/quality/run.py --device cuda            trains on a GPU; results are kept separately
    .venv/bin/python bench/quality/run.py --quick                  tiny: shows that it runs, measures nothing

Each result is stored at once, so a stopped run resumes there, and two runs share the work. docs/benchmarks/method.md says how
to read the figures.
"""

from __future__ import annotations

import sys
from pathlib import Path

if __name__ == "__main__":
    sys.path[0] = str(Path(__file__).resolve().parents[1])

import argparse  # noqa: E402
import dataclasses  # noqa: E402
import json  # noqa: E402
from collections.abc import Sequence  # noqa: E402
from datetime import date  # noqa: E402
from functools import partial  # noqa: E402
from typing import Any  # noqa: E402

import torch  # noqa: E402
from common import machine  # noqa: E402
from quality import corpus, fidelity, report  # noqa: E402
from quality.model import Size  # noqa: E402
from common.store import Store  # noqa: E402
from quality.training import Settings, difference, train  # noqa: E402
from quality.variants import SCHEDULE_FREE_LR, VARIANTS, Variant, by_seed, makeable, why_not  # noqa: E402

BETA2 = (0.999, 0.95)
OUT = Path(__file__).resolve().parents[2] / "build" / "bench" / "quality"
SCALES = {
    "1M": Settings(),
    "25M": Settings(
        size=Size(width=512, layers=8, heads=8, hidden=1376), steps=3000, batch=1, context=128, lr=5e-4, warmup=200,
        validation_windows=512, watch_every=25, watch_share=4, autocast=True,
    ),
    "110M": Settings(
        size=Size(width=768, layers=15, heads=12, hidden=2048), steps=500, batch=2, context=128, lr=6e-4, warmup=50,
        validation_windows=512, watch_every=25, watch_share=4, autocast=True,
    ),
}  # fmt: skip
RATE = "schedule-free lr"  # key in reports and stored results; SCHEDULE_FREE_LR is no setting
QUICK = dataclasses.replace(Settings(), steps=30, warmup=5, validation_windows=64)
PACKAGES = ["torch", "numpy", "bitsandbytes", "lowtide"]
GPU_PACKAGES = [*PACKAGES, "flashoptim", "torchao", "triton"]


def run_name(variant: str, seed: int | str, beta2: float) -> str:
    return f"train-{variant}-{seed}-{beta2}"


def fidelity_name(variant: Variant, beta2: float) -> str:
    return f"fidelity-{variant.id}-{beta2}"


def run_all(
    variants: list[Variant], betas2: Sequence[float], settings: Settings, sizes: fidelity.Sizes, text: corpus.Corpus,
    trained: Store, units: Store, device: str,
) -> None:  # fmt: skip
    """Trains on `device`. On the CPU, also compares state with its average; Lowtide's state has the same bits elsewhere."""
    able = makeable(variants, device)
    trained.make_all(
        (run_name(variant.id, seed, beta2), partial(train, settings, variant, seed, beta2, text, device=device))
        for seed, variant in by_seed(able)
        for beta2 in betas2
    )
    if device != "cpu":
        return
    for variant in able:
        for beta2 in betas2:
            if variant.moments:
                units.make(fidelity_name(variant, beta2), partial(fidelity.measure, variant, beta2, sizes))


def described(device: str) -> dict[str, Any]:
    return machine.describe(PACKAGES if device == "cpu" else GPU_PACKAGES, device)


def collect(
    settings: Settings, sizes: fidelity.Sizes, text: corpus.Corpus, trained: Store, units: Store, device: str
) -> dict[str, Any]:
    """All stored results in one report."""
    runs: list[dict[str, Any]] = []
    found_units: list[dict[str, Any]] = []
    absent: dict[str, str] = {}
    can_tell = device == "cpu" or torch.cuda.is_available()  # reports need not be made where their runs were
    for variant in VARIANTS:
        before = len(runs)
        for beta2 in BETA2:
            there = trained.folder.glob(f"{run_name(variant.id, '*', beta2)}.json")
            runs += sorted((json.loads(path.read_text()) for path in there), key=lambda run: int(run["seed"]))
            if device == "cpu":
                found_units += [found] if (found := units.get(fidelity_name(variant, beta2))) else []
        if len(runs) == before:
            absent[variant.id] = (can_tell and why_not(variant, device)) or "not run yet"
    return {
        "date": date.today().isoformat(),
        "machine": described(device),
        "device": device,
        "settings": dataclasses.asdict(settings),
        "sizes": dataclasses.asdict(sizes),
        "corpus": corpus.describe(text),
        "parameters": report.parameter_count(settings),
        RATE: SCHEDULE_FREE_LR,
        "absent": absent,
        "runs": runs,
        "fidelity": found_units,
    }


def adopt(file: Path, settings: Settings, text: corpus.Corpus, trained: Store, device: str) -> None:
    """Adopts the runs of an earlier report. Raises ValueError for any other file, or for other settings or another text."""
    try:
        known = json.loads(file.read_text())
        got = {**known["settings"], "text": known["corpus"]["sha256"]}
        made = machine.origin(known["machine"])
        named = [(run_name(run["variant"], run["seed"], run["beta2"]), {"made": made, **run}) for run in known["runs"]]
    except (KeyError, TypeError, json.JSONDecodeError) as error:
        raise ValueError(f"{file}: got no report of trainings ({error!r}), wanted a quality.json") from error
    # Reports that do not state a rate for Schedule-Free used today's.
    got |= {RATE: known.get(RATE, SCHEDULE_FREE_LR), "device": known.get("device", "cpu")}
    wanted = {**dataclasses.asdict(settings), "text": text.sha256, RATE: SCHEDULE_FREE_LR, "device": device}
    if other := difference(got, wanted):
        raise ValueError(f"{file}: got {other}: its runs cannot be compared with those to be made")
    for name, run in named:  # with its own "made", or the report's if it is too old for that
        trained.adopt(name, run)


def train_all(args: argparse.Namespace) -> int:
    settings, sizes = (QUICK, fidelity.QUICK) if args.quick else (SCALES[args.scale], fidelity.Sizes())
    asked = {name: value for name in ("beta1", "lr") if (value := getattr(args, name)) is not None}
    settings = dataclasses.replace(settings, **asked)
    text = corpus.load(args.text)
    device = args.device
    origin = machine.origin(described(device))
    conditions = {"settings": dataclasses.asdict(settings), "corpus": text.sha256, RATE: SCHEDULE_FREE_LR}
    conditions |= {} if device == "cpu" else {"device": device}
    trained = Store(args.out, conditions, origin)
    for file in args.known or ():
        adopt(file, settings, text, trained, device)
    constants = {"beside": fidelity.BESIDE, "changes": fidelity.CHANGES, "live": fidelity.LIVE, "lr": fidelity.LR}
    units = Store(args.out, {"sizes": dataclasses.asdict(sizes), **constants}, origin)
    if not args.report:
        run_all(args.variants, args.beta2 or BETA2, settings, sizes, text, trained, units, device)
    report.write(collect(settings, sizes, text, trained, units, device), args.out)
    return 0


def main() -> int:
    parser = argparse.ArgumentParser(description="Trains a small model with every state format.")
    parser.add_argument("--variants", help="names, separated by commas (default: all)")
    parser.add_argument("--report", action="store_true", help="run nothing, report what is there")
    parser.add_argument("--scale", choices=SCALES, default="1M", help="parameters; results of each scale are kept apart")
    parser.add_argument("--seeds", type=int, help="of each variant (default: as many as it has; 0: compare only state with its average)")
    parser.add_argument("--beta2", type=float, choices=BETA2, nargs="+", help="of the runs to make (default: both)")
    parser.add_argument("--beta1", type=float, help="of all trainings (default: 0.9); results of another one are kept apart")
    parser.add_argument("--lr", type=float, help="of all trainings (default: the scale's); results of another one are kept apart")
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cpu", help="of the trainings; results of each are kept apart")
    parser.add_argument("--text", type=Path, metavar="DIR", help="standard library of another Python, to train on the text of an earlier report")
    parser.add_argument("--known", type=Path, nargs="+", metavar="FILE", help="earlier reports (quality.json) whose runs are taken over")
    parser.add_argument("--quick", action="store_true", help="tiny runs: shows that it runs, measures nothing")
    parser.add_argument("--out", type=Path, default=OUT, help="folder of results and of quality.{json,md}")
    args = parser.parse_args()
    if args.device == "cuda" and not args.report and not torch.cuda.is_available():
        parser.error("--device: got cuda, but torch sees no GPU here")
    if args.report and (given := [f"--{name}" for name in ("variants", "seeds", "beta2") if getattr(args, name) is not None]):
        parser.error(f"got {', '.join(given)} with --report, where it has no effect; leave it out")
    known = [variant.id for variant in VARIANTS]
    names = args.variants.split(",") if args.variants else known
    if unknown := [name for name in names if name not in known]:
        parser.error(f"--variants: got {', '.join(unknown)}, wanted some of {', '.join(known)}")
    if args.seeds is not None and args.seeds < 0:
        parser.error(f"--seeds: got {args.seeds}, wanted 0 or more")
    changes = {} if args.seeds is None else {"seeds": args.seeds}
    args.variants = [dataclasses.replace(variant, **changes) for variant in VARIANTS if variant.id in names]
    torch.set_num_threads(1)
    try:
        return train_all(args)
    except (OSError, ValueError) as error:
        parser.error(str(error))


if __name__ == "__main__":
    sys.exit(main())
