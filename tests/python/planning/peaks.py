"""Trains each LLaMA of a list in its own process. Prints the bytes that the process had before, when it had trained a tiny
one, and how much more it had at its peak."""

from __future__ import annotations

import ctypes
import gc
import json
import os
import sys
import tempfile
import warnings
from pathlib import Path
from typing import Any

import lowtide
import torch
from transformers import LlamaConfig, LlamaForCausalLM

lowtide.AdamW  # noqa: B018 - its modules belong to what the process has before
DTYPES = {"fp32": torch.float32, "bf16": torch.bfloat16}


def memory(name: str) -> int:
    line = next(line for line in Path("/proc/self/status").read_text().splitlines() if line.startswith(name))
    return int(line.split()[1]) << 10


def train(case: dict[str, Any], config: dict[str, Any], scratch: str) -> None:
    torch.manual_seed(0)
    torch.set_default_dtype(DTYPES[case["weights"]])
    model = LlamaForCausalLM(LlamaConfig(**config, use_cache=False, bos_token_id=None, eos_token_id=0)).train()
    torch.set_default_dtype(torch.float32)
    if case["checkpointing"]:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of a newer name
            model.gradient_checkpointing_enable({"use_reentrant": False})
    budget = {"memory": lowtide.Memory(host=case["host"], disk=scratch)} if case["host"] else {}
    step_in_backward = case["step_in_backward"]
    optimizer = lowtide.AdamW(model.parameters(), lr=1e-4, master=case["master"], step_in_backward=step_in_backward, **budget)
    for _ in range(2):
        tokens = torch.randint(0, config["vocab_size"], (case["batch"], case["seq"]))
        model(input_ids=tokens, labels=tokens).loss.backward()
        optimizer.step()
        optimizer.zero_grad()


def peak(case: dict[str, Any], scratch: str) -> tuple[int, int]:
    """The process's bytes before training, and its peak beyond them."""
    train(case, {**case["config"], "vocab_size": 256, "hidden_size": 128, "intermediate_size": 64, "num_hidden_layers": 1}, scratch)
    gc.collect()
    ctypes.CDLL(None).malloc_trim(0)  # memory that earlier work freed would count as new
    Path("/proc/self/clear_refs").write_text("5")  # VmHWM begins at VmRSS
    before = memory("VmRSS")
    train(case, case["config"], scratch)
    return before, memory("VmHWM") - before


for case in json.loads(sys.argv[1]):
    read, write = os.pipe()
    if not os.fork():
        with tempfile.TemporaryDirectory() as scratch:
            os.write(write, json.dumps(peak(case, scratch)).encode())
        os._exit(0)
    os.close(write)
    print(os.read(read, 100).decode(), flush=True)
    os.wait()
