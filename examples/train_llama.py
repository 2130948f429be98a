#!/usr/bin/env python3
"""Train a LLaMA on real text twice, with torch's AdamW and with Lowtide's, and compare.

    python examples/train_llama.py                          # about a minute and a half on two cores
    python examples/train_llama.py --data my_notes.txt      # your own text, folder, or Alpaca JSON
    python examples/train_llama.py --resume                 # after Ctrl-C
    python examples/train_llama.py --optimizers torch,lowtide:ram,lowtide --ram-budget 2MiB --disk .   # state on disk

Both runs start from the same weights and see the same text in the same order. Results go to ``out/train``: a table on
the terminal, ``report.json``, ``loss.png`` and ``memory.png``, one folder per optimizer with its checkpoint.
"""

from __future__ import annotations

import argparse
import sys
import time
from dataclasses import fields
from pathlib import Path
from typing import Any

from llama.config import Config
from llama.errors import ExampleError, Interrupted, require_packages
from llama.files import write_json
from llama.optimizers import check_optimizers, is_limited
from llama.progress import Waiting
from llama.report import make_report, print_table

PACKAGES = ("torch", "numpy", "transformers", "tokenizers", "matplotlib", "rich", "tqdm")


def run(config: Config) -> dict[str, Any]:
    """Do the whole job and return the report, which is also in ``report.json``."""
    require_packages(PACKAGES)
    check_optimizers(config)
    start = time.perf_counter()
    if config.resume and not any((config.run_dir(label) / "checkpoint.pt").exists() for label in config.optimizers):
        raise ExampleError(f"--resume: no checkpoint in {config.out}; leave --resume out to start a new run")
    # Each import stands where it is needed: what they find wrong is said before the next one takes its seconds.
    with Waiting("reading text", config.quiet):
        from llama.data import load_corpus

        corpus = load_corpus(config)
    with Waiting(f"making tokens of {corpus.size / 1e6:.1f} MB", config.quiet):
        from llama.tokens import prepare

        tokens = prepare(config, corpus)
    seconds = {"data": time.perf_counter() - start}
    _say(config, f"text: {tokens.info['source']}, {tokens.info['bytes'] / 1e6:.1f} MB, vocabulary {tokens.vocab}:\n"
                 f"  {tokens.info['tokens']['train']:,} tokens for training, "
                 f"{tokens.info['tokens']['validation']:,} for validation")  # fmt: skip
    runs: dict[str, Any] = {}
    # Those under a budget first: one that is too small shows in the first step, not after the others have trained.
    for label in sorted(config.optimizers, key=lambda label: not is_limited(label, config)):
        begin = time.perf_counter()
        if config.isolate:
            from llama.worker import train_isolated

            runs[label] = train_isolated(config, label)
        else:
            from llama.loop import train

            runs[label] = train(config, label, tokens)
        seconds[label] = time.perf_counter() - begin
    begin = time.perf_counter()
    seconds["total"] = begin - start
    runs = {label: runs[label] for label in config.optimizers}
    data = {key: value for key, value in tokens.info.items() if not key.endswith("sha256")}
    report = make_report(config, data, runs, seconds)
    out = Path(config.out)
    with Waiting("drawing", config.quiet):
        from llama import plots

        pictures = plots.draw(report, out)
    write_json(out / "report.json", report)
    if not config.quiet:
        print_table(report)
        print(f"written: {', '.join(str(path) for path in (out / 'report.json', *pictures))}; "
              f"{time.perf_counter() - start:.0f} s in all")  # fmt: skip
    return report


def parse(arguments: list[str] | None = None) -> Config:
    """Turn the command line into settings; every option has the name of its field in ``Config``."""
    default = {field.name: field.default for field in fields(Config)}
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0], epilog="Ctrl-C saves a checkpoint.",
                                     formatter_class=argparse.ArgumentDefaultsHelpFormatter)  # fmt: skip

    def add(name: str, text: str, **more: Any) -> None:
        value = default[name]
        kind = {} if "action" in more or "type" in more else {"type": str if value is None else type(value)}
        parser.add_argument("--" + name.replace("_", "-"), default=value, help=text, **kind, **more)

    add("out", "folder for everything the job writes")
    add("optimizers", "comma-separated: torch, torch:fused, lowtide, lowtide:STATE, either with :ram to stay in RAM "
        "beside a run with --ram-budget; the first is the reference",
        type=lambda text: tuple(part.strip() for part in text.split(",") if part.strip()))  # fmt: skip
    add("state", "state format of lowtide")
    add("ram_budget", "RAM that lowtide's state may take, such as 4MiB; the rest goes to --disk")
    add("disk", "directory for state beyond --ram-budget, best on a local SSD")
    add("chunk", "unit in which state moves, such as 1MiB (None: the library chooses)")
    add("data", "text file, folder of text or code, or .json/.jsonl in Alpaca's form (None: Python's standard library)")
    add("hf_dataset", "name of a Hugging Face data set (needs the datasets package and a network)")
    add("hf_config", "its configuration")
    add("hf_split", "its split")
    add("text_column", "its column with the text")
    add("max_data_bytes", "use at most this much text")
    for name, text in (
        ("steps", "training steps"), ("seed", "seed of weights and data order"), ("lr", "highest learning rate"),
        ("warmup", "steps of linear warm-up"), ("final_lr", "learning rate at the end, as a share of the highest"),
        ("weight_decay", "of matrices; vectors have none"), ("beta1", "AdamW"), ("beta2", "AdamW"), ("eps", "AdamW"),
        ("clip", "largest gradient norm"), ("batch", "windows per step"), ("context", "tokens per window"),
        ("width", "of the model"), ("layers", "of the model"), ("heads", "of attention"),
        ("ffn", "feed-forward width (0: 8/3 of the width)"), ("vocab", "size of the tokenizer"),
    ):  # fmt: skip
        add(name, text)
    add("dtype", "type of the weights", choices=("fp32", "bf16"))
    add("threads", "threads of torch (0: its own choice)")
    add("eval_every", "steps between validations (0: ten over the run)")
    add("eval_windows", "windows of text in a validation")
    add("checkpoint_every", "steps between checkpoints (0: only at the end)")
    add("resume", "continue each optimizer from its checkpoint, bit for bit", action="store_true")
    add("stop_after", "stop at this step as Ctrl-C would (0: run to the end)")
    add("quiet", "print nothing but errors", action="store_true")
    return Config(**vars(parser.parse_args(arguments)))


def _say(config: Config, line: str) -> None:
    if not config.quiet:
        print(line, flush=True)


def main() -> int:
    """Entry point; 0 done, 2 an error the user can mend, 128 + signal when interrupted."""
    try:
        run(parse())
    except ExampleError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    except Interrupted as stop:
        print(stop, file=sys.stderr)
        return stop.exit_code
    except KeyboardInterrupt:
        print("stopped before training began; nothing to save", file=sys.stderr)
        return 130
    return 0


if __name__ == "__main__":
    sys.exit(main())
