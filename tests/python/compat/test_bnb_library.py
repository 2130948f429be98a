"""liblowtide_bnb: bitsandbytes' own CUDA module calls it, and gets what bitsandbytes' CPU backend computes."""

import ctypes
from collections.abc import Callable

import bnb_library
import pytest
import torch
from bnb_library import BLOCK, NO_BF16_32BIT, OPTIMIZERS, Tensors

Figure = Callable[[str], None]
DTYPES = (torch.float32, torch.bfloat16, torch.float16)
ROUNDING = {torch.float32: 2.0**-24, torch.bfloat16: 2.0**-8, torch.float16: 2.0**-11}  # half a unit, at most
# Roundings of a float32 step: at most 16 operations, each of 2^-24, in either of two orders, where sums do not cancel.
STEP = 32 * 2.0**-24


def close(ours: torch.Tensor, theirs: torch.Tensor, dtype: torch.dtype, moved: torch.Tensor) -> bool:
    """Compares parameters after a step that moved them by about `moved`: both rounded to their type, the movement to
    float32."""
    bound = 2 * ROUNDING[dtype] * theirs.double().abs() + STEP * (moved + theirs.double().abs()) + 2.0**-24
    return bool(((ours.double() - theirs.double()).abs() <= bound).all())


@pytest.mark.parametrize("coded", [False, True], ids=["32bit", "8bit"])
def test_as_bitsandbytes_calls_it(coded: bool, monkeypatch: pytest.MonkeyPatch, figure: Figure) -> None:
    library = bnb_library.library()
    module = bnb_library.cuda_module(library, monkeypatch)
    from bitsandbytes.backends.cpu import ops as cpu

    ours = module._optimizer_update_8bit_blockwise_impl if coded else module._optimizer_update_32bit_impl
    theirs = cpu._optimizer_update_8bit_blockwise_cpu if coded else cpu._optimizer_update_32bit_cpu
    torch.manual_seed(831)
    steps = elements = same = decoded = 0
    for name in OPTIMIZERS:
        for dtype in DTYPES:
            if not coded and dtype == torch.bfloat16 and name in NO_BF16_32BIT:
                continue
            n = 20 * BLOCK + 77
            start = Tensors(name, coded, torch.randn(n).to(dtype), torch.empty(n).to(dtype))
            for step in range(1, 6):
                start.g = (torch.randn(n) * 0.1).to(dtype)
                a, b = start.clone(), start.clone()
                library.lt_bnb_clear_error()
                ours(*a.arguments(step=step))
                assert bnb_library.last_error(library) == ""
                theirs(*b.arguments(step=step))
                assert close(a.p, b.p, dtype, (start.p.double() - b.p.double()).abs()), (name, dtype, step)
                for mine, other in zip(a.decoded(), b.decoded(), strict=True):
                    if not coded:
                        assert torch.allclose(mine, other, rtol=STEP, atol=STEP * 0.1), (name, dtype, step)
                        continue
                    # Its CPU quantizer looks values up in a table of 65,536 steps over [-1, 1]; ours takes the nearest.
                    scale = mine.abs().amax()
                    assert ((mine - other).abs() <= 0.02 * scale + 2**-14 * scale).all(), (name, dtype, step)
                    same += int((mine == other).sum())
                    decoded += mine.numel()
                steps, elements = steps + 1, elements + n
                start = a
    said = f", {100 * same / decoded:.1f} % of decoded states equal" if coded else ""
    figure(f"{steps} steps of {elements} elements in all: 0 parameters off by more than rounding{said}")


def test_managed_memory_holds_paged_state(monkeypatch: pytest.MonkeyPatch) -> None:
    """State in memory of cget_managed_ptr, as bitsandbytes' get_paged makes it, steps like other state."""
    library = bnb_library.library()
    module = bnb_library.cuda_module(library, monkeypatch)
    torch.manual_seed(833)
    n = 5000
    plain = Tensors("adam", True, torch.randn(n), torch.randn(n))
    paged = plain.clone()
    pointers = []
    for name in ("state1", "state2"):
        pointer = library.cget_managed_ptr(ctypes.c_size_t(n))
        assert pointer, bnb_library.last_error(library)
        pointers.append(pointer)
        setattr(paged, name, torch.frombuffer((ctypes.c_uint8 * n).from_address(pointer), dtype=torch.uint8))
    for step in (1, 2, 3):
        for one in (plain, paged):
            module._optimizer_update_8bit_blockwise_impl(*one.arguments(step=step))
    assert bnb_library.last_error(library) == ""
    assert torch.equal(plain.p, paged.p) and torch.equal(plain.state1, paged.state1)
    for pointer in pointers:
        library.cfree_managed_ptr(ctypes.c_void_p(pointer))
