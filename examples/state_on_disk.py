#!/usr/bin/env python3
"""Optimizer state larger than RAM: a budget, a disk, a checkpoint, and the same bits.

    python examples/state_on_disk.py [DIRECTORY]   # best on a local SSD; seconds

The state takes 32 MB and may use 4 MiB of RAM. The run stops half way and continues in a new optimizer with all state in RAM.
"""

import sys
import tempfile

import torch

import lowtide

STEPS = 20


def new(memory: lowtide.Memory | None) -> tuple[torch.nn.Module, lowtide.AdamW]:
    torch.manual_seed(0)
    model = torch.nn.Sequential(*(torch.nn.Linear(1024, 1024) for _ in range(16)))
    return model, lowtide.AdamW(model.parameters(), lr=3e-4, memory=memory)


def train(model: torch.nn.Module, opt: lowtide.AdamW, first: int, last: int) -> None:
    for step in range(first, last):
        inputs = torch.randn(32, 1024, generator=torch.Generator().manual_seed(step % 2))
        loss = (model(inputs) - inputs).square().mean()
        loss.backward()
        opt.step()
        opt.zero_grad()
        if step % 5 == 4:
            print(f"step {step + 1}/{STEPS}: loss {loss.item():.4f}", flush=True)


with tempfile.TemporaryDirectory(dir=sys.argv[1] if len(sys.argv) > 1 else None) as disk:
    model, opt = new(lowtide.Memory(host="4MiB", disk=disk))
    train(model, opt, 0, STEPS // 2)
    report = opt.report()
    print(f"state: {report['allocated_bytes'] / 1e6:.1f} MB in RAM, {report['disk_bytes'] / 1e6:.1f} MB on disk")
    torch.save(model.state_dict(), f"{disk}/model.pt")
    opt.save(f"{disk}/optimizer.lowtide")

    resumed, resumed_opt = new(None)
    resumed.load_state_dict(torch.load(f"{disk}/model.pt"))
    resumed_opt.load(f"{disk}/optimizer.lowtide")
    train(resumed, resumed_opt, STEPS // 2, STEPS)

whole, whole_opt = new(None)
train(whole, whole_opt, 0, STEPS)
same = all(map(torch.equal, whole.parameters(), resumed.parameters()))
print(f"weights of a run in RAM that never stopped: {'the same' if same else 'OTHERS'}")
