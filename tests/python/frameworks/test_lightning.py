"""LoRA under Lightning with clipping and accumulation: a run resumed from its checkpoint loses no bit."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import lowtide
import pytest
import torch
from lora_support import Sequences, adapted, differing, one_thread, paging, trained_bits  # noqa: F401

lightning = pytest.importorskip("pytorch_lightning")

ACCUMULATED, EPOCHS, CLIP = 2, 2, 0.25


class Module(lightning.LightningModule):  # type: ignore[misc, name-defined]
    """Counts the steps in which gradients were clipped."""

    def __init__(self, model: Any, memory: lowtide.Memory | None) -> None:
        super().__init__()
        self.model, self.memory, self.clipped = model, memory, 0

    def training_step(self, batch: Any, index: int) -> torch.Tensor:
        loss: torch.Tensor = self.model(**batch).loss
        return loss

    def configure_gradient_clipping(self, optimizer: Any, **how: Any) -> None:
        grads = [p.grad for p in self.model.parameters() if p.grad is not None]
        before = [grad.clone() for grad in grads]
        super().configure_gradient_clipping(optimizer, **how)
        self.clipped += any(not torch.equal(a, b) for a, b in zip(before, grads, strict=True))

    def configure_optimizers(self) -> Any:
        cls, kwargs = lowtide.hf.optimizer("paged_adamw_8bit", lr=5e-3, weight_decay=0.1, memory=self.memory)
        optimizer = cls((p for p in self.model.parameters() if p.requires_grad), **kwargs)
        schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, 8)
        return {"optimizer": optimizer, "lr_scheduler": {"scheduler": schedule, "interval": "step"}}


def train(folder: Path, model: Any, memory: lowtide.Memory | None, precision: Any, resume: bool) -> dict[str, bytes]:
    """Trains for all epochs, or for those after the checkpoint that the first one left."""
    save = lightning.callbacks.ModelCheckpoint(folder, filename="{epoch}", save_top_k=-1)
    trainer = lightning.Trainer(
        accelerator="cpu", precision=precision, max_epochs=EPOCHS, gradient_clip_val=CLIP, callbacks=[save],
        accumulate_grad_batches=ACCUMULATED, logger=False, enable_progress_bar=False, enable_model_summary=False,
    )  # fmt: skip
    module = Module(model, memory)
    loader = torch.utils.data.DataLoader(Sequences(), batch_size=4)
    trainer.fit(module, loader, ckpt_path=folder / "epoch=0.ckpt" if resume else None)
    optimizer = trainer.optimizers[0]
    assert module.clipped > 0 and trainer.global_step == EPOCHS * len(loader) // ACCUMULATED
    assert (optimizer.report()["moved_per_step"] > 0) == (memory is not None)
    return trained_bits(model, optimizer)


@pytest.mark.parametrize("precision", ["32-true", "bf16-true", "bf16-mixed"])
def test_resumed_lora_is_the_uninterrupted_one(precision: str, tmp_path: Path, seed: int, figure: Any) -> None:
    runs = []
    for memory in (None, paging(tmp_path)) if precision != "bf16-mixed" else (paging(tmp_path),):
        for resume in (False, True):  # Lightning restores no random numbers, so there is no dropout
            model = adapted(seed, dropout=0)
            runs.append(train(tmp_path / f"{memory is None}", model, memory, precision, resume))
    wrong, of = differing(*runs)
    figure(f"Lightning; resumed, paged, both: {wrong} of {of} bytes differ")
    assert wrong == 0


class Forgetful(Module):
    """Continues with torch's AdamW."""

    def configure_optimizers(self) -> Any:
        return torch.optim.AdamW((p for p in self.model.parameters() if p.requires_grad), lr=5e-3)


def test_a_module_that_has_lost_the_optimizer_stops_before_a_weight_moves(tmp_path: Path, seed: int) -> None:
    train(tmp_path, adapted(seed), None, "32-true", resume=False)
    module = Forgetful(adapted(seed), None)
    trainer = lightning.Trainer(
        accelerator="cpu", max_epochs=EPOCHS, logger=False, enable_progress_bar=False, enable_model_summary=False,
        enable_checkpointing=False,
    )  # fmt: skip
    checkpoint = tmp_path / "epoch=0.ckpt"
    loader = torch.utils.data.DataLoader(Sequences(), batch_size=4)
    with pytest.raises(KeyError, match="^'exp_avg'$"):
        trainer.fit(module, loader, ckpt_path=checkpoint)
    saved = torch.load(checkpoint, weights_only=True)["state_dict"]
    assert all(torch.equal(now, saved[name]) for name, now in module.state_dict().items())


def test_amp_scaling_is_opt_in() -> None:
    """Lightning refuses to clip gradients for optimizers that say they unscale them themselves."""
    weight = torch.nn.Parameter(torch.ones(4))
    assert not getattr(lowtide.AdamW([weight]), "_step_supports_amp_scaling", False)
    assert lowtide.AdamW([weight], amp_scaling=True)._step_supports_amp_scaling


def test_schedule_free_is_switched_by_the_module_of_the_documents(tmp_path: Path, seed: int) -> None:
    """Evaluations read the average, in and after training; steps move the weights to train."""
    page = (Path(__file__).parents[3] / "docs/hugging-face.md").read_text(encoding="utf-8")
    names: dict[str, Any] = {"LightningModule": lightning.LightningModule}
    exec(re.findall(r"^```py\n(.*?)^```", page, re.S | re.M)[3], names)
    modes = []

    class Evaluated(names["Module"]):  # type: ignore[misc, name-defined]
        def __init__(self) -> None:
            super().__init__()
            self.layer = torch.nn.Linear(8, 1)

        def training_step(self, batch: Any, index: int) -> torch.Tensor:
            return self.layer(batch).square().mean()

        def validation_step(self, batch: Any, index: int) -> None:
            modes.extend(group["train_mode"] for each in self.trainer.optimizers for group in each.param_groups)

        def configure_optimizers(self) -> Any:
            return lowtide.AdamWScheduleFree(self.parameters())

    data = torch.utils.data.DataLoader(torch.randn(8, 8), batch_size=4)
    quiet = {"logger": False, "enable_progress_bar": False, "enable_model_summary": False}
    trainer = lightning.Trainer(accelerator="cpu", max_epochs=2, default_root_dir=tmp_path, **quiet)
    module = Evaluated()
    trainer.fit(module, data, data)
    (optimizer,) = trainer.optimizers
    assert optimizer.report()["steps"] == 4 and set(modes) == {False} and len(modes) >= 4
    again = lightning.Trainer(accelerator="cpu", default_root_dir=tmp_path, **quiet)
    again.validate(Evaluated(), data, verbose=False)
