"""LoRA under Accelerate with clipping, accumulation and a schedule: save_state and load_state lose no bit."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import lowtide
import pytest
import torch
import transformers
from accelerate import Accelerator
from lora_support import Sequences, adapted, differing, one_thread, paging, trained_bits  # noqa: F401

ACCUMULATED, STEPS, CUT, CLIP = 2, 6, 3, 0.25


def train(
    folder: Path, model: Any, memory: lowtide.Memory | None, precision: str, resume: bool
) -> tuple[dict[str, bytes], int]:
    """Takes all steps, with a checkpoint after some, or those after that checkpoint. Returns what was trained, and how many
    steps clipped gradients."""
    accelerator = Accelerator(cpu=True, mixed_precision=precision, gradient_accumulation_steps=ACCUMULATED)
    cls, kwargs = lowtide.hf.optimizer("paged_adamw_8bit", lr=5e-3, weight_decay=0.1, memory=memory)
    optimizer = cls((p for p in model.parameters() if p.requires_grad), **kwargs)
    schedule = transformers.get_cosine_schedule_with_warmup(optimizer, 1, STEPS)
    # A generator of its own: what iterating begins with must not use up random numbers that load_state has restored.
    loader = torch.utils.data.DataLoader(Sequences(), batch_size=2, generator=torch.Generator())
    model, optimizer, loader, schedule = accelerator.prepare(model, optimizer, loader, schedule)
    done, clipped = 0, 0
    if resume:
        accelerator.load_state(str(folder))
        done, loader = CUT, accelerator.skip_first_batches(loader, CUT * ACCUMULATED)
    for batch in loader:
        with accelerator.accumulate(model):
            accelerator.backward(model(**batch).loss)
            if accelerator.sync_gradients:
                clipped += int(accelerator.clip_grad_norm_(model.parameters(), CLIP) > CLIP)
            optimizer.step()
            schedule.step()
            optimizer.zero_grad()
        if accelerator.sync_gradients:
            done += 1
            if done == CUT:
                accelerator.save_state(str(folder))
    assert done == STEPS and (optimizer.optimizer.report()["moved_per_step"] > 0) == (memory is not None)
    return trained_bits(accelerator.unwrap_model(model), optimizer), clipped


@pytest.mark.parametrize(
    ("dtype", "precision"),
    [(torch.float32, "bf16"), (torch.bfloat16, "no")],
    ids=["mixed", "bfloat16"],
)
def test_resumed_lora_is_the_uninterrupted_one(
    dtype: torch.dtype, precision: str, tmp_path: Path, seed: int, figure: Any
) -> None:
    runs = []
    ram, paged = None, paging(tmp_path)
    for memory, resume in ((ram, False), (paged, True), (paged, False), (ram, True)):  # from the checkpoint before
        run, clipped = train(tmp_path / "saved", adapted(seed, dtype, dtype), memory, precision, resume)
        assert clipped > 0
        runs.append(run)
    wrong, of = differing(*runs)
    figure(f"Accelerate; resumed, paged, both: {wrong} of {of} bytes differ")
    assert wrong == 0
