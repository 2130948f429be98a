"""Steps replayed from CUDA graphs: compared with calls, and on the default stream and a user's stream, with every mistake
noticed."""

from __future__ import annotations

from typing import Any

import torch

from bench.cuda import contenders, shapes
from bench.cuda.device import Gpu
from bench.cuda.resident import ALL_FITS, llama
from bench.cuda.rows import Absent, Rows, first_line
from bench.cuda.timing import Step, in_turns

REPLAYS = 50


def captured(gpu: Gpu, optimizer: Any) -> Any:
    side = gpu.cuda.Stream()
    side.wait_stream(gpu.cuda.current_stream())
    with gpu.cuda.stream(side):
        for _ in range(3):
            optimizer.step()
    gpu.cuda.current_stream().wait_stream(side)
    graph = gpu.cuda.CUDAGraph()
    try:
        with gpu.cuda.graph(graph):
            optimizer.step()
    except (RuntimeError, ValueError) as error:
        first = error.__context__ or error  # the cause; the end of the capture only says that it is spoilt
        raise Absent(f"a step cannot be captured: {first_line(first)}") from error
    return graph


def replays(gpu: Gpu, rows: Rows) -> None:
    params = gpu.parameters(llama(gpu, shapes.LLAMA_7B, gpu.elements(700_000_000, 0, 12)), torch.bfloat16)
    memory = contenders.budget(gpu, device=ALL_FITS)
    optimizer = contenders.settle(gpu, contenders.lowtide_adamw(gpu, params, memory=memory))
    graph = captured(gpu, optimizer)

    def replay() -> None:
        if not gpu.rehearsed:
            optimizer.prepare_replay()
        graph.replay()

    found = in_turns(gpu, {"replay": Step(replay), "call": Step(optimizer.step)}, seconds=5, idle=True)
    for time in ("wall", "call"):
        ratio = found["replay"].median(time) / found["call"].median(time)
        rows.add(f"CUDA graph replay / call, {time} time", ratio, "x", **found["replay"].data())


def noticed(gpu: Gpu, rows: Rows) -> None:
    """Counts, on each stream, Lowtide's mistakes about replays: prepared ones that it takes for missed, unprepared ones that
    change parameters, and unprepared ones that the next call does not report."""
    if gpu.rehearsed:
        rows.absent("replays", "a rehearsal has no graphs", "replays_noticed")
        return
    for label, stream in (
        ("the default stream", gpu.cuda.default_stream()),
        ("a stream of the user's", gpu.cuda.Stream()),
    ):

        def measure(label: str = label, stream: Any = stream) -> None:
            params = gpu.parameters([(1000, 256)], torch.float32)
            optimizer = contenders.lowtide_adamw(gpu, params, memory=contenders.budget(gpu, device="64MiB"))
            optimizer.step()
            graph = captured(gpu, optimizer)
            missed = changed = silent = 0
            with gpu.cuda.stream(stream):
                for _ in range(REPLAYS):
                    try:
                        optimizer.prepare_replay()
                    except ValueError:
                        missed += 1
                    graph.replay()
                before = params[0].detach().clone()
                graph.replay()
                changed = int(not torch.equal(before, params[0].detach()))
                try:
                    optimizer.prepare_replay()
                    silent = 1
                except ValueError:
                    pass
            rows.add(f"replays on {label}: mistakes", missed + changed + silent, "", "replays_noticed",
                     replays=REPLAYS + 1, missed=missed, changed=changed, silent=silent)  # fmt: skip

        rows.attempt(f"replays on {label}", measure, "replays_noticed")


CASES = {"graphs.replays": replays, "graphs.noticed": noticed}
