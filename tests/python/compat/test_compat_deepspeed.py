"""DeepSpeed's packbits and unpackbits: its layout, its predicate, and errors where it reads out of bounds."""

from collections.abc import Callable
from typing import Any

import lowtide
import numpy as np
import pytest
import torch
from lowtide import sign
from lowtide.compat import deepspeed

Figure = Callable[[str], None]


def definition(x: torch.Tensor) -> np.ndarray[Any, Any]:
    """!signbit(x), with the first element in the highest bit."""
    return np.packbits(~np.signbit(x.detach().numpy().reshape(-1)))


def test_sign_bits_first_element_highest(seed: int, figure: Figure) -> None:
    generator = np.random.default_rng(seed)
    elements = 0
    for n in (*range(0, 70), 1000, 65535, 65536, 65537, 300001):
        # Any bit pattern: NaNs of both signs, zeros, denormals.
        raw = generator.integers(0, 2**32, n, dtype=np.uint32)
        raw[generator.random(n) < 0.3] &= 0x80000000  # zeros
        raw[generator.random(n) < 0.1] |= 0x7FC00000  # NaNs
        x = torch.from_numpy(raw.view(np.float32))
        packed = lowtide.compat.deepspeed.packbits(x, n, 0)
        assert packed.dtype == torch.uint8 and np.array_equal(packed.numpy(), definition(x))
        back = deepspeed.unpackbits(packed, packed.numel(), 0)
        assert back.dtype == torch.float32 and back.shape == (8 * packed.numel(),)
        assert np.array_equal(back.numpy(), 2.0 * np.unpackbits(packed.numpy()) - 1)
        assert (back[n:] == -1).all()
        elements += n
    figure(f"{elements} elements of any bits: those of numpy.packbits(~signbit(x)), and back as +1 and -1")


def test_where_the_predicate_is_not_that_of_sign() -> None:
    values = torch.tensor([0.0, -0.0, float("nan"), 1e-45, -1e-45, 2.0, -2.0, float("inf")])
    values = torch.cat([values, torch.tensor([0xFFC00000 - 2**32, 0x7FC00000], dtype=torch.int32).view(torch.float32)])
    theirs = np.unpackbits(deepspeed.packbits(values, 10, 0).numpy())[:10].tolist()
    ours = np.unpackbits(sign.pack(values, bitorder="big").numpy())[:10].tolist()
    assert theirs == [1, 0, 1, 1, 0, 1, 0, 1, 0, 1]
    assert ours == [1, 1, 0, 1, 0, 1, 0, 1, 0, 0]


def test_shapes_and_autograd_do_not_matter() -> None:
    x = torch.randn(4, 6, requires_grad=True)
    assert np.array_equal(deepspeed.packbits(x, 24, 3).numpy(), definition(x))


def test_elements_or_bytes_by_what_fits(seed: int, figure: Figure) -> None:
    packer = deepspeed.PackbitsBuilder().load()
    calls = 0
    for n in range(1, 200):
        x = torch.randn(n)
        packed = deepspeed.packbits(x, n, 0)
        signs = torch.where(torch.signbit(x), -1.0, 1.0)
        assert torch.equal(deepspeed.xpu_packbits.unpackbits(packed, n, rank=0), signs)
        for module in (deepspeed, packer):
            # One byte that counts 1: the document counts elements, DeepSpeed bytes.
            assert torch.equal(module.unpackbits(packed, n, 0)[:n], signs)
            assert module.unpackbits(packed, n, 0).numel() == (n if n > 1 else 8)
            assert module.unpackbits(packed, packed.numel(), 0).numel() == 8 * packed.numel()
        for wrong in {0, n - 8, 8 * packed.numel() + 1, -1} - {packed.numel(), n}:
            count = packed.numel()
            with pytest.raises(ValueError, match=f"input_size: got {wrong} for {count} bytes, wanted {8 * count - 7} to"):
                deepspeed.unpackbits(packed, wrong, 0)
        calls += 1
    none = deepspeed.packbits(torch.empty(0), 0, 0)
    assert none.shape == deepspeed.unpackbits(none, 0, 0).shape == (0,)
    figure(f"{calls} sizes: unpacked by their elements and by their bytes; other counts are refused")


def test_the_shape_comes_back_where_the_module_counts_elements() -> None:
    packer = deepspeed.xpu_packbits
    x = torch.randn(6, 5)
    packed = packer.packbits(x, 30, 0)
    assert packer.unpackbits(packed, 30, 0).shape == (6, 5)
    assert packer.unpackbits(packed, 4, 0).shape == (32,)  # bytes, of which the last has padding
    assert packer.unpackbits(packed.clone(), 30, 0).shape == (30,)
    assert deepspeed.unpackbits(packed, 30, 0).shape == (30,)


def test_the_names_are_those_of_deepspeeds_builder() -> None:
    builder = deepspeed.PackbitsBuilder()
    assert builder.NAME == "pack_bits" and builder.is_compatible()
    packer = builder.load(verbose=False)
    assert packer.packbits is deepspeed.packbits and packer.unpackbits is deepspeed.unpackbits


def test_what_would_be_read_out_of_bounds_is_an_error() -> None:
    x = torch.randn(4, 16)
    packed = deepspeed.packbits(x, 64, 0)
    anything: Any = None
    cases: list[tuple[type[Exception], str, Callable[[], object]]] = [
        (ValueError, "got 65 for 8 bytes, wanted 57 to 64 elements, or 8 bytes", lambda: deepspeed.unpackbits(packed, 65, 0)),
        (ValueError, "got 7 for 8 bytes", lambda: deepspeed.unpackbits(packed, 7, 0)),
        (ValueError, "got 8 for 64 elements", lambda: deepspeed.packbits(x, 8, 0)),
        (ValueError, "got 65 for 64 elements", lambda: deepspeed.packbits(x, 65, 0)),
        (ValueError, "got torch.float16, wanted torch.float32", lambda: deepspeed.packbits(x.half(), 64, 0)),
        (ValueError, "got torch.float32, wanted torch.uint8", lambda: deepspeed.unpackbits(x, 64, 0)),
        (ValueError, r"wanted tensor.contiguous\(\)", lambda: deepspeed.packbits(x.t(), 64, 0)),
        (ValueError, r"wanted tensor.contiguous\(\)", lambda: deepspeed.unpackbits(packed[::2], 4, 0)),
        (NotImplementedError, "meta", lambda: deepspeed.packbits(x.to("meta"), 64, 0)),
        (TypeError, "rank: got None", lambda: deepspeed.packbits(x, 64, anything)),
        (TypeError, "input_size: got None", lambda: deepspeed.packbits(x, anything, 0)),
        (TypeError, "tensor: got NoneType", lambda: deepspeed.packbits(anything, 64, 0)),
    ]
    for kind, words, call in cases:
        with pytest.raises(kind, match=words):
            call()
