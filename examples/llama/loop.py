"""The training loop of one optimizer: steps, validation, measurements, checkpoints."""

from __future__ import annotations

import hashlib
import math
import os
import statistics
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch

from . import checkpoint, memory
from .config import Config
from .errors import ExampleError, Interrupted
from .model import build_model, next_token_loss, parameter_groups, validation_loss, weights_sha256
from .optimizers import format_name, make_optimizer, reported_bytes, residency, state_bytes, title
from .progress import Progress, StopSignals, Waiting
from .tokens import Batches, Tokens, validation_windows

SERIES = ("loss", "grad_norm", "lr", "step_ms", "optimizer_ms", "rss", "rss_growth", "seconds", "state_ram", "state_disk",
          "moved", "waited_ms")  # fmt: skip


def learning_rate_factor(config: Config, step: int) -> float:
    """Linear warm-up, then a cosine down to ``final_lr`` times the learning rate."""
    if step < config.warmup:
        return (step + 1) / config.warmup
    progress = min(1.0, (step - config.warmup) / max(1, config.steps - config.warmup))
    return config.final_lr + (1 - config.final_lr) * 0.5 * (1 + math.cos(math.pi * progress))


@contextmanager
def reproducible(threads: int) -> Iterator[int]:
    """Only algorithms that give the same bits each time, on a fixed number of threads; all set back at the end."""
    before = torch.get_num_threads(), torch.are_deterministic_algorithms_enabled()
    torch.set_num_threads(threads or before[0])
    torch.use_deterministic_algorithms(True)
    try:
        yield torch.get_num_threads()
    finally:
        torch.set_num_threads(before[0])
        torch.use_deterministic_algorithms(before[1])


