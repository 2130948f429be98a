"""LoRA through transformers' Trainer with clipping, accumulation and a schedule: a resumed run equals one that never stopped,
with state in RAM and with paged state."""

from __future__ import annotations

import os
import signal
import threading
from pathlib import Path
from typing import Any

import lowtide
import pytest
import torch
from lora_support import Sequences, adapted, differing, one_thread, paging, trained_bits  # noqa: F401
from peft import get_peft_model_state_dict
from safetensors.torch import load_file
from support import bits
from transformers import Trainer, TrainerCallback, TrainingArguments
from transformers.trainer_jit_checkpoint import CheckpointManager

STEPS, CUT, CLIP = 6, 3, 0.25


def train(
    out: Path, name: str, model: Any, memory: lowtide.Memory | None, resume: bool, cut: int = CUT, callbacks: Any = (), **more: Any
) -> Trainer:
    """All steps, which leave a checkpoint after some, or those after that checkpoint, of step `cut`."""
    args = TrainingArguments(
        str(out), use_cpu=True, report_to=[], disable_tqdm=True, seed=7, max_steps=STEPS, save_steps=CUT,
        logging_steps=1, per_device_train_batch_size=2, gradient_accumulation_steps=2, max_grad_norm=CLIP,
        learning_rate=5e-3, warmup_steps=1, weight_decay=0.1, adam_beta2=0.99, optim=name, **more,
    )  # fmt: skip
    made = lowtide.hf.optimizer(args.optim, args, memory=memory)
    trainer = Trainer(model, args, train_dataset=Sequences(), optimizer_cls_and_kwargs=made, callbacks=[*callbacks])
    trainer.train(resume_from_checkpoint=str(out / f"checkpoint-{cut}") if resume else None)
    return trainer


@pytest.mark.parametrize(
    ("name", "base", "more"),
    [
        ("lion_32bit", torch.float32, {"lr_scheduler_type": "cosine"}),
        ("adamw_8bit", torch.bfloat16, {"lr_scheduler_type": "linear", "bf16": True}),
    ],
    ids=["lion_32bit", "adamw_8bit-bf16"],
)
def test_resumed_lora_is_the_uninterrupted_one(
    name: str, base: torch.dtype, more: Any, tmp_path: Path, seed: int, figure: Any
) -> None:
    runs, moved = [], 0
    for full_name, memory in ((name, None), (f"paged_{name}", paging(tmp_path))):
        for resume in (False, True):
            run = train(tmp_path / full_name, full_name, adapted(seed, base), memory, resume, **more)
            runs.append(trained_bits(run.model, run.optimizer))
            logs = [log for log in run.state.log_history if "grad_norm" in log]
            assert [log["step"] for log in logs] == list(range(1, STEPS + 1)), "history is resumed, too"
            report = run.optimizer.optimizer.report()
            assert (report["moved_per_step"] > 0) == (memory is not None)
            moved = max(moved, report["moved_per_step"])
    for key, param in adapted(seed, base).named_parameters():
        assert not param.requires_grad or runs[0][key] != bits(param), f"{key} was not trained"
    clipped = sum(log["grad_norm"] > CLIP for log in logs)
    assert clipped > 0
    wrong, of = differing(*runs)
    figure(f"Trainer; resumed, paged ({moved} bytes a step), both: {wrong} of {of} bytes differ; "
           f"{clipped} of {STEPS} steps clipped")  # fmt: skip
    assert wrong == 0


class Ends(TrainerCallback):
    """Sends this process a SIGTERM in a step after the regular checkpoint, and waits until the Trainer notices."""

    def on_step_end(self, args: Any, state: Any, control: Any, **more: Any) -> None:
        if state.global_step == CUT + 1:
            asked = threading.Event()
            before = CheckpointManager._enable_checkpoint
            with pytest.MonkeyPatch.context() as patch:
                patch.setattr(CheckpointManager, "_enable_checkpoint", lambda manager: (before(manager), asked.set()))
                os.kill(os.getpid(), signal.SIGTERM)
                assert asked.wait(60)


