#!/usr/bin/env python3
"""Fine-tunes a LLaMA on instructions with a paged optimizer: bitsandbytes' example of that name, on any device.

    python examples/paged_xpu_training.py                                              # a minute on two cores
    python examples/paged_xpu_training.py --optimizer paged_adamw8bit --steps 50
    python examples/paged_xpu_training.py --compare                                    # beside the unpaged class
    python examples/paged_xpu_training.py --use_trainer --optimizer paged_adamw8bit    # transformers' Trainer
    python examples/paged_xpu_training.py --model JackFram/llama-68m --dataset alpaca.json

Without --model, the model has the shape of JackFram/llama-68m and random weights, and a tokenizer is made from the text, so
nothing is downloaded. --dataset is a file in Alpaca's form, or the name of a data set that the package `datasets` loads.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from llama.common import ExampleError, require_packages, write_json
from llama.config import Config
from llama.text import Corpus, Record, limited, load_corpus, render_alpaca

PACKAGES = ("torch", "numpy", "transformers", "tokenizers")
DATA = Path(__file__).resolve().parent / "data" / "instructions.json"
NAMES = {"adamw": "AdamW", "adam": "Adam", "lion": "Lion"}
CLASSES = {  # bitsandbytes' classes by the name of the option
    f"{prefix.lower()}{name}{bits}": f"{prefix.removesuffix('_')}{title}{bits}"
    for prefix in ("Paged_", "")
    for name, title in NAMES.items()
    for bits in ("", "8bit", "32bit")
}
SHAPE = ("width", "layers", "inner width", "heads", "vocabulary")  # of --shape, in this order
DTYPES = {"bf16": "bfloat16", "fp16": "float16", "fp32": "float32"}
BACKENDS = {"cpu": "cpu", "xpu": "sycl", "cuda": "cuda"}
IGNORED = -100  # the label of padding, which the loss ignores


def shape_of(args: argparse.Namespace) -> tuple[Config, int]:
    """The numbers of --shape and the vocabulary. Raises ExampleError for an impossible shape."""
    sizes = args.shape.split("x")
    if len(sizes) != len(SHAPE) or not all(size.isascii() and size.isdigit() for size in sizes):
        raise ExampleError(f"--shape: got {args.shape}, wanted five numbers, as in 768x2x3072x12x32000")
    for name, size in zip(SHAPE, sizes, strict=True):
        if int(size) < 1:
            raise ExampleError(f"--shape, {name}: got {size}, wanted 1 or more")
    width, layers, inner, heads, vocabulary = map(int, sizes)
    if width % (2 * heads):
        raise ExampleError(f"--shape, width: got {width}, wanted a multiple of {2 * heads}: {heads} heads of an even width")
    return Config(width=width, layers=layers, ffn=inner, heads=heads, context=2 * args.max_length), vocabulary


def check_device(device: str) -> None:
    """Raises ExampleError if torch or Lowtide lacks the device here."""
    import torch

    import lowtide

    if device != "cpu" and not (hasattr(torch, device) and getattr(torch, device).is_available()):
        raise ExampleError(f"--device {device}: torch {torch.__version__} finds no {device} device")
    found = lowtide.backends()[BACKENDS[device]]
    if not found["available"]:
        raise ExampleError(f"--device {device}: {found['detail']}")


def best_device() -> str:
    """The first of xpu, cuda and cpu that torch finds."""
    import torch

    return next((kind for kind in ("xpu", "cuda") if hasattr(torch, kind) and getattr(torch, kind).is_available()), "cpu")


@dataclass(frozen=True)
class Task:
    """The options, the text, and the model that every run starts with."""

    args: argparse.Namespace
    wait: Any  # a `lowtide.cli.waiting.Waiting`, which shows what takes long
    device: str
    tokenizer: Any
    rows: list[dict[str, Any]]  # "input_ids", "attention_mask" and "labels": int64 tensors of max_length

    def model(self) -> Any:
        """The model from the seed, or as it was saved; the same every time."""
        import torch
        from transformers import AutoModelForCausalLM

        dtype = getattr(torch, DTYPES[self.args.dtype])
        if self.args.model is None:
            from llama.model import build_model

            model = build_model(*shape_of(self.args))
            for parameter in model.parameters():  # not buffers: the table of rotary frequencies stays
                parameter.data = parameter.data.to(dtype)
        else:
            model = AutoModelForCausalLM.from_pretrained(self.args.model, dtype=dtype)
        model = model.to(self.device)
        wanted, vocabulary = 1 + max(int(row["input_ids"].max()) for row in self.rows), model.get_input_embeddings().num_embeddings
        if vocabulary < wanted:
            raise ExampleError(f"{'--shape' if self.args.model is None else '--model'}: got a vocabulary of {vocabulary}, "
                               f"wanted {wanted} or more: the tokenizer gives tokens up to {wanted - 1}")  # fmt: skip
        return model

    def optimizer(self, name: str, model: Any, scratch: str) -> Any:
        import lowtide
        from lowtide.compat import bitsandbytes as bnb  # was: import bitsandbytes as bnb

        # State beyond the budget goes to the disk or, for a device, to host memory.
        budget = {"host": self.args.budget, "disk": scratch} if self.device == "cpu" else {"device": self.args.budget}
        options = {"memory": lowtide.Memory(**budget)} if name.startswith("paged_") else {}
        return getattr(bnb.optim, CLASSES[name])(model.parameters(), lr=self.args.lr, **options)


def downloaded(name: str) -> Corpus:
    """Rows, in Alpaca's form, of a data set that the package `datasets` knows."""
    require_packages(["datasets"])
    import datasets

    try:
        rows = list(datasets.load_dataset(name, split="train"))
    except Exception as error:  # the library raises many unrelated types for "no network" and "no such data set"
        raise ExampleError(f"--dataset {name}: {type(error).__name__}: {error}; give a local file") from error
    records = [Record(f"{name}#{place}", render_alpaca(row, f"--dataset {name}, row {place}")) for place, row in enumerate(rows)]
    return limited(name, records, Config.max_data_bytes)


