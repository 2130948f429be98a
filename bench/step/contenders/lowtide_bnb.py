"""liblowtide_bnb's cadam_8bit_blockwise_grad_fp32, called as bitsandbytes calls its CUDA library. With the option
"map": "other" the maps are not those of the vectorized path."""

from __future__ import annotations

import ctypes
import pathlib
from collections.abc import Callable
from typing import Any

import torch
from step.contenders import LEARNING_RATE

PACKAGE = "lowtide"
BLOCK = 256


def library() -> ctypes.CDLL:
    import lowtide

    return ctypes.CDLL(str(pathlib.Path(lowtide.__file__).parent / "liblowtide_bnb.so"))


def why_not(quick: bool) -> str | None:
    try:
        library()
        import bitsandbytes  # noqa: F401 -- its maps
    except Exception as error:
        return f"cannot be loaded: {error}"
    return None


def describe() -> dict[str, Any]:
    return {}


class Adam8bit:
    def __init__(self, params: list[torch.nn.Parameter], lr: float, maps: list[torch.Tensor]) -> None:
        self.state: dict[torch.Tensor, dict[str, torch.Tensor]] = {}
        self._library, self._lr, self._maps, self._step = library(), lr, maps, 0
        for p in params:
            blocks = -(-p.numel() // BLOCK)
            codes = {name: torch.zeros(p.numel(), dtype=torch.uint8) for name in ("state1", "state2")}
            self.state[p] = {**codes, **{name: torch.zeros(blocks) for name in ("absmax1", "absmax2")}}

    def step(self) -> None:
        self._step += 1
        self._library.lt_bnb_set_threads(torch.get_num_threads())
        number: Callable[[float], ctypes.c_float] = ctypes.c_float
        for p, s in self.state.items():
            assert p.grad is not None
            arrays = [ctypes.c_void_p(t.data_ptr()) for t in (p, p.grad, s["state1"], s["state2"])]
            scales = [ctypes.c_void_p(t.data_ptr()) for t in (*self._maps, s["absmax1"], s["absmax2"])]
            self._library.cadam_8bit_blockwise_grad_fp32(
                *arrays, *map(number, (0.9, 0.999, 0.0, 0.0, 1e-8)), ctypes.c_int32(self._step), number(self._lr),
                *scales, number(1e-2), number(1.0), ctypes.c_bool(False), ctypes.c_int32(p.numel()),
            )  # fmt: skip


def optimizer(params: list[torch.nn.Parameter], rule: str, options: dict[str, Any]) -> Any:
    from bitsandbytes.functional import create_dynamic_map

    maps = [create_dynamic_map(signed=True), create_dynamic_map(signed=False)]
    if options.get("map") == "other":
        maps = [m * (1 - 2.0**-20) for m in maps]
    return Adam8bit(params, LEARNING_RATE[rule], maps)
