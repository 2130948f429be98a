#!/usr/bin/env python3
"""LoRA and QLoRA: trains adapters over a frozen base, unchanged or in 4 bits.

    pip install peft accelerate
    python examples/lora.py [STEPS]              # LoRA over an unchanged base; half a minute on two cores
    pip install bitsandbytes
    python examples/lora.py [STEPS] 4bit         # QLoRA: the base in NF4

Frozen weights have no optimizer state. The adapters' state is small; Paged classes keep larger state to a budget.
"""

import json
import sys
import tempfile
from pathlib import Path

import peft
import torch
from transformers import BitsAndBytesConfig, LlamaConfig, LlamaForCausalLM

import lowtide
from lowtide.compat.bitsandbytes.optim import PagedAdamW8bit  # was: from bitsandbytes.optim import PagedAdamW8bit

STEPS = int(sys.argv[1]) if len(sys.argv) > 1 else 60
QUANTIZED = "4bit" in sys.argv
CONTEXT = 96

torch.manual_seed(0)
rows = json.loads((Path(__file__).parent / "data" / "instructions.json").read_text())
text = torch.tensor([*"\n".join(f"{row['instruction']}\n{row['output']}\n" for row in rows).encode()])
shape = LlamaConfig(vocab_size=256, hidden_size=256, intermediate_size=512, num_hidden_layers=2, num_attention_heads=4)
base = LlamaForCausalLM(shape)
if QUANTIZED:
    with tempfile.TemporaryDirectory() as folder:  # from_pretrained quantizes; give it the name of your own model
        base.save_pretrained(folder)
        nf4 = BitsAndBytesConfig(load_in_4bit=True, bnb_4bit_quant_type="nf4", bnb_4bit_compute_dtype=torch.float32)
        base = LlamaForCausalLM.from_pretrained(folder, quantization_config=nf4, device_map="cpu")
    base = peft.prepare_model_for_kbit_training(base, use_gradient_checkpointing=False)
model = peft.get_peft_model(base, peft.LoraConfig(r=64, lora_alpha=64, target_modules="all-linear"))

with tempfile.TemporaryDirectory() as disk:
    opt = PagedAdamW8bit(model.parameters(), lr=5e-3, memory=lowtide.Memory(host="256KiB", disk=disk))
    for step in range(1, STEPS + 1):
        starts = torch.randint(len(text) - CONTEXT, (4,))
        tokens = torch.stack([text[start : start + CONTEXT] for start in starts])
        loss = model(input_ids=tokens, labels=tokens).loss
        loss.backward()
        opt.step()
        opt.zero_grad()
        if step % 20 == 0 or step == STEPS:
            print(f"step {step}/{STEPS}: loss {loss.item():.3f}", flush=True)
    report = opt.report()
trained = sum(param.numel() for param in model.parameters() if param.requires_grad)
print(f"{trained / 1e6:.2f} M weights trained; state: {report['allocated_bytes'] / 1e6:.2f} MB in RAM, {report['disk_bytes'] / 1e6:.2f} MB on disk")
