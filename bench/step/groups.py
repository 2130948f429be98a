"""Measures the groups of rows: one large tensor, peers at 16 Mi, many small tensors; and checks the codes."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from common.ceiling import ceiling
from common.measure import Timing, interleave

import lowtide

from . import rows as table
from .contenders import Unavailable, bitsandbytes_adamw, deepspeed_adam, lowtide_cpu, torch_adamw
from .rows import MIXES, Row

MAKERS: dict[str, Callable[..., Callable[[], object]]] = {
    "lowtide": lowtide_cpu.make,
    "torch": torch_adamw.make,
    "bitsandbytes": bitsandbytes_adamw.make,
    "deepspeed": deepspeed_adam.make,
}


@dataclass
class Settings:
    """Sizes of a run."""

    elements: int
    peer_elements: int
    tiny_tensors: int
    rounds: int


def parameter(elements: int, dtype: torch.dtype) -> torch.nn.Parameter:
    """A parameter with a gradient, both of the size that training has."""
    generator = torch.Generator().manual_seed(0)
    p = torch.nn.Parameter((torch.randn(elements, generator=generator) * 0.02).to(dtype))
    p.grad = (torch.randn(elements, generator=generator) * 1e-3).to(dtype)
    return p


def _figures(row: Row, elements: int, timing: Timing, baseline: Timing, threads: int) -> dict[str, object]:
    seconds = timing.best_third
    ratio = baseline.best_third / seconds
    must = (row.must or {}).get(threads)
    return {
        "name": row.name,
        "threads": threads,
        "gelements_per_s": elements / seconds / 1e9,
        "bytes_per_element": row.bytes_per_element,
        "gb_per_s": elements * row.bytes_per_element / seconds / 1e9,
        "ratio": ratio,
        "must": must,
        "reached": None if must is None else ratio >= must,
        "rounds": timing.seconds,
        "waited": timing.waited,
    }


def large_rows(settings: Settings) -> list[dict[str, object]]:
    """One tensor; every row against torch fused and its traffic mix, with one thread and with two."""
    params = {str(d).split(".")[1]: parameter(settings.elements, d) for d in (torch.float32, torch.bfloat16)}
    steps = {i: MAKERS[row.maker]([params[row.dtype]], **row.options) for i, row in enumerate(table.LARGE)}
    sizes = {1: torch.uint8, 2: torch.bfloat16, 4: torch.float32}
    # The mixes share arrays: their contents do not matter.
    pool = {b: [torch.ones(settings.elements, dtype=t) for _ in range(4 if b == 4 else 2)] for b, t in sizes.items()}
    mixes: dict[str, Callable[[], object]] = {}
    for name, streams in MIXES.items():
        left = {b: list(arrays) for b, arrays in pool.items()}
        mixes[name] = ceiling([(left[b].pop(), write) for b, write in streams])
    out = []
    for threads in (1, 2):
        torch.set_num_threads(threads)
        timings = interleave({**{str(i): s for i, s in steps.items()}, **mixes}, settings.rounds)
        for i, row in enumerate(table.LARGE):
            figures = _figures(row, settings.elements, timings[str(i)], timings["0"], threads)
            if row.ceiling:
                mix_bytes = sum(b * (2 if w else 1) for b, w in MIXES[row.ceiling])
                ceiling_rate = settings.elements * mix_bytes / timings[row.ceiling].best_third / 1e9
                figures["ceiling_gb_per_s"] = ceiling_rate
                figures["of_ceiling"] = figures["gb_per_s"] / ceiling_rate  # type: ignore[operator]
            out.append(figures)
    return out


def peer_rows(settings: Settings) -> list[dict[str, object]]:
    """Slower peers, on a smaller tensor and with two threads."""
    torch.set_num_threads(2)
    p = parameter(settings.peer_elements, torch.float32)
    steps, missing = {}, {}
    for i, row in enumerate(table.PEERS):
        try:
            steps[str(i)] = MAKERS[row.maker]([p], **row.options)
            steps[str(i)]()
        except Unavailable as why:
            steps.pop(str(i), None)
            missing[i] = str(why)
    timings = interleave(steps, max(3, settings.rounds // 2), warmup=1)
    out: list[dict[str, object]] = []
    bitsandbytes = next(i for i, row in enumerate(table.PEERS) if row.maker == "bitsandbytes")
    for i, row in enumerate(table.PEERS):
        if i in missing:
            out.append({"name": row.name, "missing": missing[i]})
            continue
        figures = _figures(row, settings.peer_elements, timings[str(i)], timings["0"], 2)
        if row.maker == "lowtide" and bitsandbytes not in missing:
            figures["ratio_to_bitsandbytes"] = timings[str(bitsandbytes)].best_third / timings[str(i)].best_third
            figures["must"] = table.BITSANDBYTES_MUST
            figures["reached"] = figures["ratio_to_bitsandbytes"] >= table.BITSANDBYTES_MUST
        out.append(figures)
    return out


def tiny_rows(settings: Settings) -> list[dict[str, object]]:
    """Many tensors of 1,024 elements: the whole Python step(), in microseconds a tensor."""
    out = []
    params: Sequence[torch.Tensor] = [parameter(1024, torch.float32) for _ in range(settings.tiny_tensors)]
    steps = {str(i): MAKERS[row.maker](params, **row.options) for i, row in enumerate(table.TINY)}
    for threads in (1, 2):
        torch.set_num_threads(threads)
        timings = interleave(steps, settings.rounds)
        for i, row in enumerate(table.TINY):
            figures = _figures(row, 1024 * settings.tiny_tensors, timings[str(i)], timings["0"], threads)
            microseconds = timings[str(i)].best_third / settings.tiny_tensors * 1e6
            figures["microseconds_per_tensor"] = microseconds
            if row.maker == "lowtide":
                figures["must"] = table.TINY_MUST_MICROSECONDS
                figures["reached"] = (
                    microseconds <= table.TINY_MUST_MICROSECONDS and figures["ratio"] >= table.TINY_MUST_RATIO  # type: ignore[operator]
                )
            out.append(figures)
    return out


def state_row() -> dict[str, float]:
    """Bytes of state per parameter, as allocated for a (4096, 4096) weight."""
    p = torch.nn.Parameter(torch.zeros(4096, 4096))
    return {
        f"{rule} {state}": getattr(lowtide, rule)([p], state=state).report()["state_bytes"] / p.numel()
        for rule in ("AdamW", "Lion")
        for state in ("fp32", "bf16", "dynamic8")
    }


def codes_row() -> dict[str, object]:
    """How far second moments spread over five decades are from their 8-bit codes: Lowtide and bitsandbytes on the CPU."""
    generator = torch.Generator().manual_seed(1)
    n = 1 << 18
    v = 10 ** (torch.rand(n, generator=generator) * -5)
    p = torch.nn.Parameter(torch.zeros(n))
    optimizer = lowtide.AdamW([p], betas=(0.0, 0.0), lr=0.0)  # beta2 = 0: the state is the squared gradient
    p.grad = v.sqrt()
    optimizer.step()
    exact = (p.grad * p.grad).reshape(-1, 256)
    absmax = exact.amax(1, keepdim=True)
    codes = optimizer.state[p]["exp_avg_sq"].reshape(-1, 256)
    values = torch.unique(optimizer._core.export_state(0, 1).reshape(-1, 256) / absmax)  # those in use
    out: dict[str, object] = {"n": n, "codes_in_use": int(codes.unique().numel()), "values_in_use": int(values.numel())}
    try:
        import bitsandbytes.functional as F

        signed_map = F.create_dynamic_map(signed=False)
        x = exact / absmax
        nearest = torch.bucketize(x, (signed_map[1:] + signed_map[:-1]) * 0.5)
        nearest = torch.where((nearest == 0) & (x > 0), 1, nearest)
        out["lowtide_codes_not_nearest"] = int((codes.long() != nearest).sum())
        quantized, _ = F.quantize_blockwise(exact.reshape(-1), code=signed_map, blocksize=256)
        out["bitsandbytes_codes_not_nearest"] = int((quantized.reshape(-1, 256).long() != nearest).sum())
    except Exception as error:  # noqa: BLE001  # an optional comparison with native code of others
        out["bitsandbytes"] = f"not compared: {error}"
    return out
