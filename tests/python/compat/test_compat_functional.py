"""bitsandbytes.functional: maps bit for bit, and nearest codes for every block size and code book."""

import hashlib
import importlib.util
import math

import pytest
import torch
from lowtide import _core
from lowtide.state import blockwise
from lowtide.compat.bitsandbytes import functional

from support import bits

# Hashes of 256 little-endian float32 values, as machines with fused multiply-add make them and src/portable/codecs has
# them.
SHA256 = {
    True: "e732639a65f497b4ad684bb166a4467708255edd5207757de8b8f0c7e1fda89c",
    False: "305f002cc11278fb769d13b25b9fd0c7c83c8402c40a878fe086f4039fde6398",
}
BLOCKSIZES = (64, 128, 256, 512, 1024, 2048, 4096)


def test_the_dynamic_map_is_exact(figure):
    for signed, wanted in SHA256.items():
        assert hashlib.sha256(bits(functional.create_dynamic_map(signed))).hexdigest() == wanted
    functional.create_dynamic_map().fill_(0)  # each caller has its own
    assert float(functional.create_dynamic_map()[255]) == 1
    figure("2 maps of 256 entries: the SHA-256 of both")


def test_maps_of_other_widths_are_those_of_bitsandbytes(figure):
    if importlib.util.find_spec("bitsandbytes") is None:
        pytest.skip("bitsandbytes is not installed")
    from bitsandbytes.functional import create_dynamic_map

    met = 0
    for total in range(2, 9):
        for exponent in range(total + 3):
            for signed in (True, False):
                if exponent < 1 or (not signed and exponent != total - 1):
                    with pytest.raises(ValueError, match="max_exponent_bits"):
                        functional.create_dynamic_map(signed, exponent, total)
                    continue
                wanted = create_dynamic_map(signed, exponent, total)
                assert bits(functional.create_dynamic_map(signed, exponent, total)) == bits(wanted)
                met += 1
    figure(f"{met} maps of 2 to 8 bits: 0 entries differ")


def brute_force(values, book, blocksize):
    """The nearest entry by definition, in double. Ties go to the lower entry."""
    flat = values.double().reshape(-1)
    codes = torch.empty(flat.numel(), dtype=torch.uint8)
    scales = []
    for start in range(0, flat.numel(), blocksize):
        part = flat[start : start + blocksize]
        absmax = float(part.abs().max())
        scales.append(absmax)
        inverse = torch.tensor(1.0) / torch.tensor(absmax) if absmax else torch.tensor(0.0)
        scaled = (part.float() * inverse).double()
        codes[start : start + blocksize] = (scaled[:, None] - book.double()).abs().argmin(1).to(torch.uint8)
    return codes.view(values.shape), torch.tensor(scales)


