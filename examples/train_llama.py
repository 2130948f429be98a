#!/usr/bin/env python3
"""Trains a LLaMA on real text with torch's AdamW and with Lowtide's, and compare.

    python examples/train_llama.py                          # about two minutes on two cores
    python examples/train_llama.py --data my_notes.txt      # your own text, folder, or Alpaca JSON
    python examples/train_llama.py --resume                 # after Ctrl-C
    python examples/train_llama.py --optimizers torch,lowtide,paged --host 2MiB --disk .   # the third with state on disk

All runs start from the same weights and see the same text in the same order, except `again`: torch's AdamW with the text in
another order, whose loss shows how much chance moves a loss. Results go to `out/train`: a table on the terminal, `report.json`,
`loss.png`, and one folder for each optimizer with its checkpoint.
"""

from __future__ import annotations

import argparse
import math
import os
import signal
import statistics
import sys
import time
from dataclasses import asdict, fields
from pathlib import Path
from typing import Any

from llama import memory
from llama.common import ExampleError, require_packages, write_json
from llama.config import Config

PACKAGES = ("torch", "numpy", "transformers", "tokenizers", "matplotlib", "lowtide")
HELP = {
    "out": "folder for everything that is written",
    "optimizers": "comma-separated: torch, again (torch with the text in another order), lowtide, paged (Lowtide within --host), "
    "the last two also as lowtide:STATE",
    "state": "state format of Lowtide",
    "host": "RAM that the state of `paged` may take, such as 4MiB; the rest goes to --disk",
    "disk": "directory for state beyond --host, best on a local SSD",
    "data": "text file, folder of text or code, or .json/.jsonl in Alpaca's form (None: Python's standard library)",
    "max_data_bytes": "use at most this much text",
    "warmup": "steps of linear warm-up",
    "final_lr": "learning rate at the end, as a share of the highest",
    "weight_decay": "of matrices; vectors have none",
    "clip": "largest gradient norm",
    "batch": "windows a step",
    "context": "tokens a window",
    "ffn": "feed-forward width (0: 8/3 of the width)",
    "vocab": "size of the tokenizer",
    "dtype": "of the weights: fp32 or bf16",
    "threads": "of torch (0: its own choice)",
    "eval_every": "steps between validations (0: ten over the run)",
    "eval_windows": "windows of text in a validation",
    "checkpoint_every": "steps between checkpoints (0: only at the end)",
    "resume": "continue each optimizer from its checkpoint, bit for bit",
    "stop_after": "stop at this step as Ctrl-C would (0: run to the end)",
}


def parse_label(label: str, config: Config) -> tuple[str, str]:
    """Name and state format. Raises ExampleError for what is none."""
    name, _, state = label.partition(":")
    if name not in ("torch", "again", "lowtide", "paged") or (name in ("torch", "again") and state):
        raise ExampleError(f"--optimizers: got {label!r}, wanted torch, again, lowtide, paged, lowtide:STATE or paged:STATE")
    return name, state or config.state


def check(config: Config) -> list[str]:
    """The labels. Refuses what cannot be, before text is read and torch is imported."""
    labels = config.optimizers.split(",")
    choices = [parse_label(label, config) for label in labels]
    if len(set(labels)) != len(labels):
        raise ExampleError(f"--optimizers: got {config.optimizers}, wanted each once")
    from lowtide import _core

    for name, state in choices:
        if state not in _core.codec_names():
            raise ExampleError(f"no state format {state!r}; known are {', '.join(_core.codec_names())}")
    if config.host is not None:
        try:
            _core.parse_bytes(config.host)
        except ValueError as error:
            raise ExampleError(f"--host: {error}") from error
    if config.disk is not None and not Path(config.disk).is_dir():
        raise ExampleError(f"--disk {config.disk}: no such directory; make it, best on a local SSD, or name another")
    if (config.host is not None) != any(name == "paged" for name, _ in choices):
        raise ExampleError("--host and an optimizer `paged` go together: got only one of the two")
    if config.resume and not any((config.folder(label) / "checkpoint.pt").exists() for label in labels):
        raise ExampleError(f"--resume: no checkpoint in {config.out}; leave --resume out to start a new run")
    return labels


