"""A contender of os_paging.py: torch's fused AdamW whose moments are tensors over a file mapped shared.

    torch_mapped.py DIRECTORY ELEMENTS

Answers the same lines of input as os_paging.cpp.
"""

from __future__ import annotations

import os
import sys
import tempfile
import time

import torch


def main() -> None:
    directory, elements = sys.argv[1], int(sys.argv[2])
    param = torch.nn.Parameter(torch.randn(elements // 1024, 1024) * 0.02)
    param.grad = torch.randn_like(param) * 1e-3
    optimizer = torch.optim.AdamW([param], lr=1e-3, weight_decay=0, fused=True)
    # The first step loads kernels and starts threads, which belong to the process, not to the state.
    small = torch.nn.Parameter(torch.ones(1 << 16))
    small.grad = torch.ones_like(small)
    torch.optim.AdamW([small], fused=True).step()
    print("ready", flush=True)
    descriptor = -1
    for line in sys.stdin:
        start = time.perf_counter()
        if line == "state\n":
            descriptor, name = tempfile.mkstemp(dir=directory)
            for _ in range(elements * 8 >> 20):
                os.write(descriptor, bytes(1 << 20))
            os.fdatasync(descriptor)
            both = torch.from_file(name, shared=True, size=2 * elements, dtype=torch.float32)
            os.unlink(name)
            first, second = (half.view_as(param) for half in both.split(elements))
            optimizer.state[param] = {"step": torch.tensor(0.0), "exp_avg": first, "exp_avg_sq": second}
            print(-1, flush=True)
        elif line == "step\n":
            optimizer.step()
            print(time.perf_counter() - start, flush=True)
        elif line == "settle\n":
            os.fdatasync(descriptor)
            print(time.perf_counter() - start, flush=True)
        elif line == "end\n":
            print("-", flush=True)
            return


if __name__ == "__main__":
    main()
