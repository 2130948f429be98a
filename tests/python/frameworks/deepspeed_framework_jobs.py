"""The ranks' jobs in the tests of frameworks that drive DeepSpeed: Accelerate's plugin, and the Trainer."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import lowtide
import torch
from deepspeed_jobs import ACCUMULATED, CLIP, CUT, STEPS, Case, Run, at_end, configuration, deepspeed, model_of, optimizer_of


@contextmanager
def one_process_state() -> Iterator[None]:
    """Accelerate's state of the process, which does not stay. It looks for more threads and another rank's address."""
    os.environ.update(OMP_NUM_THREADS="1", MASTER_ADDR="127.0.0.1")
    from accelerate.state import AcceleratorState, GradientState

    try:
        yield
    finally:
        AcceleratorState._reset_state(reset_partial_state=True)
        GradientState._reset_state()


def accelerate(case: Case, folder: str, load: bool = False) -> Run:
    """As `deepspeed_jobs.train`, with Accelerate's plugin; on the CPU it gives every rank all data."""
    with deepspeed(), one_process_state():
        from accelerate import Accelerator, DeepSpeedPlugin

        accelerator = Accelerator(deepspeed_plugin=DeepSpeedPlugin(hf_ds_config=configuration(case)))
        model = model_of(case, seed=int(load))
        opt = optimizer_of(case, model, Path(folder))
        schedule = torch.optim.lr_scheduler.LambdaLR(opt, lambda step: 1 / (1 + 0.1 * step))
        data = torch.utils.data.TensorDataset(torch.randn(4 * ACCUMULATED, 96, generator=torch.Generator().manual_seed(2)))
        loader = torch.utils.data.DataLoader(data, batch_size=4, generator=torch.Generator())
        model, opt, loader, schedule = accelerator.prepare(model, opt, loader, schedule)
        if load:
            accelerator.load_state(folder)
        losses = []
        for step in range(CUT if load else 0, STEPS):
            for (inputs,) in loader:
                with accelerator.accumulate(model):
                    loss = torch.nn.functional.mse_loss(model(inputs.to(case.dtype)).float(), inputs[:, :8].sin())
                    accelerator.backward(loss)
                    opt.step()
                    schedule.step()
                    opt.zero_grad()
                losses.append(loss.item())
            if step + 1 == CUT and not load:
                accelerator.save_state(folder)
        found = at_end(opt.optimizer, losses)
        model.destroy()
        return found


def trainer(case: Case, folder: str, load: bool = False) -> Run:
    """As `deepspeed_jobs.train`, with transformers' Trainer and `lowtide.hf.optimizer`."""
    with deepspeed(), one_process_state():
        from lora_support import LENGTH, TOKENS, Sequences
        from transformers import LlamaConfig, LlamaForCausalLM, Trainer, TrainingArguments

        torch.manual_seed(int(load))
        config = LlamaConfig(
            vocab_size=TOKENS, hidden_size=64, intermediate_size=128, num_hidden_layers=1, num_attention_heads=4,
            num_key_value_heads=2, max_position_embeddings=LENGTH,
        )  # fmt: skip
        auto = dict.fromkeys(["train_micro_batch_size_per_gpu", "gradient_accumulation_steps", "gradient_clipping"], "auto")
        args = TrainingArguments(
            folder, deepspeed={**configuration(case), **auto}, use_cpu=True, bf16=case.dtype == torch.bfloat16, report_to=[],
            disable_tqdm=True, seed=7, max_steps=STEPS, save_steps=CUT, logging_steps=1, learning_rate=5e-3,
            per_device_train_batch_size=2, gradient_accumulation_steps=ACCUMULATED, max_grad_norm=CLIP, log_level="error",
        )  # fmt: skip
        chosen = lowtide.hf.optimizer("adamw_8bit", args, state=case.optimizer)
        made = Trainer(LlamaForCausalLM(config), args, train_dataset=Sequences(), optimizer_cls_and_kwargs=chosen)
        made.train(resume_from_checkpoint=str(Path(folder) / f"checkpoint-{CUT}") if load else None)
        found = at_end(made.model_wrapped.optimizer, [log["loss"] for log in made.state.log_history if "loss" in log])
        made.model_wrapped.destroy()
        return found


FRAMEWORKS: dict[str, Any] = {"Accelerate": accelerate, "Trainer": trainer}