def make_optimizer(label: str, config: Config, groups: list[dict[str, Any]]) -> Any:
    """AdamW of either library with the same hyper-parameters."""
    import torch

    import lowtide

    name, state = parse_label(label, config)
    settings: dict[str, Any] = {"lr": config.lr, "betas": (config.beta1, config.beta2), "eps": 1e-8}
    if name in ("torch", "again"):
        return torch.optim.AdamW(groups, fused=True, **settings)
    budget = lowtide.Memory(host=config.host, disk=config.disk) if name == "paged" else None
    return lowtide.AdamW(groups, state=state, memory=budget, **settings)


class Run:
    """A training: what a checkpoint holds, and steps."""

    def __init__(self, label: str, config: Config) -> None:
        import torch
        from llama import text
        from llama.model import build_model, parameter_groups

        self.label, self.config = label, config
        tokens = text.load(config)
        torch.set_num_threads(config.threads or torch.get_num_threads())
        self.model = build_model(config, tokens.vocab)
        self.optimizer = make_optimizer(label, config, parameter_groups(self.model, config.weight_decay))
        name, state = parse_label(label, config)
        self.batches = text.Batches(tokens.train, config.batch, config.context, config.seed + (name == "again"))
        self.windows = text.validation_windows(tokens.validation, config.context, config.eval_windows)
        kind = name if name in ("torch", "again") else state  # `lowtide` and `paged` go on from each other's checkpoints
        self.identity = {**config.identity(), "optimizer": kind, "text": tokens.sha256}
        self.path = config.folder(label) / "checkpoint.pt"
        self.done = 0
        self.history: dict[str, list[Any]] = {name: [] for name in ("loss", "step_ms", "optimizer_ms", "validation")}

    def save(self) -> None:
        """The optimizer's own file first, under a new name, then checkpoint.pt, which names it, in one rename: whenever the process
        dies, checkpoint.pt and its file are of the same moment."""
        import torch

        folder, temporary = self.path.parent, self.path.with_suffix(".tmp")
        folder.mkdir(parents=True, exist_ok=True)
        state: Any
        if hasattr(self.optimizer, "save"):  # streams state from wherever it is; state_dict() would copy all of it into RAM
            state = f"optimizer-{self.done}-{time.time_ns()}.lowtide"
            self.optimizer.save(folder / state)
        else:
            state = self.optimizer.state_dict()
        torch.save({"identity": self.identity, "step": self.done, "model": self.model.state_dict(), "optimizer": state,
                    "history": self.history}, temporary)  # fmt: skip
        os.replace(temporary, self.path)
        for old in folder.glob("optimizer-*.lowtide"):
            if old.name != state:
                old.unlink()

    def restore(self) -> None:
        import torch

        kept = torch.load(self.path, weights_only=True)
        if changed := [name for name, value in self.identity.items() if kept["identity"].get(name) != value]:
            lines = "".join(f"\n  {name}: {kept['identity'].get(name)} there, {self.identity[name]} now" for name in changed)
            raise ExampleError(f"{self.path} belongs to a run with other settings:{lines}\n  repeat them, or choose another --out")
        self.model.load_state_dict(kept["model"])
        if isinstance(kept["optimizer"], str):
            self.optimizer.load(self.path.parent / kept["optimizer"])
        else:
            self.optimizer.load_state_dict(kept["optimizer"])
        self.done, self.history = kept["step"], kept["history"]

    def step(self) -> None:
        import torch
        from llama.model import learning_rate_factor, next_token_loss

        start = time.perf_counter()
        for group in self.optimizer.param_groups:
            group["lr"] = self.config.lr * learning_rate_factor(self.config, self.done)
        loss = next_token_loss(self.model, self.batches[self.done])
        loss.backward()
        norm = torch.nn.utils.clip_grad_norm_(self.model.parameters(), self.config.clip)
        if not (math.isfinite(loss.item()) and math.isfinite(norm.item())):
            raise ExampleError(f"{self.label}: loss or gradient is not finite at step {self.done + 1} (loss {loss.item()}, norm "
                               f"{norm.item()}); try a lower --lr")  # fmt: skip
        before = time.perf_counter()
        self.optimizer.step()
        after = time.perf_counter()
        self.optimizer.zero_grad()
        for name, value in (("loss", loss.item()), ("optimizer_ms", 1e3 * (after - before)), ("step_ms", 1e3 * (after - start))):
            self.history[name].append(value)
        self.done += 1

    def validate(self) -> None:
        from llama.model import validation_loss

        self.history["validation"].append([self.done, validation_loss(self.model, self.windows, self.config.batch)])


