"""The cost of a step for each of many small tensors: Lowtide's AdamW beside torch's foreach and fused.

    python -m bench.step.small_tensors [tensors] [elements]
"""

import sys
import time

import torch

import lowtide


def nanoseconds(make, tensors: int, elements: int, rounds: int = 60) -> float:
    """The fastest of `rounds` steps, for each tensor."""
    params = [torch.nn.Parameter(torch.full((elements,), 0.5)) for _ in range(tensors)]
    for param in params:
        param.grad = torch.full((elements,), 0.01)
    optimizer = make(params)
    times = []
    for _ in range(rounds):
        start = time.perf_counter()
        optimizer.step()
        times.append(time.perf_counter() - start)
    return min(times) / tensors * 1e9


def main() -> None:
    given = [int(text) for text in sys.argv[1:3]]
    tensors, elements = [*given, *(2000, 64)[len(given) :]]
    torch.set_num_threads(1)
    contenders = {
        "torch, foreach": lambda params: torch.optim.AdamW(params, foreach=True),
        "torch, fused": lambda params: torch.optim.AdamW(params, fused=True),
        "lowtide": lowtide.AdamW,
    }
    costs = {name: nanoseconds(make, tensors, elements) for name, make in contenders.items()}
    print(f"{tensors} tensors of {elements} elements, one thread, nanoseconds a tensor and step")
    for name, cost in costs.items():
        print(f"{name:16}{cost:8.0f}   lowtide takes {costs['lowtide'] / cost:.2f} of it")


if __name__ == "__main__":
    main()
