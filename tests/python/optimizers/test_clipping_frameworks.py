"""Clipping in the step under the real Trainer, Accelerate and Lightning: runs equal those with torch's clipping, and torch's
function, which each would call, is never called."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import lowtide
import pytest
import torch
from accelerate import Accelerator
from lora_support import Sequences, adapted, one_thread  # noqa: F401
from transformers import Trainer, TrainingArguments

lightning = pytest.importorskip("pytorch_lightning")

STEPS, CLIP, LR = 5, 0.25, 5e-3


@pytest.fixture
def clips(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """The limits passed to torch's function."""
    called: list[float] = []
    torchs = torch.nn.utils.clip_grad_norm_

    def clip(parameters: Any, max_norm: float, *args: Any, **kwargs: Any) -> torch.Tensor:
        called.append(max_norm)
        return torchs(parameters, max_norm, *args, **kwargs)

    monkeypatch.setattr(torch.nn.utils, "clip_grad_norm_", clip)
    monkeypatch.setattr(torch.nn.utils.clip_grad, "clip_grad_norm_", clip)
    return called


def trained(model: torch.nn.Module) -> list[torch.Tensor]:
    return [param.detach().clone() for param in model.parameters() if param.requires_grad]


def apart(runs: list[list[torch.Tensor]]) -> float:
    """In units of the learning rate. Factors and products are rounded in different places, so gradients differ by a few units
    of 2^-24. Where the second moment has nothing else, a step has another sign: few weights, by at most two steps."""
    return max(float((a - b).abs().mean()) for a, b in zip(*runs, strict=True)) / LR


@pytest.mark.parametrize("limit", [CLIP, 0.0])
def test_trainer(limit: float, tmp_path: Path, seed: int, clips: list[float], figure: Any) -> None:
    runs, norms, counts = [], [], []
    for in_step in (False, True):
        args = TrainingArguments(
            str(tmp_path), use_cpu=True, report_to=[], disable_tqdm=True, seed=7, max_steps=STEPS, save_strategy="no",
            logging_steps=1, per_device_train_batch_size=2, gradient_accumulation_steps=2, max_grad_norm=limit,
            learning_rate=LR, lr_scheduler_type="constant", optim="adamw_torch",
        )  # fmt: skip
        model = adapted(seed, dropout=0)
        made = lowtide.hf.optimizer(args.optim, args)
        trainer = Trainer(model, args, train_dataset=Sequences(), optimizer_cls_and_kwargs=made)
        if in_step:
            lowtide.hf.clip_in_step(trainer)
            lowtide.hf.clip_in_step(trainer)  # twice is once
        trainer.train()
        runs.append(trained(model))
        norms.append([log["grad_norm"] for log in trainer.state.log_history if "grad_norm" in log])
        counts.append(len(clips))
        clips.clear()
    figure(f"max_grad_norm={limit}: norms {norms[1]}, weights {apart(runs):.1e} lr apart; torch's function called {counts}")
    assert norms[1] == pytest.approx(norms[0], rel=1e-3) and len(norms[1]) == STEPS
    assert counts[0] >= STEPS and counts[1] == 0 and apart(runs) < 1e-3
    assert not limit or max(norms[1]) > limit


def test_accelerate(seed: int, clips: list[float], figure: Any) -> None:
    """With accumulation. Calls for other parameters work as before."""
    runs, counts = [], []
    for in_step in (False, True):
        accelerator = Accelerator(cpu=True, gradient_accumulation_steps=2)
        model = adapted(seed, dropout=0)
        optimizer = lowtide.AdamW((p for p in model.parameters() if p.requires_grad), lr=LR, state="fp32")
        loader = torch.utils.data.DataLoader(Sequences(), batch_size=2)
        model, optimizer, loader = accelerator.prepare(model, optimizer, loader)
        if in_step:
            lowtide.hf.clip_in_step(accelerator)
        for batch in loader:
            with accelerator.accumulate(model):
                accelerator.backward(model(**batch).loss)
                if accelerator.sync_gradients:
                    accelerator.clip_grad_norm_(model.parameters(), CLIP)
                optimizer.step()
                optimizer.zero_grad()
        runs.append(trained(model))
        counts.append(len(clips))
        clips.clear()
    others = [torch.nn.Parameter(torch.ones(3)) for _ in range(2)]
    for other, given in zip(others, ([others[0]], others[1]), strict=True):  # in a list, and alone
        other.grad = torch.full((3,), 5.0)
        accelerator.clip_grad_norm_(given, 1.0)
    figure(f"weights {apart(runs):.1e} lr apart; torch's function called {counts}")
    assert counts[0] > 0 and counts[1] == 0 and apart(runs) < 1e-3
    assert [float(other.grad.norm()) for other in others] == pytest.approx([1.0, 1.0], rel=1e-5) and len(clips) == 2


class Module(lightning.LightningModule):  # type: ignore[misc, name-defined]
    def __init__(self, model: Any) -> None:
        super().__init__()
        self.model = model

    def training_step(self, batch: Any, index: int) -> torch.Tensor:
        loss: torch.Tensor = self.model(**batch).loss
        return loss

    def configure_optimizers(self) -> Any:
        return lowtide.AdamW((p for p in self.model.parameters() if p.requires_grad), lr=LR, state="fp32")


class InStep(Module):
    """As docs/hugging-face.md has it."""

    def configure_gradient_clipping(
        self, optimizer: Any, gradient_clip_val: Any = None, gradient_clip_algorithm: Any = None
    ) -> None:
        if gradient_clip_val:
            self.log("grad_norm", optimizer.clip_grad_norm_(gradient_clip_val))


def test_lightning(seed: int, clips: list[float], figure: Any) -> None:
    runs, counts = [], []
    for kind in (Module, InStep):
        model = adapted(seed, dropout=0)
        trainer = lightning.Trainer(
            accelerator="cpu", max_epochs=1, gradient_clip_val=CLIP, accumulate_grad_batches=2, logger=False,
            enable_progress_bar=False, enable_model_summary=False, enable_checkpointing=False,
        )  # fmt: skip
        trainer.fit(kind(model), torch.utils.data.DataLoader(Sequences(), batch_size=2))
        runs.append(trained(model))
        counts.append(len(clips))
        clips.clear()
    norm = float(trainer.callback_metrics["grad_norm"])
    figure(f"logged norm {norm:.4f}; weights {apart(runs):.1e} lr apart; torch's function called {counts}")
    assert norm > 0 and counts[0] > 0 and counts[1] == 0 and apart(runs) < 1e-3