def train(config: Config, label: str) -> dict[str, Any] | None:
    """Trains with one optimizer, from its checkpoint if `resume` is set and there is one. None: stopped before the end."""
    from lowtide.cli.waiting import Waiting

    with Waiting(label) as wait:
        wait("importing torch and transformers")
        return _train(config, label, wait)


def _train(config: Config, label: str, wait: Any) -> dict[str, Any] | None:
    import torch
    from llama.model import weights_sha256
    from transformers import LlamaForCausalLM  # noqa: F401  before memory is measured: libraries are no part of a training

    torch.use_deterministic_algorithms(True)
    stopped: list[int] = []
    before = signal.signal(signal.SIGINT, lambda number, _: stopped.append(number))
    try:
        memory.reset_peak()
        run = Run(label, config)
        if config.resume and run.path.exists():
            run.restore()
        wait("training")
        if not run.done:
            run.validate()  # where all runs start from
        spoke = 0.0
        while run.done < config.steps:
            run.step()
            if run.done % config.eval_interval == 0 or run.done == config.steps:
                run.validate()
            if time.monotonic() > spoke + 1 or run.done == config.steps:
                spoke = time.monotonic()
                wait.say(f"{label}: step {run.done}/{config.steps}, loss {run.history['loss'][-1]:.3f}")
            stops = bool(stopped) or run.done == config.stop_after
            if stops or (config.checkpoint_every and run.done % config.checkpoint_every == 0) or run.done == config.steps:
                run.save()
            if stops and run.done < config.steps:
                return None
        peak = memory.peak_bytes()
    finally:
        signal.signal(signal.SIGINT, before)
        torch.use_deterministic_algorithms(False)
    report = run.optimizer.report() if hasattr(run.optimizer, "report") else {}
    tensors = [value for state in run.optimizer.state.values() for value in state.values() if isinstance(value, torch.Tensor)]
    return {
        "parameters": sum(parameter.numel() for parameter in run.model.parameters()),
        "train_loss": statistics.fmean(run.history["loss"][-max(1, min(50, config.steps // 4)) :]),
        "validation_loss": run.history["validation"][-1][1],
        "state_bytes": report.get("state_bytes", sum(tensor.nbytes for tensor in tensors)),
        "state_on_disk_bytes": report.get("disk_bytes", 0),
        "peak_bytes": peak,
        "step_ms": statistics.median(run.history["step_ms"]),
        "optimizer_ms": statistics.median(run.history["optimizer_ms"]),
        "weights": weights_sha256(run.model),
        "history": run.history,
    }


def same_bits(a: dict[str, Any], b: dict[str, Any]) -> bool:
    return a["weights"] == b["weights"] and all(a["history"][name] == b["history"][name] for name in ("loss", "validation"))


def show(runs: dict[str, dict[str, Any]]) -> None:
    """A table, and in words what is the same."""
    columns = ("train loss", "validation", "state, MiB", "on disk", "peak, MiB", "ms a step", "in step()")
    print(f"\n{'':16s}" + "".join(f"{column:>12s}" for column in columns))
    for label, run in runs.items():
        cells = (f"{run['train_loss']:.4f}", f"{run['validation_loss']:.4f}", f"{run['state_bytes'] / 2**20:.2f}",
                 f"{run['state_on_disk_bytes'] / 2**20:.2f}", f"{run['peak_bytes'] / 2**20:.0f}", f"{run['step_ms']:.1f}",
                 f"{run['optimizer_ms']:.2f}")  # fmt: skip
        print(f"{label:16s}" + "".join(f"{cell:>12s}" for cell in cells))
    labels = list(runs)
    for place, label in enumerate(labels):
        if twin := next((other for other in labels[:place] if same_bits(runs[label], runs[other])), None):
            print(f"{label}: the same bits as {twin}: {len(runs[label]['history']['loss'])} losses and all weights")
    if "torch" in runs and "lowtide" in runs:
        print(f"\n{conclusion(runs['torch'], runs['lowtide'], runs.get('again'))}")


def conclusion(theirs: dict[str, Any], ours: dict[str, Any], again: dict[str, Any] | None) -> str:
    """The table in words."""
    apart = ours["validation_loss"] - theirs["validation_loss"]
    loss = f"Lowtide's validation loss is {abs(apart):.4f} {'above' if apart > 0 else 'below'} that of torch's fused AdamW"
    if again:
        chance = abs(again["validation_loss"] - theirs["validation_loss"])
        loss += f"; the text in another order moves torch's by {chance:.4f}"
    ratios = [ours[name] / theirs[name] for name in ("state_bytes", "optimizer_ms")]
    return f"{loss}.\nIts state takes {ratios[0]:.2f} times the memory of torch's, and step() {ratios[1]:.2f} times the time."


def draw(runs: dict[str, dict[str, Any]], path: Path) -> None:
    import matplotlib

    matplotlib.use("Agg")  # draws to files; no display is needed or touched
    import matplotlib.pyplot as plt

    figure, axis = plt.subplots(figsize=(8, 4.5), layout="constrained")
    for (label, run), style in zip(runs.items(), ("-", "--", "-.", ":") * len(runs), strict=False):
        [line] = axis.plot(range(1, len(run["history"]["loss"]) + 1), run["history"]["loss"], style, alpha=0.6, label=f"{label}, training")
        axis.plot(*zip(*run["history"]["validation"], strict=True), "o", color=line.get_color(), mfc="none", label=f"{label}, validation")
    axis.set_xlabel("step")
    axis.set_ylabel("loss (nats per token)")
    axis.legend(frameon=False)
    figure.savefig(path, dpi=120)
    plt.close(figure)


def run(config: Config) -> dict[str, Any] | None:
    """Does the whole job and returns the report, which is also in `report.json`; None: stopped."""
    require_packages(PACKAGES)
    labels = check(config)
    from llama import text
    from lowtide.cli.waiting import Waiting

    with Waiting("train_llama") as wait:
        wait("reading text")
        corpus = text.load_corpus(config)
        wait.say(f"text: {corpus.source}, {corpus.size / 1e6:.1f} MB")
        wait("making tokens")
        tokens = text.prepare(config, corpus)
    runs: dict[str, Any] = {}
    for label in labels:
        # A process of its own: peak memory then belongs to that run alone. Ctrl-C is the child's to answer.
        before = signal.signal(signal.SIGINT, signal.SIG_IGN)
        try:
            found = memory.alone(train, config, label)
        except (ValueError, OSError) as error:  # the library's refusals say what to do
            raise ExampleError(f"{label}: {error}") from error
        finally:
            signal.signal(signal.SIGINT, before)
        if found is None:
            print(f"stopped; checkpoint saved in {config.folder(label)}; continue with the same command and --resume", file=sys.stderr)
            return None
        runs[label] = found
    report = {"config": asdict(config), "source": tokens.source, "cpu": memory.cpu_name(), "runs": runs}
    write_json(Path(config.out) / "report.json", report)
    with Waiting("train_llama") as wait:
        wait("drawing")
        draw(runs, Path(config.out) / "loss.png")
    show(runs)
    print(f"written: {config.out}/report.json, {config.out}/loss.png")
    return report


def parse(arguments: list[str] | None = None) -> Config:
    """Turns the command line into settings; every option has the name of its field in Config."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0], epilog="Ctrl-C saves a checkpoint.",
                                     formatter_class=argparse.ArgumentDefaultsHelpFormatter)  # fmt: skip
    for field in fields(Config):
        kind: dict[str, Any] = {"action": "store_true"} if field.type == "bool" else {"type": str if field.default is None else type(field.default)}
        parser.add_argument("--" + field.name.replace("_", "-"), default=field.default, help=HELP.get(field.name, " "), **kind)
    return Config(**vars(parser.parse_args(arguments)))


def main() -> int:
    """Entry point; 0 done, 2 an error the user can mend, 130 when interrupted."""
    try:
        return 0 if run(parse()) else 130
    except (ExampleError, OSError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        print("stopped before training began; nothing to save", file=sys.stderr)
        return 130


if __name__ == "__main__":
    sys.exit(main())
