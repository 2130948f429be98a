"""Memory of the arrays that a call works on: torch tensors, numpy arrays (without importing numpy) and DLPack arrays. The core
gets only addresses: whoever holds an `Array` keeps its memory alive.
"""

from __future__ import annotations

import sys
from math import prod
from typing import Any, NamedTuple

import torch
from torch.utils._python_dispatch import is_traceable_wrapper_subclass

from lowtide.checks.values import expect
from lowtide.devices import places
from lowtide.devices.places import HOST, Place


class Array(NamedTuple):
    """One array. `value` is the user's object or a copy of it."""

    value: Any  # torch.Tensor or numpy.ndarray
    address: int
    dtype: str  # "float32", "uint8", ...
    shape: tuple[int, ...]
    strides: tuple[int, ...]  # bytes
    itemsize: int
    place: Place

    @property
    def numel(self) -> int:
        return prod(self.shape)

    @property
    def nbytes(self) -> int:
        """Bytes that the elements take when contiguous."""
        return self.numel * self.itemsize

    @property
    def is_contiguous(self) -> bool:
        expected = self.itemsize
        for size, stride in zip(reversed(self.shape), reversed(self.strides), strict=True):
            if size == 0:
                return True
            if size != 1 and stride != expected:
                return False
            expected *= size
        return True

    def empty(self, shape: tuple[int, ...], dtype: str) -> Any:
        """A new array of the same kind, on the same device."""
        if isinstance(self.value, torch.Tensor):
            return torch.empty(shape, dtype=getattr(torch, dtype), device=self.value.device)
        return sys.modules["numpy"].empty(shape, dtype=dtype)


def read(value: object, where: str) -> Array:
    """Describes the array `value` without copying it.

    Raises TypeError if it is not an array; ValueError if it has no memory, or memory of an unusual kind; NotImplementedError
    for a device on which this installation cannot compute.
    """
    if isinstance(value, torch.Tensor):
        return _read_tensor(value, where)
    numpy = sys.modules.get("numpy")
    if numpy is not None and isinstance(value, numpy.ndarray):
        expect(value.dtype.isnative, where, f"dtype {value.dtype.str}", "this machine's byte order: use astype")
        return Array(value, value.ctypes.data, value.dtype.name, value.shape, value.strides, value.dtype.itemsize, HOST)
    if hasattr(value, "__dlpack__"):
        return _read_tensor(torch.utils.dlpack.from_dlpack(value), where)
    raise TypeError(f"{where}: got {type(value).__name__}, wanted a torch.Tensor, a numpy.ndarray or a DLPack array")


def contiguous(array: Array) -> Array:
    """The elements in row-major order, contiguous and aligned: `array` itself if they already are."""
    aligned = array.address % array.itemsize == 0
    if array.is_contiguous and aligned:
        return array
    if isinstance(array.value, torch.Tensor):
        copy = array.value.detach().clone(memory_format=torch.contiguous_format)
    else:
        copy = sys.modules["numpy"].array(array.value, order="C")
    return read(copy, "a copy")


def written(value: Any, where: str, like: Array) -> Array:
    """Describes the caller's array for results, on the device of `like`.

    Raises ValueError if it is not contiguous, is read-only, or requires grad.
    """
    array = read(value, where)
    if array.value is not value:
        raise TypeError(f"{where}: got {type(value).__name__}, wanted a torch.Tensor or a numpy.ndarray")
    same_place(array, where, like)
    expect(array.is_contiguous, where, f"shape {array.shape} with strides", "a contiguous array")
    if isinstance(value, torch.Tensor):
        if value.requires_grad:
            raise ValueError(f"{where}: got a tensor that requires grad, wanted out.detach()")
    elif not array.value.flags.writeable:
        raise ValueError(f"{where}: got a read-only array, wanted a writable one")
    return array


def same_place(array: Array, where: str, like: Array) -> None:
    """Raises ValueError unless both are on the same device."""
    if array.place != like.place:
        raise ValueError(f"{where}: got a tensor on {array.place.device}, wanted one on {like.place.device}, like the first")


def _read_tensor(tensor: torch.Tensor, where: str) -> Array:
    if is_traceable_wrapper_subclass(tensor) or "DTensor" in type(tensor).__name__:
        raise TypeError(f"{where}: got a {type(tensor).__name__}, wanted a plain tensor")
    expect(tensor.layout == torch.strided, where, f"layout {tensor.layout}", "torch.strided (dense)")
    device = places.device_of(tensor)
    if device.type not in places.KINDS:
        raise NotImplementedError(f"{where}: got a tensor on {device}, wanted one on {' or '.join(places.KINDS)}")
    place = places.place_of(tensor, where)
    place.require_backend()
    tensor = tensor.resolve_neg()
    itemsize = tensor.element_size()
    return Array(
        tensor,
        tensor.data_ptr(),
        str(tensor.dtype).removeprefix("torch."),
        tuple(tensor.shape),
        tuple(stride * itemsize for stride in tensor.stride()),
        itemsize,
        place,
    )
