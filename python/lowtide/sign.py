"""Packs signs of values into bits, and computes their majorities. Bits take 1/32 of float32, 1/16 of bfloat16.

A bit is 1 for +, which means x >= 0: both zeros are +, a NaN is -. Sign i is in byte i // 8, and bits after the last sign are
0. Arrays are torch tensors (on the CPU, or on a device that `lowtide.backends()` can compute on), numpy arrays, or anything
that supports DLPack. Results are numpy arrays if the first argument is one, and torch tensors otherwise. The GIL is released,
autograd records nothing, and the bits do not depend on the machine or the number of threads.

    bits = sign.pack(gradient)                                  # uint8, gradient.numel() / 8 bytes
    vote = sign.majority([bits, theirs], gradient.numel(), seed=1, step=step)
    direction = sign.unpack(vote, gradient.numel(), shape=gradient.shape)       # +1 and -1

Packed bytes are not numbers: their sum is not a vote, and their XOR is not a sum. Combine them with `majority`. Errors:
ValueError, TypeError and NotImplementedError, with the value and what was wanted; MemoryError.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from math import prod
from operator import index
from typing import TYPE_CHECKING, Any, Literal, TypeVar, overload

import torch

from lowtide import _core
from lowtide.checks.values import PARAMETER_DTYPES, expect
from lowtide.devices import arrays
from lowtide.devices.arrays import Array
from lowtide.devices.places import EXACT, Place

if TYPE_CHECKING:
    import numpy.typing as npt

    NumpyArray = npt.NDArray[Any]

BitOrder = Literal["little", "big"]
Ties = Literal["hash", "plus", "minus", "zero", "previous"]
# The result is of the same kind as the argument: numpy or torch.
AnyArray = TypeVar("AnyArray", torch.Tensor, "NumpyArray")
_MOST_SIGNS = 2**60

__all__ = ["majority", "pack", "packed_bytes", "unpack"]


def packed_bytes(n: int) -> int:
    """The bytes that `n` signs take: ceil(n / 8)."""
    return -(-n // 8)


def pack(x: AnyArray, *, out: AnyArray | None = None, bitorder: BitOrder = "little") -> AnyArray:
    """Packs the signs of `x`, in row-major order, into uint8 [ceil(x.numel() / 8)].

    Args:
        x: float32, bfloat16 or float16, of any shape and stride. A contiguous array is read in place, any other through a
            contiguous copy.
        out: where to write the bits: contiguous uint8 of that size that shares no memory with x. Returned.
        bitorder: "little": sign i is bit i % 8 of its byte; "big": bit 7 - i % 8. As in numpy.packbits, whose default is "big".
    """
    values = arrays.contiguous(arrays.read(x, "x"))
    bits = _bits_out(out, "out", values, values.numel)
    signer, stream = _signer(values.place), values.place.queue()
    signer.pack(values.address, values.dtype, values.numel, bits.address, bits.nbytes, bitorder, torch.get_num_threads(), stream)
    result: AnyArray = bits.value
    return result


def unpack(
    bits: AnyArray,
    n: int,
    *,
    dtype: Any = None,
    shape: Sequence[int] | None = None,
    out: AnyArray | None = None,
    bitorder: BitOrder = "little",
    zeros: AnyArray | None = None,
) -> AnyArray:
    """Unpacks `n` signs to +1 and -1.

    Args:
        bits: uint8, contiguous, ceil(n / 8) bytes.
        n: the number of signs, not of bytes.
        dtype: the result's dtype: float32 (the default), bfloat16 or float16, from torch or numpy.
        shape: the result's shape, with n elements in total; default [n].
        out: where to write the result: contiguous, with n elements, sharing no memory with the other arguments. The result has
            its dtype and shape.
        bitorder: the bit order of `bits` and `zeros`, as in `pack`.
        zeros: laid out like `bits`; the result is 0 where it has a 1. `majority(ties="zero")` returns such an array.
    """
    n = _unsigned("n", n, _MOST_SIGNS)
    packed = _bits_in(bits, "bits", n)
    marks = _bits_in(zeros, "zeros", n, packed) if zeros is not None else None
    wanted = tuple(index(size) for size in shape) if shape is not None else None
    if wanted is not None and prod(wanted) != n:
        raise ValueError(f"shape: got {wanted} of {prod(wanted)} elements, wanted n={n}")
    if out is None:
        values = arrays.read(packed.empty((n,) if wanted is None else wanted, _dtype_name(dtype)), "out")
    else:
        values = arrays.written(out, "out", packed)
        if values.numel != n or (wanted is not None and values.shape != wanted):
            raise ValueError(f"out: got shape {values.shape}, wanted {n} elements, or shape={shape}")
        if dtype is not None and _dtype_name(dtype) != values.dtype:
            raise ValueError(f"out: got {values.dtype}, wanted dtype={_dtype_name(dtype)}")
    signer, stream = _signer(packed.place), packed.place.queue()
    signer.unpack(
        packed.address, packed.nbytes, values.address, values.dtype, n, *_address_of(marks), bitorder, torch.get_num_threads(),
        stream,
    )  # fmt: skip
    result: AnyArray = values.value
    return result


@overload
def majority(
    ballots: AnyArray | Sequence[AnyArray | None], n: int, *, weights: Sequence[int] | None = ...,
    ties: Literal["hash", "plus", "minus", "previous"] = ..., seed: int = ..., step: int = ..., offset: int = ...,
    previous: AnyArray | None = ..., out: AnyArray | None = ..., bitorder: BitOrder = ...,
) -> AnyArray: ...  # fmt: skip


@overload
def majority(
    ballots: AnyArray | Sequence[AnyArray | None], n: int, *, weights: Sequence[int] | None = ...,
    ties: Literal["zero"], seed: int = ..., step: int = ..., offset: int = ...,
    previous: AnyArray | None = ..., out: tuple[AnyArray, AnyArray] | None = ..., bitorder: BitOrder = ...,
) -> tuple[AnyArray, AnyArray]: ...  # fmt: skip


def majority(
    ballots: Any,
    n: int,
    *,
    weights: Any = None,
    ties: Ties = "hash",
    seed: int = 0,
    step: int = 0,
    offset: int = 0,
    previous: Any = None,
    out: Any = None,
    bitorder: BitOrder = "little",
) -> Any:
    """Computes the majority signs, as uint8 [ceil(n / 8)]; with ties="zero", a pair (bits, zeros) of such arrays.

    Args:
        ballots: results of `pack` from 1 to 65,535 voters: uint8 [voters, ceil(n / 8)], with any distance between rows, or a
            sequence of rows.
        n: number of signs.
        weights: votes of each voter, integers of at least 0 whose sum is below 2^31; default: 1 each. A voter of weight 0 is
            absent: its ballot is not read, and may be None in a sequence.
        ties: the value of a sign with as many votes for + as for -: "hash", a fair bit of (`seed`, `step`, `offset` + i), equal
            on every machine; "plus"; "minus"; "zero", which is - and marked with a 1 in `zeros` (pass it to `unpack`); or
            "previous", the sign in `previous`, an earlier result.
        seed, step, offset: integers from 0 to 2^64 - 1. offset: the index of sign 0 in the whole, if this is a part.
        out: where to write the bits (with ties="zero", a pair): contiguous uint8, which may be a ballot or `previous`.
        bitorder: the order of all bits, as in `pack`.
    """
    n = _unsigned("n", n, _MOST_SIGNS)
    first, rows, _kept = _rows(ballots, n)
    votes = None if weights is None else _weights(weights)
    pair = ties == "zero"
    if pair and out is not None and not (isinstance(out, (tuple, list)) and len(out) == 2):
        raise TypeError(f"out: got {type(out).__name__}, wanted a pair (bits, zeros) for ties='zero'")
    bits = _bits_out(out[0] if pair and out is not None else out, "out", first, n)
    zeros = _bits_out(out[1] if out is not None else None, "out[1]", first, n) if pair else None
    earlier = _bits_in(previous, "previous", n, first) if previous is not None else None
    if (earlier is None) == (ties == "previous"):
        raise ValueError(f"previous: got {type(previous).__name__} with ties={ties!r}, wanted it with ties='previous' only")
    signer, stream = _signer(first.place), first.place.queue()
    signer.majority(
        rows, n, votes, ties, _unsigned("seed", seed), _unsigned("step", step), _unsigned("offset", offset),
        _address_of(earlier)[0], bits.address, bits.nbytes, *_address_of(zeros), bitorder, torch.get_num_threads(), stream,
    )  # fmt: skip
    return bits.value if zeros is None else (bits.value, zeros.value)


@cache
def _signer(place: Place) -> _core.Signer:
    return _core.Signer(place.kind.backend, place.queue(), place.target(EXACT))


def _address_of(array: Array | None) -> tuple[int, int]:
    return (array.address, array.nbytes) if array is not None else (0, 0)


def _unsigned(name: str, value: Any, most: int = 2**64 - 1) -> int:
    try:
        number = index(value)
    except TypeError:
        raise TypeError(f"{name}: got {value!r} ({type(value).__name__}), wanted an integer") from None
    expect(0 <= number <= most, name, number, f"0 to {most}")
    return number


def _weights(weights: Any) -> list[int]:
    values = weights.tolist() if hasattr(weights, "tolist") else list(weights)
    if not isinstance(values, list):
        raise TypeError("weights: got one number, wanted one for each ballot")
    found = [_unsigned(f"weights[{v}]", value) for v, value in enumerate(values)]
    expect(sum(found) < 2**31, "weights", f"a sum of {sum(found)}", "less than 2^31")
    return found


def _dtype_name(dtype: Any) -> str:
    """The core's name for a torch or numpy dtype. None gives the default."""
    if dtype is None:
        return "float32"
    name = getattr(dtype, "name", None) or getattr(dtype, "__name__", None) or str(dtype).removeprefix("torch.")
    wanted = [str(one).removeprefix("torch.") for one in PARAMETER_DTYPES]
    expect(name in wanted, "dtype", dtype, f"one of {', '.join(wanted)}")
    return str(name)


