"""Signs of tensors on a device have the bits of CPU tensors. Most tests are skipped without a device (stand_in.py)."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from lowtide import sign
from lowtide.compat.deepspeed import bits, xpu_packbits
from lowtide.devices import places
from stand_in import StandIn
from support import DTYPES

Figure = Callable[[str], None]


@pytest.mark.parametrize("bitorder", ["little", "big"])
def test_the_bits_of_the_cpu(device: StandIn, bitorder: Any, seed: int, figure: Figure) -> None:
    signs = 0
    for dtype in DTYPES:
        for n in (0, 1, 7, 8, 63, 64, 65, 1000, 70001):
            x = torch.randn(n).to(dtype)
            x[torch.rand(n) < 0.1] = -0.0
            x[torch.rand(n) < 0.1] = float("nan")
            bits = sign.pack(x, bitorder=bitorder)
            there = device.tensor(torch.zeros_like(bits))
            assert sign.pack(device.tensor(x), bitorder=bitorder, out=there) is there
            device.synchronize()
            assert torch.equal(there.cpu(), bits)
            zeros = torch.randint(0, 256, bits.shape, dtype=torch.uint8)
            back = device.tensor(torch.zeros_like(x))
            sign.unpack(there, n, bitorder=bitorder, zeros=device.tensor(zeros), out=back)
            device.synchronize()
            assert torch.equal(back.cpu(), sign.unpack(bits, n, bitorder=bitorder, zeros=zeros, dtype=dtype))
            ballots = torch.randint(0, 256, (4, len(bits) + 3), dtype=torch.uint8)[:, 1:-2]
            moved = device.tensor(ballots)
            rows = [device.tensor(ballots[0]), None, *(device.tensor(ballot) for ballot in ballots[2:])]
            for ties in ("hash", "zero", "previous"):
                key = {"seed": n, "offset": 8, "ties": ties, "bitorder": bitorder}
                earlier = {"previous": bits} if ties == "previous" else {}
                beside = {name: device.tensor(value) for name, value in earlier.items()}
                wanted = sign.majority(ballots, n, weights=[1, 2, 3, 1], **key, **earlier)
                votes = [sign.majority(moved, n, weights=[1, 2, 3, 1], **key, **beside)]
                absent = sign.majority(ballots, n, weights=[1, 0, 1, 1], **key, **earlier)
                votes.append(sign.majority(rows, n, weights=[1, 0, 1, 1], **key, **beside))
                device.synchronize()
                for vote, other in zip(votes, (wanted, absent), strict=True):
                    pairs = zip(vote, other, strict=True) if ties == "zero" else [(vote, other)]
                    assert all(torch.equal(one.cpu(), two) for one, two in pairs), (n, ties)
            signs += n
    assert device.asked, "the calls were ordered on torch's queue"
    figure(f"{signs} signs packed, unpacked and voted on: 0 bits differ from the CPU's")


def test_packbits_on_a_device(device: StandIn, seed: int, figure: Figure, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bits, "_PIECE", 4096)
    monkeypatch.setattr(bits, "moved", lambda tensor, to: device.tensor(tensor, to.index))
    elements = 0
    for n in (0, 1, 7, 8, 1000, 4096, 4097, 12289):
        raw = torch.randint(-(2**31), 2**31, (n,), dtype=torch.int32)  # NaNs of both signs among them
        raw[torch.rand(n) < 0.2] &= -(2**31)  # zeros of both signs
        x = raw.view(torch.float32)
        on_host = bits.packbits(x, n, 0)
        for rank in range(len(device.queues)):
            there = bits.packbits(device.tensor(x), n, rank)
            device.synchronize()
            assert torch.equal(there.cpu(), on_host)
            at = places.device_of(there)
            assert n == 0 or at == torch.device(device.kind, rank)
            back = xpu_packbits.unpackbits(there, n, rank)
            device.synchronize()
            assert torch.equal(back.cpu(), xpu_packbits.unpackbits(on_host, n, 0))
        elements += n
    with pytest.raises(ValueError, match="rank: got -1, wanted the number of a device"):
        bits.packbits(device.tensor(torch.ones(8)), 8, -1)
    figure(f"{elements} elements of any bits, on each of {len(device.queues)} devices: 0 bits differ from the CPU's")


def test_what_cannot_be_there(device: StandIn) -> None:
    x = device.tensor(torch.randn(16))
    out = device.tensor(torch.zeros(2, dtype=torch.uint8))
    with pytest.raises(ValueError, match=f"out: got a tensor on cpu, wanted one on {device.name()}"):
        sign.pack(x, out=torch.zeros(2, dtype=torch.uint8))
    with pytest.raises(ValueError, match=rf"ballots\[1\]: got a tensor on cpu, wanted one on {device.name()}"):
        sign.majority([out, torch.zeros(2, dtype=torch.uint8)], 16)
