#!/usr/bin/env python3
"""Fine-tunes in bf16 with Hugging Face's Trainer, stops half way and resumes bit for bit.

    pip install accelerate
    python examples/trainer_bf16.py [STEPS]      # half a minute on two cores

For your own model, put `AutoModelForCausalLM.from_pretrained(NAME, dtype="bfloat16")` in `new_model`, and your data in `data`.
"""

import json
import sys
import tempfile
from pathlib import Path

import torch
from transformers import LlamaConfig, LlamaForCausalLM, Trainer, TrainingArguments

import lowtide

STEPS = int(sys.argv[1]) if len(sys.argv) > 1 else 40
CONTEXT = 64

rows = json.loads((Path(__file__).parent / "data" / "instructions.json").read_text())
text = torch.tensor([*"\n".join(f"{row['instruction']}\n{row['output']}\n" for row in rows).encode()])
data = [{"input_ids": piece, "labels": piece} for piece in text.split(CONTEXT) if len(piece) == CONTEXT]
out = tempfile.TemporaryDirectory()


def new_model() -> LlamaForCausalLM:
    torch.manual_seed(0)
    shape = LlamaConfig(vocab_size=256, hidden_size=96, intermediate_size=256, num_hidden_layers=1, num_attention_heads=4)
    return LlamaForCausalLM(shape).bfloat16()


def train(resume_from: str | None) -> LlamaForCausalLM:
    args = TrainingArguments(
        out.name, max_steps=STEPS, learning_rate=2e-3, per_device_train_batch_size=2, logging_steps=STEPS // 4, save_steps=STEPS // 2,
        report_to=[], use_cpu=not torch.cuda.is_available(),
    )  # fmt: skip
    trainer = Trainer(
        new_model(), args, train_dataset=data, optimizer_cls_and_kwargs=lowtide.hf.optimizer("adamw_8bit", args)
    )
    trainer.train(resume_from_checkpoint=resume_from)
    return trainer.model


whole = train(None)
resumed = train(f"{out.name}/checkpoint-{STEPS // 2}")
same = all(map(torch.equal, whole.state_dict().values(), resumed.state_dict().values()))
print(f"resumed from step {STEPS // 2}: {'the same weights' if same else 'OTHER WEIGHTS'}")
