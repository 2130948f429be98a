"""bitsandbytes' paged memory: CPU tensors in memory that both the device and the host can address, through `cextension.lib`.

No optimizer here needs it, because the classes in `optim` page their state themselves (`memory=`). It serves code that pages
its own tensors.
"""

from __future__ import annotations

import ctypes as ct
import weakref
from collections.abc import Callable, Collection
from math import prod
from typing import Any, ClassVar

import torch

from lowtide.checks.values import check_tensor, expect
from lowtide.compat.bitsandbytes.cextension import lib

FIRST_CUDA_DEVICE = torch.device("cuda", index=0)

# For each type: the suffix of the function in the library, and the type of its value.
_FILLS: dict[torch.dtype, tuple[str, Callable[[float], Any]]] = {
    torch.float32: ("fp32", ct.c_float),
    torch.uint8: ("uint8", lambda value: ct.c_uint8(int(value))),
}
_FUNCTIONS: dict[str, Collection[torch.dtype]] = {"fill": _FILLS, "arange": [torch.float32], "_mul": [torch.float32]}


class GlobalPageManager:
    """A list of paged tensors to prefetch together. `get_instance()` returns the one list of the process. It holds no state of
    Lowtide's optimizers: `opt.page_mng` prefetches that."""

    paged_tensors: list[torch.Tensor]
    _instance: ClassVar[GlobalPageManager | None] = None

    def __init__(self) -> None:
        raise RuntimeError("GlobalPageManager: got a call of the class, wanted GlobalPageManager.get_instance()")

    @classmethod
    def get_instance(cls) -> GlobalPageManager:
        if cls._instance is None:
            cls._instance = cls.__new__(cls)
            cls._instance.initialize()
        return cls._instance

    def initialize(self) -> None:
        """Forgets all tensors."""
        self.paged_tensors = []

    def prefetch_all(self, to_cpu: bool = False) -> None:
        """Calls `prefetch_tensor` for the tensors in reverse order, so that the first one added is evicted last."""
        for tensor in reversed(self.paged_tensors):
            prefetch_tensor(tensor, to_cpu)


def get_paged(*shape: int, dtype: torch.dtype = torch.float32, device: torch.device = FIRST_CUDA_DEVICE) -> torch.Tensor:
    """A CPU tensor of zeros in managed memory, with `is_paged` and `page_deviceid`, like bitsandbytes' paged state.

    `lib.lt_bnb_place()` says where the memory is; without a device, it is host memory. It is freed with the last tensor that
    uses it (bitsandbytes never frees it).

    Args:
        shape: sizes.
        dtype: of the elements.
        device: the destination of `prefetch_tensor`, by its index; its type does not matter.

    Raises RuntimeError if memory is short, ValueError for a size below 0, TypeError for a size that is not an integer.
    """
    for size in shape:
        if not isinstance(size, int):
            raise TypeError(f"shape: got {size!r} ({type(size).__name__}), wanted integers: get_paged(2, 3)")
    expect(all(size >= 0 for size in shape), "shape", shape, "sizes of 0 and more")
    size = dtype.itemsize * prod(shape)
    if size:
        address = lib.cget_managed_ptr(size)
        memory = (ct.c_uint8 * size).from_address(address)
        weakref.finalize(memory, lib.cfree_managed_ptr, address).atexit = False
        out = torch.frombuffer(memory, dtype=dtype).view(shape)
    else:
        out = torch.empty(shape, dtype=dtype, device="cpu")
    return _marked(out, device.index or 0)


def prefetch_tensor(A: torch.Tensor, to_cpu: bool = False) -> None:
    """Hints that a paged tensor will be used on its device or, with to_cpu, on the host. Never changes values.

    Raises ValueError for a tensor that is not paged, RuntimeError for a device that does not exist."""
    expect(_is_paged(A), "A", "a tensor that is not paged", "one of get_paged()")
    if A.numel():
        lib.cprefetch(A.data_ptr(), A.nbytes, -1 if to_cpu else getattr(A, "page_deviceid", 0))


def elementwise_func(func_name: str, A: torch.Tensor, B: torch.Tensor | None, value: float, prefetch: bool = True) -> None:
    """Sets each element of A in place, and returns when that is done.

    Args:
        func_name: "fill": to `value`; "arange": to its index; "_mul": to its product with B's element.
        A: float32 (or uint8, for "fill"), contiguous, in memory that the host can read.
        B: like A, for "_mul"; else None.
        prefetch: whether to first prefetch tensors whose `is_managed` is true.

    Raises NotImplementedError for other functions or types, ValueError for tensors that do not fit together, RuntimeError for a
    value that the type cannot hold.
    """
    check_tensor(A, "A")
    if A.dtype not in _FUNCTIONS.get(func_name, ()):
        raise NotImplementedError(
            f"got {func_name} of {A.dtype}, wanted fill of float32 or uint8, or arange or _mul of float32"
        )
    expect((B is not None) == (func_name == "_mul"), "B", type(B).__name__, "a tensor for _mul, else None")
    for tensor, name in ((A, "A"), (B, "B")):
        if tensor is None:
            continue
        check_tensor(tensor, name)
        expect(tensor.device.type == "cpu", name, f"a tensor on {tensor.device}", "one of get_paged(), or on the CPU")
        expect(tensor.is_contiguous() and tensor.dtype == A.dtype and tensor.shape == A.shape, name,
               f"{tensor.dtype} of shape {tuple(tensor.shape)}", f"contiguous {A.dtype} of shape {tuple(A.shape)}")  # fmt: skip
        if prefetch and getattr(tensor, "is_managed", False):
            prefetch_tensor(tensor)
    with torch.no_grad():
        if func_name == "_mul":
            A.mul_(B)  # type: ignore[arg-type]
        elif func_name == "arange":
            torch.arange(A.numel(), out=A.view(-1))
        elif _is_paged(A) and A.numel():
            torch.empty((), dtype=A.dtype).fill_(value)  # raises, as for a plain tensor, if the value does not fit
            suffix, of_type = _FILLS[A.dtype]
            lib[f"cfill_{suffix}"](A.data_ptr(), None, of_type(value), A.numel())
        else:
            A.fill_(value)


def fill(A: torch.Tensor, value: float, device: Any = None, prefetch: bool = True) -> None:
    """Sets all elements to `value`; device has no effect. See `elementwise_func`."""
    del device
    elementwise_func("fill", A, None, value, prefetch)


def arange(A: torch.Tensor, device: Any = None) -> None:
    """Sets each element to its index; device has no effect. See `elementwise_func`. (bitsandbytes had `arange` until 0.45.)"""
    del device
    elementwise_func("arange", A, None, 0)


def get_ptr(A: torch.Tensor | None) -> ct.c_void_p | None:
    """The address of the first element, for functions of `cextension.lib`; None for None."""
    return None if A is None else ct.c_void_p(A.data_ptr())


def _is_paged(tensor: torch.Tensor) -> bool:
    return bool(getattr(tensor, "is_paged", False))


def _marked(tensor: torch.Tensor, device: int) -> torch.Tensor:
    marks: Any = tensor
    marks.is_paged, marks.page_deviceid = True, device
    return tensor
