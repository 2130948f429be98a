"""One worker of train_ddp_sign.py. Trains its share of every batch with one method; the first worker reports.

Started with torch.distributed's environment and a request (JSON): {"config", "method", "answer"}.
"""

from __future__ import annotations

import hashlib
import json
import os
import sys
import time
from pathlib import Path

import torch
import torch.distributed as dist
from llama import text
from llama.common import write_json
from llama.config import Config
from llama.model import build_model, learning_rate_factor, next_token_loss, validation_loss, weights_sha256

from .methods import METHODS
from .network import bytes_sent


def main(request: Path) -> None:
    """Trains. Rank 0 writes the answer."""
    asked = json.loads(request.read_text())
    config, method = Config(**asked["config"]), METHODS[asked["method"]]
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    rank, workers = dist.get_rank(), dist.get_world_size()
    tokens = text.load(config)
    model = build_model(config, tokens.vocab)  # the seed makes it the same everywhere
    wrapped, optimizer = method.build(model, config.lr, config.weight_decay)
    schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: learning_rate_factor(config, step))
    # A batch belongs to all workers together: which worker sees a window does not depend on their number.
    batches = text.Batches(tokens.train, config.batch * workers, config.context, config.seed)
    windows = text.validation_windows(tokens.validation, config.context, config.eval_windows)
    history: dict[str, list[float]] = {"loss": [], "seconds": [], "sent": []}
    validation: list[tuple[int, float, float]] = []  # step, seconds of training, loss

    def validate(step: int) -> None:
        if rank == 0:
            seconds = sum(history["seconds"])
            validation.append((step, seconds, validation_loss(model, windows, 8)))
        dist.barrier()

    validate(0)
    for step in range(config.steps):
        mine = batches[step][rank * config.batch : (rank + 1) * config.batch]
        before, start = bytes_sent(), time.perf_counter()
        optimizer.zero_grad()
        loss = next_token_loss(wrapped, mine)
        loss.backward()
        optimizer.step()
        history["seconds"].append(time.perf_counter() - start)
        schedule.step()
        history["loss"].append(loss.item())
        if before is not None:
            history["sent"].append((bytes_sent() or 0) - before)
        if (step + 1) % config.eval_interval == 0 or step + 1 == config.steps:
            validate(step + 1)
    hashes: list[str] = [""] * workers
    dist.all_gather_object(hashes, weights_sha256(model))
    if len(set(hashes)) != 1:
        raise RuntimeError(f"workers ended with different weights: {hashes}")
    if rank == 0:
        state = sum(t.nbytes for s in optimizer.state.values() for t in s.values() if isinstance(t, torch.Tensor))
        write_json(Path(asked["answer"]), {
            "title": method.title, "parameters": sum(p.numel() for p in model.parameters()), "history": history,
            "validation": validation, "weights_sha256": hashlib.sha256("".join(hashes).encode()).hexdigest(),
            "state_bytes": state,
        })  # fmt: skip
    dist.barrier()
    os._exit(0)  # does not wait for gloo's threads


if __name__ == "__main__":
    main(Path(sys.argv[1]))
