"""Signs of tensors on a device: the bits of CPU tensors. Skipped without one (stand_in.py), but for what needs none."""

from collections.abc import Callable, Iterator

import pytest
import torch
from lowtide import _core, sign
from lowtide.devices import places
from stand_in import StandIn
from support import DTYPES

Figure = Callable[[str], None]


@pytest.fixture(autouse=True)
def _own_signers() -> Iterator[None]:
    """Drops the signer, whose device is gone by the next test."""
    sign._signer.cache_clear()
    yield
    sign._signer.cache_clear()


def test_a_backend_that_is_missing_says_what_backends_says(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(places.KINDS, "xpu", places.Kind("cuda", lambda _: 0, lambda _: 1 << 30))
    monkeypatch.setattr(_core, "backends", lambda: {"cuda": {"available": False, "detail": "no driver"}})
    monkeypatch.setattr(places, "device_of", lambda _: torch.device("xpu", 0))
    with pytest.raises(NotImplementedError) as caught:
        sign.pack(torch.randn(3))
    assert _core.backends()["cuda"]["detail"] in str(caught.value) and "xpu:0" in str(caught.value)


def test_the_bits_of_the_cpu(device: StandIn, seed: int, figure: Figure) -> None:
    signs = 0
    for dtype in DTYPES:
        for n in (1, 7, 8, 63, 64, 65, 1000, 70001):
            x = torch.randn(n).to(dtype)
            x[torch.rand(n) < 0.1] = -0.0
            x[torch.rand(n) < 0.1] = float("nan")
            bits = sign.pack(x)
            there = device.tensor(torch.zeros_like(bits))
            assert sign.pack(device.tensor(x), out=there) is there
            device.synchronize()
            assert torch.equal(there, bits)
            back = device.tensor(torch.zeros_like(x))
            sign.unpack(there, n, out=back)
            device.synchronize()
            assert torch.equal(back, sign.unpack(bits, n, dtype=dtype))
            ballots = torch.randint(0, 256, (6, sign.packed_bytes(n)), dtype=torch.uint8)
            weights = [1, 2, 0, 3, 1, 1]
            vote = device.tensor(torch.zeros_like(bits))
            sign.majority(device.tensor(ballots), n, weights=weights, seed=n, offset=8, out=vote)
            device.synchronize()
            assert torch.equal(vote, sign.majority(ballots, n, weights=weights, seed=n, offset=8))
            signs += n
    assert device.asked, "the calls were ordered on torch's queue"
    figure(f"{signs} signs packed, unpacked and voted on: 0 bits differ from the CPU's")


def test_what_cannot_be_there(device: StandIn) -> None:
    x = device.tensor(torch.randn(16))
    out = device.tensor(torch.zeros(2, dtype=torch.uint8))
    with pytest.raises(NotImplementedError, match="got bit order 'big' for signs on a device"):
        sign.pack(x, out=out, bitorder="big")
    with pytest.raises(ValueError, match=f"out: got a tensor on cpu, wanted {device.name()}"):
        sign.pack(x, out=torch.zeros(2, dtype=torch.uint8))
    with pytest.raises(ValueError, match=rf"ballots\[1\]: got a tensor on cpu, wanted {device.name()}"):
        sign.majority([out, torch.zeros(2, dtype=torch.uint8)], 16)
