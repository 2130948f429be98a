"""liblowtide_bnb as bitsandbytes calls it: through its own module for CUDA, with its library replaced by ours."""

import ctypes
import importlib.util
import types
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from unittest import mock

import lowtide
import pytest
import torch

PATH = Path(lowtide.__file__).parent / "liblowtide_bnb.so"
TWO_STATES = ("adam", "ademamix")
NO_BF16_32BIT = ("momentum", "rmsprop", "adagrad")
OPTIMIZERS = ("adam", "momentum", "rmsprop", "lion", "adagrad", "ademamix")
BLOCK = 256


def library() -> ctypes.CDLL:
    if not PATH.exists():
        pytest.skip(f"{PATH} is not there: this build has no liblowtide_bnb (LOWTIDE_BNB)")
    loaded = ctypes.CDLL(str(PATH))
    loaded.lt_bnb_last_error.restype = ctypes.c_char_p
    loaded.cget_managed_ptr.restype = ctypes.c_void_p
    return loaded


def last_error(loaded: ctypes.CDLL) -> str:
    text: bytes = loaded.lt_bnb_last_error()
    return text.decode()


class _Library:
    """Our library, with stand-ins for functions of other parts of bitsandbytes, which its module looks up, too."""

    def __init__(self, loaded: ctypes.CDLL) -> None:
        self._loaded = loaded

    def __getattr__(self, name: str) -> Any:
        return getattr(self._loaded, name, None) or mock.Mock(name=name)


def cuda_module(loaded: ctypes.CDLL, monkeypatch: pytest.MonkeyPatch) -> types.ModuleType:
    """A second copy of bitsandbytes.backends.cuda.ops, bound to `loaded` and registered nowhere."""
    bitsandbytes = pytest.importorskip("bitsandbytes", exc_type=ImportError)
    from bitsandbytes import _ops, cextension

    monkeypatch.setattr(cextension, "lib", _Library(loaded))
    monkeypatch.setattr(_ops, "register_kernel", lambda *_: lambda kernel: kernel)
    monkeypatch.setattr(torch._C, "_cuda_getCurrentRawStream", None, raising=False)  # torch without CUDA has none
    path = Path(bitsandbytes.__file__).parent / "backends" / "cuda" / "ops.py"
    spec = importlib.util.spec_from_file_location("bitsandbytes.backends.cuda.ops_with_lowtide", path)
    if spec is None or spec.loader is None or not path.exists():
        pytest.skip(f"bitsandbytes {bitsandbytes.__version__} has no {path}")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def float32(x: float) -> float:
    """The value that arrives through a c_float."""
    return ctypes.c_float(x).value


@dataclass
class Tensors:
    """One parameter with the state that bitsandbytes' optimizers give it."""

    name: str
    coded: bool
    p: torch.Tensor
    g: torch.Tensor
    state1: torch.Tensor = field(init=False)
    state2: torch.Tensor | None = field(init=False, default=None)
    qmap1: torch.Tensor | None = field(init=False, default=None)
    qmap2: torch.Tensor | None = field(init=False, default=None)
    absmax1: torch.Tensor | None = field(init=False, default=None)
    absmax2: torch.Tensor | None = field(init=False, default=None)

    def __post_init__(self) -> None:
        from bitsandbytes import functional

        create_map: Any = functional.create_dynamic_map

        dtype = torch.uint8 if self.coded else torch.float32
        twice = (2,) if self.name == "ademamix" else ()
        self.state1 = torch.zeros((*twice, *self.p.shape), dtype=dtype)
        blocks = -(-self.p.numel() // BLOCK)
        if self.coded:
            self.qmap1 = create_map(signed=True)
            self.absmax1 = torch.zeros((*twice, blocks))
        if self.name in TWO_STATES:
            self.state2 = torch.zeros(self.p.shape, dtype=dtype)
            if self.coded:
                self.qmap2 = create_map(signed=False)
                self.absmax2 = torch.zeros(blocks)

    def clone(self) -> "Tensors":
        other = Tensors(self.name, self.coded, self.p.clone(), self.g.clone())
        for name in ("state1", "state2", "qmap1", "qmap2", "absmax1", "absmax2"):
            if (value := getattr(self, name)) is not None:
                setattr(other, name, value.clone())
        return other

    def arguments(self, **hyper: Any) -> tuple[Any, ...]:
        """In the order of bitsandbytes' Python functions, 8-bit or 32-bit."""
        h: dict[str, Any] = {
            "beta1": 0.9, "beta2": 0.999, "beta3": 0.9999, "alpha": 5.0, "eps": 1e-8, "weight_decay": 1e-2,
            "step": 1, "lr": 1e-3, "gnorm_scale": 1.0, "max_unorm": 0.0, "param_norm": 0.0, "unorm_vec": None,
            **hyper,
        }  # fmt: skip
        h = {key: float32(value) if isinstance(value, float) else value for key, value in h.items()}
        betas = (h["beta1"], h["beta2"], h["beta3"], h["alpha"], h["eps"])
        if self.coded:
            scales = (self.qmap1, self.qmap2, self.absmax1, self.absmax2)
            states = (self.state1, self.state2)
            return (self.name, self.g, self.p, *states, *betas, h["step"], h["lr"], *scales, h["weight_decay"],
                    h["gnorm_scale"])  # fmt: skip
        norms = (h["unorm_vec"], h["max_unorm"], h["param_norm"])
        states = (self.state1, self.state2)
        return (self.name, self.g, self.p, *states, *norms, *betas, h["weight_decay"], h["step"], h["lr"],
                h["gnorm_scale"])  # fmt: skip

    def decoded(self) -> list[torch.Tensor]:
        """The values of all states, in double."""
        pairs = [(self.state1, self.qmap1, self.absmax1), (self.state2, self.qmap2, self.absmax2)]
        values = []
        for state, qmap, absmax in pairs:
            if state is None:
                continue
            if qmap is None or absmax is None:
                values.append(state.double())
                continue
            scale = absmax.double().repeat_interleave(BLOCK, dim=-1)[..., : self.p.numel()]
            values.append(qmap.double()[state.long()].reshape(*scale.shape) * scale)
        return values