def _check_bits(array: Array, where: str, n: int) -> Array:
    expect(array.dtype == "uint8", where, array.dtype, "uint8: packed signs")
    if array.numel != packed_bytes(n):
        raise ValueError(
            f"{where}: got {array.numel} bytes for n={n} signs, wanted {packed_bytes(n)}: n counts signs, and each "
            "byte has 8"
        )
    return array


def _bits_in(value: Any, where: str, n: int, like: Array | None = None) -> Array:
    array = _check_bits(arrays.read(value, where), where, n)
    if like is not None:
        arrays.same_place(array, where, like)
    expect(array.is_contiguous, where, f"shape {array.shape} with strides", "contiguous bytes")
    return array


def _bits_out(out: Any, where: str, like: Array, n: int) -> Array:
    if out is None:
        return arrays.read(like.empty((packed_bytes(n),), "uint8"), where)
    return _check_bits(arrays.written(out, where, like), where, n)


def _rows(ballots: Any, n: int) -> tuple[Array, list[int], list[Array]]:
    """An array that describes all rows, the address of each row (0: absent), and the owners of the memory."""
    if isinstance(ballots, (list, tuple)):
        kept: list[Array] = []
        addresses: list[int] = []
        for v, ballot in enumerate(ballots):
            if ballot is None:
                addresses.append(0)
                continue
            kept.append(_bits_in(ballot, f"ballots[{v}]", n, kept[0] if kept else None))
            addresses.append(kept[-1].address)
        expect(bool(kept), "ballots", f"none among {len(ballots)}", "at least one")
        return kept[0], addresses, kept
    whole = arrays.read(ballots, "ballots")
    wanted = packed_bytes(n)
    if whole.dtype != "uint8" or len(whole.shape) != 2 or whole.shape[1] != wanted:
        raise ValueError(
            f"ballots: got {whole.dtype} of shape {whole.shape}, wanted uint8 of shape (voters, {wanted}) for n={n} "
            "signs: each byte has 8"
        )
    if wanted > 1 and whole.strides[1] != 1:
        raise ValueError(f"ballots: got rows with a stride of {whole.strides[1]} bytes, wanted 1")
    return whole, [whole.address + v * whole.strides[0] for v in range(whole.shape[0])], [whole]