class Trainer:
    """One run: the model, its optimizer and all that a checkpoint keeps."""

    def __init__(self, config: Config, label: str, tokens: Tokens, threads: int) -> None:
        self.config, self.label, self.tokens, self.threads = config, label, tokens, threads
        self.path = config.run_dir(label) / "checkpoint.pt"
        self.model = build_model(config, tokens.vocab)
        self.initial_hash = weights_sha256(self.model)
        self.optimizer = make_optimizer(label, config, parameter_groups(self.model, config.weight_decay))
        self.scheduler = torch.optim.lr_scheduler.LambdaLR(self.optimizer, lambda s: learning_rate_factor(config, s))
        self.batches = Batches(tokens.train, config.batch, config.context, config.seed)
        self.windows = validation_windows(tokens.validation, config.context, config.eval_windows)
        # Memory of each process that worked on this run; a resumed run has several, each with a baseline of its own.
        self.sessions: list[dict[str, int]] = []
        self.baseline = 0
        self.saved: dict[str, Any] = {}  # what the last checkpoint holds of the optimizer
        self.done = 0
        self.batch_hash = ""
        self.history: dict[str, list[Any]] = {name: [] for name in (*SERIES, "validation")}

    def identity(self) -> dict[str, Any]:
        """The settings that identify this run in a checkpoint."""
        variant = format_name(self.label, self.config)
        return {"optimizer": variant, "data": self.tokens.info["fingerprint"], **self.config.identity()}

    def environment(self) -> dict[str, Any]:
        """Properties of the machine that may change the last bit of a sum although the settings are the same."""
        return {"torch": str(torch.__version__), "threads": self.threads, "cpu": memory.cpu_name()}

    def save(self) -> None:
        """Write everything needed to continue from here."""
        self.saved = checkpoint.save_optimizer(self.path.parent, self.optimizer, self.done)
        checkpoint.save(
            self.path,
            {
                "identity": self.identity(),
                "environment": self.environment(),
                "step": self.done,  # also the position in the data: see Batches
                "batch_hash": self.batch_hash,
                "model": self.model.state_dict(),
                "optimizer": self.saved,
                "scheduler": self.scheduler.state_dict(),
                "rng": torch.get_rng_state(),
                "history": self.history,
                "sessions": [*self.sessions, self.session()],
            },
        )
        checkpoint.remove_old(self.path.parent, self.saved)

    def session(self) -> dict[str, int]:
        """Memory of this process so far."""
        return {"until_step": self.done, "rss_before_model": self.baseline, "rss_peak": memory.peak_bytes()}

    def restore(self, warn: Callable[[str], None]) -> None:
        """Continue from the checkpoint."""
        content = checkpoint.load(self.path, self.identity())
        now = self.environment()
        changed = [f"{k}: {content['environment'].get(k)} then, {now[k]} now" for k in now
                   if content["environment"].get(k) != now[k]]  # fmt: skip
        if changed:
            warn(f"{self.path}: continues, but the last bits may differ from an unbroken run ({'; '.join(changed)})")
        try:
            self.model.load_state_dict(content["model"])
            checkpoint.load_optimizer(self.path.parent, self.optimizer, content["optimizer"])
            self.scheduler.load_state_dict(content["scheduler"])
            torch.set_rng_state(content["rng"])
        except (RuntimeError, ValueError, KeyError, TypeError, OSError) as error:
            raise ExampleError(f"checkpoint {self.path} does not fit this model or optimizer ({error}): "
                               "delete it to start this run anew")  from error  # fmt: skip
        self.done, self.batch_hash, self.history = content["step"], content["batch_hash"], content["history"]
        self.sessions, self.saved = content["sessions"], content["optimizer"]

    def step(self) -> float:
        """One training step with its measurements; returns the training loss."""
        batch = self.batches[self.done]
        # A chain of hashes proves afterwards that two runs saw the same text in the same order.
        self.batch_hash = hashlib.sha256(self.batch_hash.encode() + batch.numpy().tobytes()).hexdigest()
        rate = self.optimizer.param_groups[0]["lr"]
        start = time.perf_counter()
        loss = next_token_loss(self.model, batch)
        loss.backward()
        norm = torch.nn.utils.clip_grad_norm_(self.model.parameters(), self.config.clip)
        value, norm_value = loss.item(), norm.item()
        if not (math.isfinite(value) and math.isfinite(norm_value)):
            raise ExampleError(f"{title(self.label, self.config)}: loss or gradient is not finite at step "
                               f"{self.done + 1} (loss {value}, norm {norm_value}); try a lower --lr")  # fmt: skip
        had = residency(self.optimizer)
        before = time.perf_counter()
        try:
            self.optimizer.step()
        except ValueError as error:  # the first step gives state its place
            raise ExampleError(f"{title(self.label, self.config)}: {error} (--ram-budget, --disk, --chunk)") from error
        except OSError as error:
            raise ExampleError(f"{title(self.label, self.config)}: the disk failed in step {self.done + 1}: {error}; "
                               "mend it and continue from the last checkpoint with --resume") from error  # fmt: skip
        after = time.perf_counter()
        has = residency(self.optimizer)
        self.scheduler.step()
        # Sampled while gradients are alive: that is the level the optimizer state comes on top of.
        rss = memory.resident_bytes()
        self.optimizer.zero_grad()
        end = time.perf_counter()
        elapsed = (self.history["seconds"][-1] if self.done else 0.0) + end - start
        row = (value, norm_value, rate, (end - start) * 1e3, (after - before) * 1e3, rss,
               rss - self.baseline, elapsed, has.ram, has.disk, has.moved - had.moved,
               (has.waited - had.waited) * 1e3)  # fmt: skip
        for name, item in zip(SERIES, row, strict=True):
            self.history[name].append(item)
        self.done += 1
        return value

    def validate(self) -> float:
        """Validation loss now, noted with the step it belongs to."""
        value = validation_loss(self.model, self.windows, self.config.batch)
        self.history["validation"].append([self.done, value])
        return value

    def result(self, peak_reset: bool) -> dict[str, Any]:
        """Everything the report needs to know about this run."""
        # First of all: what follows copies state, which is no part of training. A process that only read the end of
        # a finished run has trained nothing and is left out.
        trained = not self.sessions or self.sessions[-1]["until_step"] < self.done
        sessions = [*self.sessions, self.session()] if trained else self.sessions
        parameters = sum(p.numel() for p in self.model.parameters())
        reported = reported_bytes(self.optimizer)
        measured = self.saved["bytes"] if "bytes" in self.saved else state_bytes(self.optimizer)
        total = measured if reported is None else reported
        recent = self.history["loss"][-max(1, min(50, self.config.steps // 4)) :]
        return {
            "label": self.label,
            "title": title(self.label, self.config),
            "steps": self.done,
            "parameters": parameters,
            "train_loss": statistics.fmean(recent),
            "validation_loss": self.history["validation"][-1][1],
            "optimizer_bytes": total,
            "optimizer_bytes_in_checkpoint": measured,
            "optimizer_bytes_per_parameter": total / parameters,
            "state_ram_bytes": max(self.history["state_ram"]),
            "state_disk_bytes": max(self.history["state_disk"]),
            "moved_bytes_per_step": statistics.median(self.history["moved"]),
            "waited_ms_median": statistics.median(self.history["waited_ms"]),
            "sessions": sessions,
            "rss_peak": max(s["rss_peak"] for s in sessions),
            "rss_peak_growth": max(s["rss_peak"] - s["rss_before_model"] for s in sessions),
            "rss_peak_excludes_imports": peak_reset,
            "step_ms_median": statistics.median(self.history["step_ms"]),
            "optimizer_ms_median": statistics.median(self.history["optimizer_ms"]),
            "initial_weights_sha256": self.initial_hash,
            "final_weights_sha256": weights_sha256(self.model),
            "batches_sha256": self.batch_hash,
            "environment": self.environment(),
            "history": self.history,
        }


def prepare_libraries() -> None:
    """Import what a model is made of: before memory is measured, for the libraries are no part of what training needs."""
    from transformers import LlamaForCausalLM  # noqa: F401  its modules are imported when it is first named


def train(config: Config, label: str, tokens: Tokens, warn: Callable[[str], None] = print) -> dict[str, Any]:
    """Train with one optimizer from the start, or from its checkpoint if ``resume`` is set and there is one."""
    prepare_libraries()
    with reproducible(config.threads) as threads, StopSignals() as stop:
        peak_reset = memory.reset_peak()
        baseline = memory.resident_bytes()
        with Waiting(f"{title(label, config)}: making the model", config.quiet):
            trainer = Trainer(config, label, tokens, threads)
            trainer.baseline = baseline
            if config.resume and trainer.path.exists():
                trainer.restore(warn)
            if trainer.done < config.steps and not trainer.history["validation"]:
                trainer.validate()  # before the first step: where both runs start from
        progress = Progress(title(label, config), config.steps, trainer.done, config.quiet)
        parent = os.getppid()
        try:
            while trainer.done < config.steps:
                loss = trainer.step()
                due = trainer.done % config.eval_interval == 0 or trainer.done == config.steps
                validation = trainer.validate() if due else None
                progress.step(trainer.done, loss, validation)
                # A changed parent means that the job which started this process is gone: nobody reads the result.
                stopped = stop.signum or trainer.done == config.stop_after or os.getppid() != parent
                if stopped and trainer.done < config.steps:
                    trainer.save()
                    raise Interrupted(_interruption(trainer.path, trainer.done, config), stop.signum)
                if config.checkpoint_every and trainer.done % config.checkpoint_every == 0 or trainer.done == config.steps:
                    trainer.save()
            return trainer.result(peak_reset)
        finally:
            progress.close()


def _interruption(path: Path, step: int, config: Config) -> str:
    return f"stopped after step {step} of {config.steps}; checkpoint saved in {path}; continue with the same command and --resume"
