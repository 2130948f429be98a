"""Checks of single values. Errors give the value and what was wanted."""

from collections.abc import Mapping, Sequence
from numbers import Real
from typing import Any

import torch
from torch.utils._python_dispatch import is_traceable_wrapper_subclass

PARAMETER_DTYPES = (torch.float32, torch.bfloat16, torch.float16)
_LARGEST_STEP = 2**53
_TO_INFINITY = float.fromhex("0x1.ffffffp127")  # float32 rounds this and larger values to infinity


def with_context(where: str, error: Exception) -> Exception:
    """Returns an error of the same kind, with `where` before its message."""
    kinds = (TypeError, NotImplementedError, ValueError)
    return next(kind for kind in kinds if isinstance(error, kind))(f"{where}: {error}")


def number(name: str, value: object) -> float:
    """Converts a real number or a one-element tensor to a float. Raises TypeError, or ValueError for other tensors."""
    if type(value) is float:
        return value
    if isinstance(value, torch.Tensor):
        if value.numel() != 1 or value.is_complex() or value.is_meta:
            raise ValueError(
                f"{name}: got a {value.dtype} tensor of shape {tuple(value.shape)}, wanted one real element"
                f"{' with a value' if value.is_meta else ''}"
            )
        return float(value)
    if isinstance(value, Real):
        try:
            return float(value)
        except OverflowError:
            raise ValueError(f"{name}: got a {type(value).__name__} above 1.8e308, wanted one that a double holds") from None
    raise TypeError(f"{name}: got {value!r} ({type(value).__name__}), wanted a number or a tensor of one element")


def expect(condition: bool, where: str, got: object, wanted: object) -> None:
    """Raises ValueError unless `condition` holds."""
    if not condition:
        raise ValueError(f"{where}: got {got}, wanted {wanted}")


def check_tensor(value: object, where: str) -> None:
    """Raises ValueError unless `value` is a plain dense tensor with data."""
    plain = isinstance(value, torch.Tensor) and not is_traceable_wrapper_subclass(value)
    expect(plain, where, type(value).__name__, "a plain tensor")
    assert isinstance(value, torch.Tensor)
    dense = value.layout == torch.strided and not value.is_meta and not value.is_nested and not value.is_quantized
    kind = "nested" if value.is_nested else "quantized" if value.is_quantized else value.layout
    expect(dense, where, f"a {kind} tensor on {value.device}", "a dense one")


def check_floats(value: Any, where: str, shape: Sequence[int] | None = None) -> None:
    """Raises ValueError unless `value` is a dense floating-point tensor of at least 16 bits, with the given shape, if any."""
    check_tensor(value, where)
    expect(value.is_floating_point() and value.itemsize > 1, where, value.dtype, "a floating-point tensor of 16 bits or more")
    if shape is not None:
        expect(tuple(value.shape) == tuple(shape), where, tuple(value.shape), tuple(shape))


def check_moment(tensor: torch.Tensor, where: str, nonfinite: str, positive: bool) -> None:
    """Raises ValueError for a corrupt moment, which would silently spread through its block."""
    if nonfinite == "propagate" or not tensor.is_floating_point() or tensor.numel() == 0:
        return
    low, high = map(float, torch.aminmax(tensor.detach()))
    expect(-_TO_INFINITY < low and high < _TO_INFINITY, where, f"values from {low} to {high}", "finite ones, in float32")
    expect(low >= 0 or not positive, where, f"values from {low} to {high}", "none below 0")


def read_step(entry: Mapping[str, Any], where: str) -> int:
    """Returns the number of steps in a saved entry, where it is a Python number or a one-element tensor."""
    step = entry.get("step")
    if isinstance(step, torch.Tensor):
        check_tensor(step, f"{where}, step")
    try:
        value = number("step", step)
    except (TypeError, ValueError) as error:
        raise ValueError(f"{where}, {error}") from None
    expect(
        0 <= value <= _LARGEST_STEP and value == int(value),
        f"{where}, step",
        value,
        f"an integer from 0 to {_LARGEST_STEP}",
    )
    return int(value)