def tokenizer_of(args: argparse.Namespace, corpus: Any) -> Any:
    """The model's tokenizer, or one made from the text."""
    from transformers import AutoTokenizer, PreTrainedTokenizerFast

    if args.model is not None:
        found = AutoTokenizer.from_pretrained(args.model)
        if found.pad_token is None:
            found.pad_token = found.eos_token
        return found
    from llama.text import END_OF_TEXT, prepare

    prepare(Config(out=args.out, data=str(DATA), vocab=512, batch=1, context=16), corpus)
    file = Path(args.out) / "data" / "tokenizer.json"
    return PreTrainedTokenizerFast(tokenizer_file=str(file), eos_token=END_OF_TEXT, pad_token=END_OF_TEXT)


def task_of(args: argparse.Namespace, wait: Any, device: str) -> Task:
    """Reads and encodes the text."""
    wait("importing transformers and reading the text")
    is_file = Path(args.dataset).suffix in (".json", ".jsonl", ".txt") or Path(args.dataset).exists()
    corpus = load_corpus(Config(data=args.dataset)) if is_file else downloaded(args.dataset)
    tokenizer = tokenizer_of(args, corpus)
    rows = []
    for record in corpus.records:
        encoded = tokenizer(record.text, truncation=True, max_length=args.max_length, padding="max_length", return_tensors="pt")
        ids, mask = encoded["input_ids"][0], encoded["attention_mask"][0]
        rows.append({"input_ids": ids, "attention_mask": mask, "labels": ids.masked_fill(mask == 0, IGNORED)})
    return Task(args, wait, device, tokenizer, rows)


def train(task: Task, name: str, scratch: str) -> list[float]:
    """Trains, and returns the loss of each step."""
    import torch

    args = task.args
    task.wait("making the model")
    model = task.model()
    optimizer = task.optimizer(name, model, scratch)
    task.wait("training")
    order = torch.Generator().manual_seed(42)
    loader = torch.utils.data.DataLoader(task.rows, batch_size=args.batch_size, shuffle=True, generator=order)
    losses: list[float] = []
    start = time.perf_counter()
    while len(losses) < args.steps:
        for batch in loader:
            loss = model(**{key: value.to(task.device) for key, value in batch.items()}).loss
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
            losses.append(loss.item())
            if (len(losses) - 1) % args.log_interval == 0:
                task.wait.say(f"  step {len(losses) - 1:4d} | loss {losses[-1]:.4f} | {time.perf_counter() - start:.1f} s")
            if len(losses) == args.steps:
                break
    report = optimizer.report()
    places = {"RAM": "allocated_bytes", "disk": "disk_bytes"} if task.device == "cpu" else {"device": "device_bytes", "host": "allocated_bytes"}
    taken = ", ".join(f"{place} {report[key] / 1e6:.1f} MB" for place, key in places.items())
    task.wait.say(f"  state: {report['state_bytes'] / 1e6:.1f} MB; taken for it, with buffers: {taken}")
    return losses


def single(task: Task, scratch: str) -> bool:
    """Trains with one optimizer. Returns whether the loss fell."""
    losses = train(task, task.args.optimizer, scratch)
    task.wait.say(f"loss {losses[0]:.4f} → {losses[-1]:.4f}")
    write_json(Path(task.args.out) / "report.json", {task.args.optimizer: losses})
    return losses[-1] < losses[0]


def compare(task: Task, scratch: str) -> bool:
    """Trains with the paged class and the unpaged one. Returns whether all losses have the same bits."""
    plain = task.args.optimizer.removeprefix("paged_")
    runs = {}
    for name in (plain, f"paged_{plain}"):
        task.wait.say(f"{name}:")
        runs[name] = train(task, name, scratch)
    a, b = runs.values()
    task.wait.say(f"{'step':>5s} | {plain:>14s} | {'paged_' + plain:>16s} | {'difference':>10s}")
    for step in range(0, len(a), task.args.log_interval):
        task.wait.say(f"{step:5d} | {a[step]:14.4f} | {b[step]:16.4f} | {abs(a[step] - b[step]):10.6f}")
    task.wait.say(f"largest difference: {max(abs(x - y) for x, y in zip(a, b, strict=True)):g}")
    write_json(Path(task.args.out) / "report.json", runs)
    return a == b


