"""Signs as bits: layout and predicate equal numpy's, votes equal counts, and bad input is refused."""

import itertools
import sys
import threading
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from lowtide import sign
from support import DTYPES

ORDERS = ("little", "big")
TIES = ("hash", "plus", "minus", "zero", "previous")
Figure = Callable[[str], None]
SPECIALS = (0.0, -0.0, float("nan"), float("inf"), -float("inf"), 1e-45, -1e-45, 6e-8, -6e-8, 1e-38, -1e-38)


def elements(generator: np.random.Generator, count: int, dtype: torch.dtype) -> torch.Tensor:
    """Random numbers; a fifth are zeros and NaNs of both signs, infinities and denormals."""
    values = generator.standard_normal(count).astype(np.float32)
    special = generator.random(count) < 0.2
    values[special] = generator.choice(np.array(SPECIALS, np.float32), int(special.sum()))
    return torch.copysign(torch.from_numpy(values), torch.from_numpy(generator.standard_normal(count))).to(dtype)


def wanted_bits(x: torch.Tensor, order: Any) -> np.ndarray[Any, Any]:
    return np.packbits((x.double() >= 0).numpy().reshape(-1), bitorder=order)


def signs_of(bits: np.ndarray[Any, Any], n: int, order: Any) -> np.ndarray[Any, Any]:
    return np.unpackbits(bits, bitorder=order)[:n].astype(np.int64)