@pytest.mark.parametrize("positive", [False, True])
def test_the_core_and_torch_give_the_same_codes(positive, seed, figure, monkeypatch):
    """The dynamic maps in blocks of 256: all magnitudes, zeros, entries and midpoints of the map, short last blocks, several
    pieces, strides; and non-finite values, which torch encodes."""
    monkeypatch.setattr(blockwise, "_PIECE", 1 << 14)
    book = blockwise.dynamic_map(not positive)
    points = torch.cat([book, (book[1:] + book[:-1]) * 0.5])
    asked, compared = 0, 0
    encode = blockwise._encode_in_core

    def counted(*arguments):
        nonlocal asked
        asked += 1
        encode(*arguments)

    monkeypatch.setattr(blockwise, "_encode_in_core", counted)
    for case in range(60):
        values = torch.randn(int(torch.randint(1, 40_000, ())), dtype=torch.float64)
        values = (values * 10 ** float(torch.empty(()).uniform_(-46, 37))).float()
        values *= torch.randint(0, 3, values.shape)
        if case % 3 == 0:
            values *= torch.logspace(-20, 0, len(values))
        if case % 5 == 0:
            values = points[torch.randint(len(points), values.shape)]
        values = values.abs() if positive else values
        values = values.to(torch.bfloat16) if case % 7 == 0 else values.repeat_interleave(2)[::2] if case % 7 == 1 else values
        if case % 10 == 9:
            values[len(values) // 2] = (math.nan, math.inf)[case % 20 // 10]
        found = []
        for least in (1, 1 << 40):
            monkeypatch.setattr(blockwise, "_LEAST", least)
            found.append([bits(part) for part in blockwise.encode(values, book, 256, positive)])
        assert found[0] == found[1], case
        compared += values.numel()
    figure(f"{compared:,} values, {asked} pieces by the core: 0 codes and scales differ")
    assert asked > 60


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("blocksize", BLOCKSIZES)
def test_codes_are_the_nearest(blocksize, dtype, seed, figure):
    """For the dynamic maps and a random one, with zeros, a block of zeros and a short last block. If two entries are equally
    far, up to rounding of a midpoint, either counts as nearest. How often that happens is chance (many 16-bit values are
    halfway), so the count is printed, and only the distance is judged."""
    values = torch.randn(3, 4 * blocksize // 3 + 7) * torch.rand(3, 1) ** 4
    values.view(-1)[blocksize : 2 * blocksize] = 0
    values = values.to(dtype)
    books = [functional.create_dynamic_map(), torch.sort(torch.rand(256) * 2 - 1).values]
    differ = compared = 0
    for book in books:
        codes, state = functional.quantize_blockwise(values, code=book, blocksize=blocksize)
        wanted, scales = brute_force(values, book, blocksize)
        assert codes.dtype == torch.uint8 and state.dtype == dtype and bits(state.absmax) == bits(scales.float())
        each = scales.repeat_interleave(blocksize)[: values.numel()].view(values.shape)
        values_of = [book[c.int()].double() * each for c in (codes, wanted)]
        further = (values_of[0] - values.double()).abs() - (values_of[1] - values.double()).abs()
        assert float((further / each.clamp(min=1e-30)).abs().max()) < 2**-23
        differ += int((codes != wanted).sum())
        compared += codes.numel()
        back = functional.dequantize_blockwise(codes, state)
        assert back.dtype == dtype and back.shape == values.shape
        plain = functional.dequantize_blockwise(codes, absmax=state.absmax, code=book, blocksize=blocksize)
        assert plain.dtype == torch.float32 and bits(plain.to(dtype)) == bits(back)
    figure(f"{differ} of {compared} codes are another entry that is as near")


def test_codes_are_those_of_the_state(seed, figure):
    """quantize_blockwise with blocks of 256 gives the codes that dynamic8 stores."""
    p = torch.nn.Parameter(torch.zeros(64, 256))
    core = _core.Optimizer("lion", threads=1)
    core.add_group(_core.default_hyper("lion"), {"min_quantized_numel": 0})
    core.add_param(0, p)
    values = torch.randn(64, 256) * torch.exp(3 * torch.randn(64, 256))
    core.import_state(0, 0, values)
    stored = core.state(0)
    codes, state = functional.quantize_blockwise(values, blocksize=256)
    assert bits(codes) == bits(stored["exp_avg"]) and bits(state.absmax) == bits(stored["exp_avg_scale"])
    figure(f"{codes.numel()} codes: 0 differ")


def test_nested_scales_and_given_tensors(seed, figure):
    values = torch.randn(1 << 16)
    codes, state = functional.quantize_blockwise(values, blocksize=64, nested=True)
    assert state.nested and state.absmax.dtype == torch.uint8 and state.state2.absmax.numel() == 16
    apart = float((functional.dequantize_blockwise(codes, state) - values).abs().max())
    figure(f"with 8-bit scales values within {apart:.3f}")
    assert apart < 0.15
    out, absmax = torch.empty(1 << 16, dtype=torch.uint8), torch.empty(1 << 10)
    got, state = functional.quantize_blockwise(values, absmax=absmax, out=out, blocksize=64)
    assert got is out and state.absmax is absmax and bits(out) == bits(codes)
    buffer = torch.empty(1 << 16)
    assert functional.dequantize_blockwise(out, state, out=buffer) is buffer
    state.to("cpu")


@pytest.mark.parametrize("numel", [512, 1000, (1 << 20) + 512])
def test_stacked_scales_are_a_row_for_each_part(numel, seed, figure):
    """AdEMAMix's layout, with several pieces and short last blocks, gives what each part gives alone. If 256 divides the
    elements, bitsandbytes, if present, has the same values."""
    values = torch.randn(2, 4, numel // 4)
    parts = [functional.quantize_blockwise(part, blocksize=256) for part in values]
    codes, absmax = (torch.stack(each) for each in zip(*((c, state.absmax) for c, state in parts), strict=True))
    got = functional.dequantize_blockwise(codes, absmax=absmax, blocksize=256)
    wanted = torch.stack([functional.dequantize_blockwise(*part) for part in parts])
    assert bits(got) == bits(wanted)
    out = torch.empty_like(got)
    assert functional.dequantize_blockwise(codes, absmax=absmax, blocksize=256, out=out) is out and bits(out) == bits(got)
    if numel % 256 == 0 and importlib.util.find_spec("bitsandbytes") is not None:
        import bitsandbytes.functional

        theirs = bitsandbytes.functional.dequantize_blockwise(codes, absmax=absmax, blocksize=256)
        assert bits(theirs) == bits(got)
    figure(f"{got.numel():,} values of two stacked parts: 0 differ from those of each part alone")


def test_bad_arguments_are_refused_by_name():
    values, codes = torch.randn(512), torch.zeros(512, dtype=torch.uint8)
    bad = torch.tensor([1.0, float("nan")])
    cases = [
        (lambda: functional.quantize_blockwise(values.double()), "float64"),
        (lambda: functional.quantize_blockwise(values, blocksize=0), "blocksize"),
        (lambda: functional.quantize_blockwise(values, code=torch.rand(256)), "ascending"),
        (lambda: functional.quantize_blockwise(values, code=torch.rand(16)), "(16,)"),
        (lambda: functional.dequantize_blockwise(values, absmax=torch.ones(1)), "uint8"),
        (lambda: functional.dequantize_blockwise(codes), "absmax"),
        (lambda: functional.dequantize_blockwise(codes, absmax=torch.ones(3), blocksize=256), "3 values"),
        (lambda: functional.dequantize_blockwise(codes.view(2, 256), absmax=torch.ones(2, 2), blocksize=256), "4 values"),
        (lambda: functional.dequantize_blockwise(codes, absmax=bad, blocksize=256), "nan"),
    ]
    for call, word in cases:
        with pytest.raises(ValueError) as caught:
            call()
        assert word in str(caught.value)