def with_trainer(task: Task, scratch: str) -> bool:
    """Trains with transformers' Trainer. Returns whether the saved model is the trained one."""
    import torch
    from transformers import AutoModelForCausalLM, Trainer, TrainingArguments

    args = task.args
    task.wait("making the model")
    model = task.model()
    optimizer = task.optimizer(args.optimizer, model, scratch)
    task.wait("training, saving and loading")
    folder = Path(args.out) / "trainer"
    settings = TrainingArguments(
        output_dir=str(folder), per_device_train_batch_size=args.batch_size, max_steps=args.steps,
        logging_steps=args.log_interval, save_strategy="no", report_to="none", use_cpu=task.device == "cpu",
        dataloader_pin_memory=False, disable_tqdm=True, seed=42,
    )  # fmt: skip
    scheduler = torch.optim.lr_scheduler.ConstantLR(optimizer, factor=1.0)
    trainer = Trainer(model=model, args=settings, train_dataset=task.rows, optimizers=(optimizer, scheduler))
    result = trainer.train()
    task.wait.say(f"mean loss {result.training_loss:.4f} over {result.global_step} steps")
    trainer.save_model(str(folder / "final"))
    task.tokenizer.save_pretrained(str(folder / "final"))
    loaded = AutoModelForCausalLM.from_pretrained(folder / "final", dtype=model.dtype)
    same = all(torch.equal(a.cpu(), b) for a, b in zip(model.parameters(), loaded.parameters(), strict=True))
    task.wait.say(f"saved to {folder / 'final'}, and loaded: {'the same weights' if same else 'OTHER WEIGHTS'}")
    return same


def main(arguments: Sequence[str] | None = None) -> int:
    """Returns the exit status: 1 if a loss did not fall, paging changed one, or a saved model differs."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default=None, help="folder or name of a LLaMA (default: random weights of --shape)")
    parser.add_argument("--shape", default="768x2x3072x12x32000", help=" x ".join(SHAPE))
    parser.add_argument("--dataset", default=str(DATA), help="instructions in Alpaca's form (.json, .jsonl), or a name")
    parser.add_argument("--optimizer", default="paged_adamw", choices=[*CLASSES])
    parser.add_argument("--lr", type=float, default=2e-4)
    parser.add_argument("--batch_size", type=int, default=2)
    parser.add_argument("--max_length", type=int, default=128, help="tokens of a row")
    parser.add_argument("--steps", type=int, default=30)
    parser.add_argument("--log_interval", type=int, default=5)
    instead = parser.add_mutually_exclusive_group()
    instead.add_argument("--compare", action="store_true", help="train with and without pages, and compare the losses")
    instead.add_argument("--use_trainer", action="store_true", help="transformers' Trainer instead of a loop")
    parser.add_argument("--device", default=None, choices=[*BACKENDS], help="default: the first of xpu, cuda, cpu")
    parser.add_argument("--dtype", default="bf16", choices=[*DTYPES])
    parser.add_argument("--budget", default="4MiB", help="of fast memory (RAM, or the device's), for paged state")
    parser.add_argument("--disk", default=None, help="folder for scratch files (default: the system's temporary one)")
    parser.add_argument("--out", default="out/paged_xpu", help="folder for report.json, the tokenizer and saved models")
    args = parser.parse_args(arguments)
    try:
        require_packages((*PACKAGES, "accelerate") if args.use_trainer else PACKAGES)
        for name in ("batch_size", "max_length", "steps", "log_interval"):
            if getattr(args, name) < 1:
                raise ExampleError(f"--{name}: got {getattr(args, name)}, wanted 1 or more")
        if args.steps < 2 and not (args.compare or args.use_trainer):
            raise ExampleError(f"--steps: got {args.steps}, wanted 2 or more: the last loss must be below the first")
        from lowtide.cli.waiting import Waiting

        run = compare if args.compare else with_trainer if args.use_trainer else single
        with tempfile.TemporaryDirectory(dir=args.disk) as scratch, Waiting("paged_xpu_training") as wait:
            wait.for_torch()
            device = args.device or best_device()
            check_device(device)
            if args.model is None:
                shape_of(args)  # refuses a shape before the text is read
            wait.say(f"{args.optimizer} on {device}, {args.dtype}: {args.steps} steps of {args.batch_size} x {args.max_length} tokens")
            right = run(task_of(args, wait, device), scratch)
    except (ExampleError, ValueError, OSError) as error:
        print(f"paged_xpu_training: {error}", file=sys.stderr)
        return 2
    return 0 if right else 1


if __name__ == "__main__":
    sys.exit(main())
