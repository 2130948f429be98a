"""The compared optimizers, under their names in rows.py."""

from __future__ import annotations

import ctypes
import pathlib
from collections.abc import Callable
from typing import Any

import torch
from common.contenders import PEERS, Contender, Options, Params

LEARNING_RATE = {"adamw": 1e-3, "lion": 1e-4, "prodigy": 1.0}
DECAY = 1e-2
MAX_NORM = 1e9  # so large that torch leaves gradients unchanged for the next line


def lowtide(params: Params, rule: str = "adamw", **options: Any) -> Any:
    """The option "cpu_target" picks an instruction set, which only tests and benchmarks do."""
    import lowtide

    made = getattr(lowtide, {"adamw": "AdamW", "lion": "Lion", "prodigy": "Prodigy"}[rule])(params, **options)
    target = options.get("cpu_target", "")
    if target and made.engine.core.cpu_target() != target:
        raise RuntimeError(f"got the path {made.engine.core.cpu_target()}, wanted {target}")
    return made


def lowtide_cannot(options: Options) -> str | None:
    from lowtide import _core

    target = options.get("cpu_target", "")
    if target and target not in _core.cpu_targets():
        return f"this CPU cannot run {target}"
    if target == _core.cpu_targets()[0]:
        return f"{target} is this CPU's default path: see the row without it"
    return None


class Reads:
    """One read of all gradients instead of a step. call: "check", Lowtide's search for non-finite values; "norm", its norm;
    "torch", torch.nn.utils.get_total_norm."""

    def __init__(self, params: Params, call: str, **hyper: Any) -> None:
        self.state: dict[torch.Tensor, dict[str, torch.Tensor]] = {}
        grads = [param.grad for param in params]
        made = None if call == "torch" else lowtide(params, **hyper)
        self.step = {
            "check": lambda: made.engine.core.check(),
            "norm": lambda: made.clip_grad_norm_(1.0),
            "torch": lambda: torch.nn.utils.get_total_norm(grads, foreach=True),
        }[call]


class Sequence:
    """A step as users take it: the norm of all gradients is clipped, by the optimizer's own clip_grad_norm_ or else torch's,
    the parameters are stepped, and the gradients are dropped."""

    def __init__(self, optimizer: Any, params: Params) -> None:
        self._optimizer, self._params, self._grads = optimizer, params, [param.grad for param in params]
        self._clips_itself = hasattr(optimizer, "clip_grad_norm_")

    def prepare(self) -> None:
        """Restores the gradients, which backward would have made. Not timed."""
        for param, grad in zip(self._params, self._grads, strict=True):
            param.grad = grad

    def __call__(self) -> None:
        if self._clips_itself:
            self._optimizer.clip_grad_norm_(MAX_NORM)
        else:
            torch.nn.utils.clip_grad_norm_(self._params, MAX_NORM, foreach=True)
        self._optimizer.step()
        self._optimizer.zero_grad()


class Bnb:
    """liblowtide_bnb's cadam_8bit_blockwise_grad_fp32, called as bitsandbytes calls its CUDA library. The option "map": "other"
    uses maps that the vectorized path does not have."""

    BLOCK = 256

    def __init__(self, params: Params, lr: float, weight_decay: float, map: str = "vectorized") -> None:
        from bitsandbytes.functional import create_dynamic_map

        import lowtide

        self.state: dict[torch.Tensor, dict[str, torch.Tensor]] = {}
        self._library = ctypes.CDLL(str(pathlib.Path(lowtide.__file__).parent / "liblowtide_bnb.so"))
        by = 1 - 2.0**-20 if map == "other" else 1
        self._maps = [create_dynamic_map(signed=signed) * by for signed in (True, False)]
        self._lr, self._decay, self._step = lr, weight_decay, 0
        for p in params:
            blocks = -(-p.numel() // self.BLOCK)
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
                *scales, number(self._decay), number(1.0), ctypes.c_bool(False), ctypes.c_int32(p.numel()),
            )  # fmt: skip


CONTENDERS = {
    **{name: PEERS[name] for name in ("torch", "bitsandbytes", "deepspeed", "torchao", "flashoptim-plain")},
    "lowtide": Contender("lowtide", lowtide, cannot=lowtide_cannot),
    "lowtide_bnb": Contender("lowtide", Bnb, compiles=lambda: False),
    "gradient_reads": Contender("lowtide", Reads),
}
