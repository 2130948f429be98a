"""Speed of one build's steps over another's, on this machine.

    python tools/wheels/speed.py FOLDER OTHER      folders with the package lowtide: a wheel, unpacked, and the native build

Each build steps in processes of its own, in turn, on one thread; the best rate of each counts, since other work can only
slow a run down. Prints a line for each rule and state format, and with torch one for a step of many small tensors, where
the binding is what takes time; then the lowest and the geometric mean of the ratios.
"""

import json
import math
import os
import subprocess
import sys

ROUNDS = 7
ELEMENTS = 1 << 18
SECONDS = 0.01
TRIES = 12
CELLS = (
    ("adamw", "fp32"), ("adamw", "bf16"), ("adamw", "dynamic8"), ("adamw", "float8"), ("adamw", "dynamic4"),
    ("lion", "dynamic8"), ("rmsprop", "dynamic8"), ("ademamix", "dynamic8"), ("adagrad", "float8"),
)  # fmt: skip
SMALL = 10_000  # tensors
_MEASURE = f"""
import importlib.util, json, time
from lowtide import _core as core

def rate(rule, state):
    hyper = core.default_hyper(rule)
    return max(core.measure_step_rate(rule, state, hyper, 1, {ELEMENTS}, {SECONDS}) for _ in range({TRIES}))

def small():
    import lowtide, torch
    torch.set_num_threads(1)
    params = [torch.nn.Parameter(torch.zeros(16)) for _ in range({SMALL})]
    for param in params:
        param.grad = torch.ones(16)
    optimizer, times = lowtide.AdamW(params, lr=1e-3), []
    for _ in range({TRIES * 4}):
        start = time.process_time()
        optimizer.step()
        times.append(time.process_time() - start)
    return 1 / min(times)

rates = [rate(rule, state) for rule, state in {CELLS}]
print(json.dumps(rates + [small()] * (importlib.util.find_spec("torch") is not None)))
"""


def rates(folder: str) -> list[float]:
    env = {**os.environ, "PYTHONPATH": folder}
    done = subprocess.run([sys.executable, "-c", _MEASURE], env=env, capture_output=True, text=True, check=True)
    found: list[float] = json.loads(done.stdout)
    return found


def main() -> None:
    builds = sys.argv[1:]
    if len(builds) != 2:
        sys.exit(f"got {len(builds)} folders, wanted two: {__doc__}")
    best: list[list[float]] = [[], []]
    for _ in range(ROUNDS):
        for build, folder in enumerate(builds):
            found = rates(folder)
            best[build] = [max(pair) for pair in zip(best[build] or found, found)]
    ratios = [a / b for a, b in zip(*best)]
    for name, ratio in zip([*map(" ".join, CELLS), f"adamw, {SMALL:,} tensors of 16"], ratios):
        print(f"{name}: {ratio:.3f}")
    mean = math.exp(sum(map(math.log, ratios)) / len(ratios))
    print(f"lowest {min(ratios):.3f}, geometric mean {mean:.3f}")


if __name__ == "__main__":
    main()
