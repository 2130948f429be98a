#!/usr/bin/env python3
"""A plain PyTorch loop with `lowtide.AdamW` instead of `torch.optim.AdamW`.

    python examples/plain_loop.py [STEPS]        # half a minute on two cores

A small LLaMA learns to predict the source of Python's argparse, byte by byte.
"""

import argparse  # its source is the text
import sys
from pathlib import Path

import torch
from transformers import LlamaConfig, LlamaForCausalLM

import lowtide

STEPS = int(sys.argv[1]) if len(sys.argv) > 1 else 100
BATCH, CONTEXT = 8, 128

torch.manual_seed(0)
text = torch.tensor([*Path(argparse.__file__).read_bytes()])
shape = LlamaConfig(vocab_size=256, hidden_size=256, intermediate_size=512, num_hidden_layers=2, num_attention_heads=4)
model = LlamaForCausalLM(shape)  # with .bfloat16(), too: each step rounds the weights stochastically, so fp32 copies are not needed
opt = lowtide.AdamW(model.parameters(), lr=2e-3, weight_decay=0.1, max_grad_norm=1.0)
schedule = torch.optim.lr_scheduler.CosineAnnealingLR(opt, STEPS)
for step in range(1, STEPS + 1):
    starts = torch.randint(len(text) - CONTEXT, (BATCH,))
    tokens = torch.stack([text[start : start + CONTEXT] for start in starts])
    loss = model(input_ids=tokens, labels=tokens).loss
    loss.backward()
    opt.step()  # clips to max_grad_norm, and skips the step if a gradient is not finite
    opt.zero_grad()
    schedule.step()
    if step % 20 == 0 or step == STEPS:
        print(f"step {step}/{STEPS}: loss {loss.item():.3f}", flush=True)
count = sum(param.numel() for param in model.parameters())
print(f"{count / 1e6:.1f} M parameters, {opt.report()['state_bytes'] / count:.2f} bytes of optimizer state each; torch.optim.AdamW keeps 8")