@pytest.mark.parametrize("paged", [False, True])
def test_a_checkpoint_at_sigterm_resumes(paged: bool, tmp_path: Path, seed: int, figure: Any) -> None:
    memory = paging(tmp_path) if paged else None
    name, now = "adamw_8bit", {"enable_jit_checkpoint": True}
    handler = signal.getsignal(signal.SIGTERM)
    ended = train(tmp_path / "out", name, adapted(seed), memory, False, callbacks=[Ends()], **now)
    assert ended.state.global_step == CUT + 1 and signal.getsignal(signal.SIGTERM) is handler
    folder = tmp_path / "out" / f"checkpoint-{CUT + 1}"
    assert (folder / "optimizer.pt").exists() and not (folder / "checkpoint-is-incomplete.txt").exists()
    resumed = train(tmp_path / "out", name, adapted(seed), memory, True, cut=CUT + 1)
    whole = train(tmp_path / "whole", name, adapted(seed), memory, False)
    wrong, of = differing(trained_bits(whole.model, whole.optimizer), trained_bits(resumed.model, resumed.optimizer))
    figure(f"saved at a SIGTERM, paged: {paged}; resumed: {wrong} of {of} bytes differ")
    assert wrong == 0


@pytest.mark.parametrize("evaluates", [False, True])
def test_schedule_free_saves_the_weights_that_the_model_has(evaluates: bool, tmp_path: Path, seed: int) -> None:
    """Saves the training weights or, after an evaluation, the average. Warms up once, for half of the steps."""
    args = TrainingArguments(
        str(tmp_path), use_cpu=True, report_to=[], disable_tqdm=True, seed=7, max_steps=4, save_steps=2, logging_steps=1,
        eval_strategy="steps" if evaluates else "no", eval_steps=2, learning_rate=5e-3, warmup_steps=0.5, lr_scheduler_type="constant",
        optim="schedule_free_adamw",
    )  # fmt: skip
    model = adapted(seed, dropout=0)
    made = lowtide.hf.optimizer(args.optim, args)
    trainer = Trainer(model, args, train_dataset=Sequences(), eval_dataset=Sequences(), optimizer_cls_and_kwargs=made)
    trainer.train()
    assert {group["lr"] for group in trainer.optimizer.param_groups} == {5e-3}
    assert {group["warmup_steps"] for group in trainer.optimizer.param_groups} == {2}
    for step in (2, 4):
        saved = torch.load(tmp_path / f"checkpoint-{step}" / "optimizer.pt", weights_only=True)
        assert {group["train_mode"] for group in saved["param_groups"]} == {not evaluates}
    before = {name: bits(param) for name, param in model.named_parameters() if param.requires_grad}
    trainer.optimizer.eval()
    after = {name: bits(param) for name, param in model.named_parameters() if param.requires_grad}
    assert (before == after) == evaluates


def test_a_trainer_that_has_lost_the_factory_stops_before_a_weight_moves(tmp_path: Path, seed: int) -> None:
    """Its own AdamW loads the checkpoint, but finds no moments under the names of the codes."""
    train(tmp_path, "adamw_8bit", adapted(seed), None, resume=False)
    args = TrainingArguments(
        str(tmp_path), use_cpu=True, report_to=[], disable_tqdm=True, seed=7, max_steps=STEPS, optim="adamw_torch"
    )
    forgetful = Trainer(adapted(seed), args, train_dataset=Sequences())
    checkpoint = tmp_path / f"checkpoint-{CUT}"
    with pytest.raises(KeyError, match="^'exp_avg'$"):
        forgetful.train(resume_from_checkpoint=str(checkpoint))
    saved = load_file(checkpoint / "adapter_model.safetensors")
    now = get_peft_model_state_dict(forgetful.model)
    assert now.keys() == saved.keys() and all(torch.equal(now[name], saved[name]) for name in saved)
