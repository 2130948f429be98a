#!/usr/bin/env python3
"""Code written for bitsandbytes: only the import changes.

    python examples/from_bitsandbytes.py [STEPS]   # seconds

Classes, arguments and overrides of single parameters are the same, and run on a CPU, too. 16-bit weights are rounded to
nearest, as in bitsandbytes; `master="auto"` gives Lowtide's stochastic rounding.
"""

import sys

import torch

import lowtide.compat.bitsandbytes as bnb  # was: import bitsandbytes as bnb

STEPS = int(sys.argv[1]) if len(sys.argv) > 1 else 60

torch.manual_seed(0)
model = torch.nn.Sequential(bnb.nn.StableEmbedding(256, 128), torch.nn.Flatten(), torch.nn.Linear(1024, 256), torch.nn.Linear(256, 256))
bnb.optim.GlobalOptimManager.get_instance().register_module_override(model[3], "weight", {"optim_bits": 32})
opt = bnb.optim.AdamW8bit(model.parameters(), lr=1e-3, weight_decay=0.01)
for step in range(1, STEPS + 1):
    tokens = torch.randint(256, (64, 8))
    loss = torch.nn.functional.cross_entropy(model(tokens), tokens[:, 0])  # learns to repeat the first token
    loss.backward()
    opt.step()
    opt.zero_grad()
    if step % 20 == 0 or step == STEPS:
        print(f"step {step}/{STEPS}: loss {loss.item():.3f}", flush=True)
for name, param in model.named_parameters():
    kept = ", ".join(f"{key} {str(value.dtype).removeprefix('torch.')}" for key, value in opt.state[param].items() if key != "step")
    print(f"{name:14s} {tuple(param.shape)!s:12s} {kept}")
