#!/usr/bin/env python3
"""Reinforcement learning in one memory: the optimizer's state makes room while the policy generates samples.

    python examples/rl_handover.py [DEVICE] [ROUNDS]   # cpu (the default), cuda, xpu; half a minute on two cores

`offload()` moves the state from a device to host memory, or from RAM to the disk of its budget. The next step or `onload()`
brings it back. The reward is the share of even tokens in a sample; the gradient is REINFORCE's (Williams, 1992).
"""

import sys
import tempfile
import time

import torch
from transformers import LlamaConfig, LlamaForCausalLM

import lowtide

DEVICE = sys.argv[1] if len(sys.argv) > 1 else "cpu"
ROUNDS = int(sys.argv[2]) if len(sys.argv) > 2 else 8
SAMPLES, PROMPT, LENGTH = 32, 4, 20

torch.manual_seed(0)
shape = LlamaConfig(vocab_size=256, hidden_size=256, intermediate_size=512, num_hidden_layers=2, num_attention_heads=4)
policy = LlamaForCausalLM(shape).to(DEVICE)
disk = tempfile.TemporaryDirectory()
memory = lowtide.Memory(host="100%", disk=disk.name) if DEVICE == "cpu" else None
opt = lowtide.AdamW(policy.parameters(), lr=3e-3, max_grad_norm=1.0, memory=memory)
for number in range(1, ROUNDS + 1):
    start = time.perf_counter()
    opt.offload()  # moves nothing in the first round, before any state exists
    away, seconds = opt.report()["offloaded_bytes"], time.perf_counter() - start
    tokens = torch.randint(256, (SAMPLES, PROMPT)).to(DEVICE)
    with torch.no_grad():
        for _ in range(LENGTH):
            chances = policy(input_ids=tokens).logits[:, -1].softmax(-1)
            tokens = torch.cat([tokens, torch.multinomial(chances.cpu(), 1).to(DEVICE)], 1)
    rewards = (tokens[:, PROMPT:] % 2 == 0).float().mean(1)
    logs = policy(input_ids=tokens[:, :-1]).logits.log_softmax(-1).gather(-1, tokens[:, 1:, None])[:, PROMPT - 1 :, 0]
    (-(rewards - rewards.mean())[:, None] * logs).mean().backward()
    opt.step()
    opt.zero_grad()
    print(f"round {number}/{ROUNDS}: {away / 1e6:.2f} MB of state away while sampling (moved in {seconds * 1e3:.1f} ms), "
          f"mean reward {rewards.mean().item():.3f}", flush=True)  # fmt: skip