def test_packs_and_unpacks_as_numpy_does_whatever_the_shape_and_strides(figure: Figure) -> None:
    seen = {"cases": 0, "elements": 0, "strided": 0}

    @settings(max_examples=2000, deadline=None, database=None, suppress_health_check=list(HealthCheck))
    @given(
        st.integers(0, 2**32 - 1), st.lists(st.integers(0, 12), max_size=3), st.sampled_from(DTYPES),
        st.sampled_from(ORDERS), st.sampled_from(("plain", "transposed", "stepped", "expanded", "offset")),
        st.booleans(),
    )  # fmt: skip
    def check(seed: int, shape: list[int], dtype: torch.dtype, order: Any, how: str, into: bool) -> None:
        generator = np.random.default_rng(seed)
        if how == "stepped":
            x = elements(generator, int(np.prod([2 * s for s in shape])), dtype).reshape([2 * s for s in shape])
            x = x[tuple(slice(None, None, 2) for _ in shape)]
        elif how == "offset":
            x = elements(generator, int(np.prod(shape)) + 1, dtype)[1:].reshape(shape)
        else:
            x = elements(generator, int(np.prod(shape)), dtype).reshape(shape)
            x = x.movedim(0, -1) if how == "transposed" and shape else x
            x = x.unsqueeze(0).expand(3, *shape) if how == "expanded" else x
        n = x.numel()
        memory = torch.full((sign.packed_bytes(n) + 2,), 0xA5, dtype=torch.uint8)
        out = memory[1:-1] if into else None
        bits = sign.pack(x, out=out, bitorder=order)
        assert bits.dtype == torch.uint8 and bits.shape == (-(-n // 8),)
        assert np.array_equal(bits.numpy(), wanted_bits(x, order))
        assert not into or (bits is out and memory[0] == memory[-1] == 0xA5)
        back = sign.unpack(bits, n, dtype=dtype, shape=x.shape, bitorder=order)
        assert back.dtype == dtype and torch.equal(back, torch.where(x >= 0, 1, -1).to(dtype))
        seen["cases"] += 1
        seen["elements"] += n
        seen["strided"] += not x.is_contiguous()

    check()
    assert seen["cases"] >= 1500 and seen["strided"] >= 200 and seen["elements"] >= 50000
    figure(f"{seen} with the bits of numpy.packbits(x >= 0), and back")


def reference(rows: Any, weights: Any, ties: str, previous: Any, hashed: Any) -> tuple[Any, Any, int]:
    """Bits and marks of a vote, by counting, and how many signs tied."""
    total = (np.asarray(weights)[:, None] * (2 * rows - 1)).sum(0)
    tied = total == 0
    settled = {"hash": hashed, "plus": 1, "minus": 0, "zero": 0, "previous": previous}[ties]
    return np.where(tied, settled, total > 0).astype(np.int64), tied, int(tied.sum())


def test_majorities_are_counts(seed: int, figure: Figure) -> None:
    generator = np.random.default_rng(seed)
    votes = tied = 0
    for voters in (1, 2, 3, 4, 7, 8, 9, 16, 31, 63, 64, 65, 127, 128, 255, 256, 257):
        for order, rule, weighted in itertools.product(ORDERS, TIES, (False, True)):
            n = int(generator.integers(1, 300))
            # Rows of a larger array, whose distance differs from their length.
            whole = generator.integers(0, 256, (voters, sign.packed_bytes(n) + 3), dtype=np.uint8)
            if voters > 1:
                whole[1, ::2] = ~whole[0, ::2]
            ballots = torch.from_numpy(whole)[:, 2:-1]
            weights = generator.integers(0, 5, voters) if weighted else np.ones(voters, np.int64)
            earlier = generator.integers(0, 256, sign.packed_bytes(n), dtype=np.uint8)
            key: Any = {"seed": int(generator.integers(2**63)), "step": 7, "offset": int(generator.integers(2**40))}
            nobody = torch.zeros_like(ballots[:1])
            hashed = signs_of(sign.majority(nobody, n, weights=[0], **key).numpy(), n, "little")
            result = sign.majority(
                ballots, n, weights=weights if weighted else None, ties=rule, bitorder=order,
                previous=torch.from_numpy(earlier) if rule == "previous" else None, **key,
            )  # fmt: skip
            rows = np.stack([signs_of(row.numpy(), n, order) for row in ballots])
            bits, marks, ties = reference(rows, weights, rule, signs_of(earlier, n, order), hashed)
            if rule == "zero":
                result, zeros = result
                assert np.array_equal(zeros.numpy(), np.packbits(marks, bitorder=order))
                values = sign.unpack(result, n, zeros=zeros, bitorder=order).numpy()
                assert np.array_equal(values, np.where(marks, 0, 2 * bits - 1))
            assert np.array_equal(result.numpy(), np.packbits(bits.astype(np.uint8), bitorder=order)), (voters, rule)
            votes += n
            tied += ties
    assert tied > 1000
    figure(f"{votes} votes of 1 to 257 voters by weights, rows at a distance, {tied} of them ties: as counted")


def test_the_most_voters_and_the_most_votes(figure: Figure) -> None:
    ballots = torch.zeros(65535, 2, dtype=torch.uint8)
    ballots[:32767] = 0xFF  # one vote short
    assert sign.majority(ballots, 16).tolist() == [0, 0]
    ballots[32767, 0] = 0xFF
    assert sign.majority(ballots, 16).tolist() == [0xFF, 0]
    assert sign.majority(ballots, 16, bitorder="big").tolist() == [0xFF, 0]
    with pytest.raises(ValueError, match="got 65536 ballots, wanted 1 to 65535"):
        sign.majority(torch.zeros(65536, 1, dtype=torch.uint8), 8)
    two = torch.tensor([[0b01], [0b10]], dtype=torch.uint8)
    assert sign.majority(two, 2, weights=[2**30, 2**30 - 1]).tolist() == [0b01]
    with pytest.raises(ValueError, match="got a sum of 2147483648, wanted less than 2\\^31"):
        sign.majority(two, 2, weights=[2**30, 2**30])
    figure("65535 voters: 32767 do not win, 32768 do; 2^30 votes against 2^30 - 1")


def agreement(bits: np.ndarray[Any, Any], truth: np.ndarray[Any, Any]) -> float:
    return float((signs_of(bits, truth.size, "little") == truth).mean())


def test_why_packed_bytes_are_joined_by_votes_alone(figure: Figure) -> None:
    """A sum of packed bytes carries from sign to sign; an XOR is a parity."""
    generator = np.random.default_rng(11)
    n, voters = 80000, 5
    noise = generator.standard_normal((16, n))
    rows = (noise[:voters] + 0.3 > 0).astype(np.uint8)  # + with probability 0.62
    packed = np.packbits(rows, axis=1, bitorder="little")
    truth = (rows.sum(0) > voters / 2).astype(np.int64)
    vote = agreement(sign.majority(packed, n), truth)
    summed = agreement(packed.sum(0, dtype=np.uint8), truth)
    assert vote == 1 and summed < 0.6
    lines = [f"{voters} voters: agreement with their majority: vote {vote:.1%}, sum of bytes {summed:.1%}"]

    # Micro-batches of weak signals, whose sum has the wanted sign.
    mean = generator.standard_normal(n)
    for k in (3, 7, 15):
        gradients = 0.3 * mean + noise[:k]
        bits = np.packbits(gradients >= 0, axis=1, bitorder="little")
        goal = (gradients.sum(0) >= 0).astype(np.int64)
        parity, by_vote = agreement(np.bitwise_xor.reduce(bits), goal), agreement(sign.majority(bits, n), goal)
        # For odd k a parity agrees a little where all k agree, which becomes rarer as k grows.
        assert by_vote > 0.75 and parity < by_vote - 0.1
        lines.append(f"{k} micro-batches: agreement with the sign of the sum: vote {by_vote:.1%}, XOR {parity:.1%}")
    figure("; ".join(lines))


def test_absent_voters_and_sequences_of_rows() -> None:
    n = 20
    rows = [torch.tensor(row, dtype=torch.uint8) for row in ([255, 0, 0], [255, 255, 0], [0, 255, 15])]
    together = sign.majority(torch.stack(rows), n)
    assert together.tolist() == [255, 255, 0] == sign.majority(rows, n).tolist()
    assert sign.majority((*rows, None), n, weights=[1, 1, 1, 0]).tolist() == together.tolist()
    assert sign.majority([None, *rows], n, weights=torch.tensor([0, 1, 0, 5])).tolist() == [0, 255, 15]
    assert sign.majority([row.numpy() for row in rows], n).tolist() == together.tolist()
    with pytest.raises(ValueError, match="got no ballot from voter 1, whose weight is 1"):
        sign.majority([rows[0], None], n)
    with pytest.raises(ValueError, match="wanted at least one"):
        sign.majority([None], n, weights=[0])


def test_numpy_gives_numpy_and_nothing_else_needs_it() -> None:
    x = np.random.default_rng(3).standard_normal((30, 7)).astype(np.float32)
    for view in (x, x[::-1], x.T, x[:, ::3], np.asfortranarray(x), x[0, 0:0], x[0, 0]):
        given = np.asarray(view)[...]  # a view, so that x stays as it is
        given.flags.writeable = False  # is only read
        bits = sign.pack(given)
        assert isinstance(bits, np.ndarray) and np.array_equal(bits, np.packbits(view >= 0, bitorder="little"))
        back = sign.unpack(bits, given.size, shape=given.shape, dtype=np.float16)
        assert isinstance(back, np.ndarray) and back.dtype == np.float16 and back.shape == given.shape
        assert np.array_equal(back, np.where(view >= 0, 1, -1))
    odd = np.frombuffer(b"\0" + np.arange(-4, 5, dtype=np.float32).tobytes(), np.uint8)[1:].view(np.float32)
    assert sign.pack(odd).tolist() == [0xF0, 1], "values that are not aligned"
    bits, zeros = sign.majority(np.array([[1], [2]], np.uint8), 3, ties="zero")
    assert (type(bits), bits.tolist(), zeros.tolist()) == (np.ndarray, [0], [3])
    with pytest.raises(ValueError, match="byte order"):
        sign.pack(x.astype(">f4"))
    with pytest.raises(ValueError, match="read-only"):
        sign.pack(x.reshape(-1), out=np.frombuffer(bytes(27), np.uint8))

    class Foreign:
        """Speaks DLPack and nothing else."""

        def __init__(self, tensor: torch.Tensor) -> None:
            self._tensor = tensor

        def __dlpack__(self, **options: Any) -> object:
            return self._tensor.__dlpack__(**options)

        def __dlpack_device__(self) -> Any:
            return self._tensor.__dlpack_device__()

    foreign: Any = Foreign(torch.from_numpy(x))
    assert torch.equal(sign.pack(foreign), sign.pack(torch.from_numpy(x)))
    assert "numpy" in sys.modules  # of this test


def test_nothing_is_too_empty() -> None:
    for order in ORDERS:
        none = sign.pack(torch.zeros(0, 3), bitorder=order)
        assert none.shape == (0,) and sign.unpack(none, 0, shape=(3, 0), bitorder=order).shape == (3, 0)
        for rule in ("hash", "plus", "minus"):
            assert sign.majority(torch.zeros(4, 0, dtype=torch.uint8), 0, ties=rule, bitorder=order).shape == (0,)
        one = sign.pack(torch.tensor(-3.0), bitorder=order)
        assert one.tolist() == [0] and sign.unpack(one, 1, shape=(), bitorder=order).item() == -1


def test_results_may_lie_on_ballots(seed: int) -> None:
    generator = np.random.default_rng(seed)
    n = 100
    for order, rule in itertools.product(ORDERS, TIES):
        fresh = torch.from_numpy(generator.integers(0, 256, (4, sign.packed_bytes(n)), dtype=np.uint8))
        earlier = fresh[3] if rule == "previous" else None
        apart = sign.majority(fresh[:3], n, weights=[1, 2, 1], ties=rule, previous=earlier, bitorder=order)
        for place in (0, 2, 3) if rule == "previous" else (0, 2):
            memory = fresh.clone()
            marks = torch.empty_like(memory[0])
            result = sign.majority(
                memory[:3], n, weights=[1, 2, 1], ties=rule, previous=memory[3] if rule == "previous" else None,
                bitorder=order, out=(memory[place], marks) if rule == "zero" else memory[place],
            )  # fmt: skip
            if rule == "zero":
                assert torch.equal(result[1], apart[1])
                result = result[0]
            assert torch.equal(result, apart[0] if rule == "zero" else apart)
            assert result.data_ptr() == memory[place].data_ptr()


def test_wrong_sizes_types_and_places_are_named() -> None:
    x = torch.randn(20)
    bits = sign.pack(x)
    ballots = torch.stack([bits, bits])
    meta: Any = torch.empty(8, device="meta")
    sparse = torch.eye(4).to_sparse()
    anything: Any = [1.0, -1.0]
    cases: list[tuple[type[Exception], str, Callable[[], object]]] = [
        # The number of elements in place of bytes, and bytes in place of elements.
        (ValueError, "got 3 bytes for n=3 signs, wanted 1: n counts signs", lambda: sign.unpack(bits, bits.numel())),
        (ValueError, "got 20 bytes for n=20 signs, wanted 3", lambda: sign.unpack(x.to(torch.uint8), 20)),
        (ValueError, "got 3 bytes for n=32 signs, wanted 4", lambda: sign.unpack(bits, 32)),
        (ValueError, "zeros: got 4 bytes for n=20", lambda: sign.unpack(bits, 20, zeros=torch.zeros(4).byte())),
        (ValueError, "out: got 2 bytes for n=20", lambda: sign.pack(x, out=bits[:2])),
        (ValueError, r"ballots: got uint8 of shape \(3,\)", lambda: sign.majority(bits, 20)),
        (ValueError, r"shape \(2, 3\), wanted uint8 of shape \(voters, 1\)", lambda: sign.majority(ballots, 3)),
        (ValueError, r"shape: got \(4, 4\) of 16", lambda: sign.unpack(bits, 20, shape=(4, 4))),
        (ValueError, r"out: got shape \(19,\)", lambda: sign.unpack(bits, 20, out=torch.empty(19))),
        (ValueError, "n: got -1", lambda: sign.unpack(bits, -1)),
        (ValueError, "n: got 2305843009213693952", lambda: sign.unpack(bits, 2**61)),
        # Types.
        (ValueError, "got dtype int64, wanted float32", lambda: sign.pack(torch.arange(4))),
        (ValueError, "got dtype float64, wanted float32", lambda: sign.pack(np.zeros(4))),
        (TypeError, "x: got list", lambda: sign.pack(anything)),
        (ValueError, "bits: got float32, wanted uint8", lambda: sign.unpack(x, 20)),
        (ValueError, "out: got float32, wanted uint8", lambda: sign.pack(x, out=torch.empty(3))),
        (ValueError, "dtype: got torch.int8", lambda: sign.unpack(bits, 20, dtype=torch.int8)),
        (ValueError, "out: got float16", lambda: sign.unpack(bits, 20, dtype=torch.float32, out=x.half())),
        (ValueError, r"ballots\[1\]: got float32", lambda: sign.majority([bits, x], 20)),
        (TypeError, "weights.0.: got 0.5", lambda: sign.majority(ballots, 20, weights=[0.5, 1])),
        (ValueError, "weights.1.: got -1", lambda: sign.majority(ballots, 20, weights=[1, -1])),
        (ValueError, "got 1 weights for 2 ballots", lambda: sign.majority(ballots, 20, weights=[1])),
        (ValueError, "seed: got -1", lambda: sign.majority(ballots, 20, seed=-1)),
        (ValueError, "step: got 18446744073709551616", lambda: sign.majority(ballots, 20, step=2**64)),
        (ValueError, "got ties='coin', wanted one of hash", lambda: sign.majority(ballots, 20, ties="coin")),
        (ValueError, "got bitorder='middle'", lambda: sign.pack(x, bitorder="middle")),
        (ValueError, "previous: got NoneType", lambda: sign.majority(ballots, 20, ties="previous")),
        (ValueError, "previous: got Tensor", lambda: sign.majority(ballots, 20, previous=bits)),
        (TypeError, "wanted a pair", lambda: sign.majority(ballots, 20, ties="zero", out=bits)),
        # Memory.
        (ValueError, "wanted contiguous bytes", lambda: sign.unpack(ballots.repeat(1, 2)[0, ::2], 20)),
        (ValueError, "a stride of 2 bytes", lambda: sign.majority(ballots.repeat(1, 2)[:, ::2], 20)),
        (ValueError, "wanted a contiguous array", lambda: sign.unpack(bits, 20, out=torch.empty(20, 2)[:, 0])),
        (ValueError, "requires grad", lambda: sign.unpack(bits, 20, out=torch.empty(20, requires_grad=True))),
        (ValueError, "share memory", lambda: sign.pack(x, out=x.view(torch.uint8)[:3])),
        (ValueError, "share memory", lambda: sign.unpack(x.view(torch.uint8)[:3], 20, out=x)),
        (ValueError, "share memory", lambda: sign.majority([bits, bits], 20, ties="zero", out=(bits, bits))),
        (ValueError, "share memory", lambda: sign.majority(x.view(torch.uint8)[None, 1:4], 20,
                                                           out=x.view(torch.uint8)[:3])),
        (ValueError, "layout torch.sparse_coo", lambda: sign.pack(sparse)),
        (NotImplementedError, "got a tensor on meta, wanted one on cpu or cuda or xpu", lambda: sign.pack(meta)),
    ]  # fmt: skip
    before = x.clone()
    for kind, words, call in cases:
        with pytest.raises(kind, match=words):
            call()
    assert torch.equal(x, before) and torch.equal(bits, sign.pack(x)), "a refused call has written"
    assert len(cases) > 35


def test_the_gil_is_free_meanwhile(figure: Figure) -> None:
    """Another thread gets on while a call is under way; were the GIL held, it would get no turn before the end."""
    torch.set_num_threads(1)
    x = torch.randn(1 << 25)
    ballots = sign.pack(x)[None].expand(64, -1)
    counted, done = [0], threading.Event()

    def count() -> None:
        while not done.is_set():
            counted[0] += 1
            done.wait(0.0005)

    worker = threading.Thread(target=count)
    worker.start()
    turns, calls = 0, 0
    while turns < 3 and calls < 200:  # on a busy machine the other thread may be late
        before = counted[0]
        sign.majority(ballots, x.numel())
        turns, calls = counted[0] - before, calls + 1
    done.set()
    worker.join()
    assert turns >= 3  # one could come between the reading of `before` and the call
    figure(f"{turns} turns of another thread during one vote, the {calls}. that was tried")
