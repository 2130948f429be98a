"""All state on the host: a step compared with the link's own time for the same bytes, and with other paged optimizers."""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from typing import Any

import torch

from bench.common import contenders as rivals
from bench.cuda import capture, contenders, shapes
from bench.cuda.device import Gpu
from bench.cuda.link import Link
from bench.cuda.rows import Absent, Rows
from bench.cuda.timing import Step, in_turns

ELEMENTS = {"dynamic8": 2_000_000_000, "fp32": 1_000_000_000}  # state of 4 and 8 GB
STATE_EACH = {"dynamic8": 2 * (1 + 4 / 256), "fp32": 8.0}  # bytes of state per element
TRANSFER_MODES = (None, "copy", "zero_copy", "hybrid")  # None: the library chooses
DEVICE = "256MiB"  # for streaming buffers; the rest holds state
TENSORS = 30


def parameters(gpu: Gpu, state: str, extra_host: float = 0.0) -> tuple[list[torch.nn.Parameter], int]:
    wanted = gpu.elements(ELEMENTS[state], 2_000_000, 4.5, STATE_EACH[state] + extra_host)
    params = gpu.parameters(shapes.equal(wanted, TENSORS), torch.bfloat16)
    return params, sum(param.numel() for param in params)


def moved_each_way(gpu: Gpu, optimizer: Any, whole: float) -> float:
    """Bytes of state that a step moves each way. In a rehearsal, state moves elsewhere: `whole`, all its bytes."""
    return float(optimizer.report()["moved_per_step"]) / 2 if gpu.on_device and not gpu.rehearsed else whole


def streaming(gpu: Gpu, rows: Rows, state: str) -> None:
    params, count = parameters(gpu, state, 1.0)
    whole = round(count * STATE_EACH[state])
    # A share of the bytes measures the link as well, without another 20 GB of pinned memory.
    link = Link(gpu, min(whole, gpu.size(2 << 30, 1 << 20)))
    for transfer in TRANSFER_MODES:
        figure = f"paged_{state}" if transfer is None else None
        label = f"AdamW {state}, {count * 1e-9:.2g}e9 elements, transfer {transfer or 'chosen by the library'}"

        def measure(transfer: str | None = transfer, figure: str | None = figure, label: str = label) -> None:
            memory = contenders.budget(gpu, device=DEVICE, transfer=transfer)
            optimizer = contenders.lowtide_adamw(gpu, params, state, memory=memory)
            steps = {"step": Step(optimizer.step), **link.steps()}
            found = in_turns(gpu, steps, seconds=6, idle=True)
            moved = moved_each_way(gpu, optimizer, whole)
            step, both = found["step"].median("wall"), found["both"].median("wall") * moved / link.count
            rows.add(f"{label}: rate / link", both / step, "x", figure, gb_per_s_each_way=moved / step * 1e-9,
                     link_gb_per_s_each_way=moved / both * 1e-9,
                     link_in_gb_per_s=link.count / found["in"].median("wall") * 1e-9,
                     link_out_gb_per_s=link.count / found["out"].median("wall") * 1e-9,
                     report=dict(optimizer.report()),
                     **found["step"].data())  # fmt: skip

        rows.attempt(label, measure, figure)
        gpu.free()


def touch(optimizer: Any) -> None:
    """Reads a byte in every page of the state from the CPU, so that the driver moves everything to the host."""
    for entry in optimizer.state.values():
        for value in entry.values():
            if isinstance(value, torch.Tensor) and value.is_cpu and value.numel() > 1:
                value.detach().reshape(-1).view(torch.uint8)[::4096].sum()


def prefetch_to_host(optimizer: Any) -> None:
    """Asks the driver to move the state to the host at once, behind the current stream. Nothing is faster."""
    cuda, stream = capture.runtime(), ctypes.c_void_p(torch.cuda.current_stream().cuda_stream)
    newer = int((torch.version.cuda or "0").partition(".")[0]) >= 13
    # A cudaMemLocation, {2: the host, 0}, and flags. Older runtimes take the number of a device, with -1 for the host.
    place = (ctypes.c_uint64(2), ctypes.c_uint(0)) if newer else (ctypes.c_int(-1),)
    for entry in optimizer.state.values():
        for value in entry.values():
            if getattr(value, "is_paged", False):
                count = ctypes.c_size_t(value.numel() * value.element_size())
                if error := cuda.cudaMemPrefetchAsync(ctypes.c_void_p(value.data_ptr()), count, *place, stream):
                    raise RuntimeError(f"cudaMemPrefetchAsync of {count.value} bytes to the host: error {error}")


def bitsandbytes(gpu: Gpu, rows: Rows) -> None:
    """A round trip: state is on the host before and after, as it is around a forward and backward that need the memory. The
    driver moves it out after a prefetch request, which nobody makes in practice, or by faults."""
    name, each = "PagedAdamW8bit", STATE_EACH["dynamic8"]
    params, count = parameters(gpu, "dynamic8", each + 1.0)
    moved = count * each
    gpu.allow_managed(round(moved))
    other = rivals.bitsandbytes(params, name, lr=contenders.LR)
    own = contenders.lowtide_adamw(gpu, params, memory=contenders.budget(gpu, device=DEVICE))
    other.step()
    if not gpu.rehearsed and not any(getattr(v, "is_paged", False) for e in other.state.values() for v in e.values()):
        raise Absent("bitsandbytes has not paged its state: nothing to compare with")
    ways: dict[str, Callable[[Any], object]] = {"moved out by faults": touch}
    if not gpu.rehearsed:
        ways["moved out by a prefetch"] = prefetch_to_host
    for way, move_out in ways.items():

        def measure(way: str = way, move_out: Callable[[Any], object] = move_out) -> None:
            def round_trip() -> None:
                other.step()
                move_out(other)

            move_out(other)
            steps = {"own": Step(own.step), "other": Step(round_trip)}
            found = in_turns(gpu, steps, seconds=8, warm_up=1, rounds=8, idle=True)
            mine, theirs = found["own"].median("wall"), found["other"].median("wall")
            own_moved = moved_each_way(gpu, own, moved)
            rows.add(f"{name}, step on state from the host, {way} / Lowtide", theirs / mine, "x",
                     "bnb_paged" if move_out is prefetch_to_host else None, elements=count, gb_per_s_each_way=moved / theirs * 1e-9,
                     own_gb_per_s_each_way=own_moved / mine * 1e-9, own_moved=own_moved, **found["other"].data())  # fmt: skip

        rows.attempt(f"{name}, {way}", measure)
    found = in_turns(gpu, {"own": Step(own.step), "warm": Step(other.step)}, seconds=5, warm_up=1, rounds=8, idle=True)
    rows.add(f"{name}, step on resident state / Lowtide, state on the host", found["warm"].median("wall") / found["own"].median("wall"),
             "x", **found["warm"].data())  # fmt: skip


CASES = {
    "paged.dynamic8": lambda gpu, rows: streaming(gpu, rows, "dynamic8"),
    "paged.fp32": lambda gpu, rows: streaming(gpu, rows, "fp32"),
    "paged.bitsandbytes_8bit": bitsandbytes,
}
