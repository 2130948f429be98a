"""Machine code of CUDA kernels: what the report finds in it, and the executor that the model of steps' speed counts with.
Instructions are checked against NVIDIA's definitions of their PTX counterparts and exact arithmetic, not against the code
that the project's kernels become; that these leave the same memory as their PTX is the model's own check."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from fractions import Fraction
from pathlib import Path

import pytest

np = pytest.importorskip("numpy")
sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "tools"))

from sass import floats, offences
from sass.cubins import Instruction, Kernel, read_code
from sass.launch import Launch, Recorded
from sass.memory import bank_wavefronts
from sass.operands import Unknown
from sass.pipes import ALU, LSU, MACHINES, XU
from sass.report import Step, judge
from sass.schedule import Issued, share
from sass.warp import Warp


def kernel_of(lines: Sequence[str], name: str = "kernel", architecture: str = "sm_90") -> Kernel:
    text = "\n".join(f"/*{16 * n:04x}*/ {line} ;" for n, line in enumerate(lines))
    code, _ = read_code(text)
    return Kernel(name, architecture, registers=32, code=code)


def run(*lines: str, **registers: object) -> Warp:
    """The warp behind these instructions; registers: R1=lanes' values."""
    recorded = Recorded({"threads": "32", "blocks": "1", "dynamic_bytes": "4096", "parameters": ""})
    launch = Launch(kernel_of([*lines, "EXIT"]), recorded)
    begin = Warp.__init__

    def filled(warp: Warp, *arguments: object) -> None:
        begin(warp, *arguments)  # type: ignore[arg-type]
        for name, value in registers.items():
            warp.registers[int(name[1:])] = np.asarray(value).astype(np.uint64).astype(np.uint32)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Warp, "__init__", filled)
        (warp,) = launch.run()
    return warp


RNG = np.random.default_rng(23)


def words() -> np.ndarray:
    """Bits of all kinds: any, floats of one magnitude, and the ends."""
    ends = [0, 1, 0x7FFFFFFF, 0x80000000, 0xFFFFFFFF, 0x3F800000, 0xBF800000, 0x00800000]
    return np.concatenate([RNG.integers(0, 1 << 32, 16), RNG.integers(0x3F000000, 0x41000000, 8), ends]).astype(
        np.uint32
    )


@pytest.mark.parametrize("table", range(256))
def test_logic_of_three_inputs_is_its_table(table: int) -> None:
    # PTX: bit 4a + 2b + c of immLut.
    a, b, c = words(), words(), words()
    got = run(f"LOP3.LUT R4, R1, R2, R3, {hex(table)}, !PT", R1=a, R2=b, R3=c).registers[4]
    for bit in range(32):
        index = 4 * (a >> bit & 1) + 2 * (b >> bit & 1) + (c >> bit & 1)
        assert ((got >> bit & 1) == (table >> index & 1)).all()


def test_permutations_replicate_signs() -> None:
    a, b = words(), words()
    for selector in (0x3210, 0x7654, 0xBB32, 0x3332, 0x8880, 0x9910, 0x5410, 0x0F7C):
        got = run(f"PRMT R4, R1, {hex(selector)}, R2", R1=a, R2=b).registers[4]
        for lane in range(32):
            of = [int(word) >> 8 * byte & 255 for word in (a[lane], b[lane]) for byte in range(4)]
            wanted = 0
            for byte in range(4):
                nibble = selector >> 4 * byte & 15
                value = of[nibble & 7]
                wanted |= (255 * (value >> 7) if nibble & 8 else value) << 8 * byte
            assert got[lane] == wanted


def test_sums_of_64_bits_carry() -> None:
    low, high, x = words(), words(), words()
    warp = run("IADD3 R4, P0, R1, R3, RZ", "IADD3.X R5, R2, R3, RZ, P0, !PT", R1=low, R2=high, R3=x)
    wanted = (low.astype(object) + (high.astype(object) << 32) + x.astype(object) + (x.astype(object) << 32)) % (
        1 << 64
    )
    assert (warp.registers[4] + (warp.registers[5].astype(object) << 32) == wanted).all()
    warp = run("IADD3 R4, P0, R1, -R3, RZ", "IADD3.X R5, R2, ~R3, RZ, P0, !PT", R1=low, R2=high, R3=x)
    wanted = (low.astype(object) + (high.astype(object) << 32) - x.astype(object) - (x.astype(object) << 32)) % (
        1 << 64
    )
    assert (warp.registers[4] + (warp.registers[5].astype(object) << 32) == wanted).all()


def test_products_of_64_bits() -> None:
    a, b, low, high = words(), words(), words(), words()
    warp = run("IMAD.WIDE.U32 R4, R1, R2, R6", "IMAD.HI.U32 R8, R1, R2, R6", R1=a, R2=b, R6=low, R7=high)
    wanted = (a.astype(object) * b.astype(object) + low.astype(object) + (high.astype(object) << 32)) % (1 << 64)
    assert (warp.registers[4] + (warp.registers[5].astype(object) << 32) == wanted).all()
    assert (warp.registers[8] == wanted >> 32).all()


def test_shifts_of_two_words() -> None:
    low, high = words(), words()
    both = low.astype(object) + (high.astype(object) << 32)
    signed = np.where(high >> 31, both - (1 << 64), both)
    for by in (0, 1, 5, 16, 31):
        warp = run(
            f"SHF.R.U64 R4, R1, {hex(by)}, R2", f"SHF.L.U64.HI R5, R1, {hex(by)}, R2", f"SHF.R.S32.HI R6, RZ, {hex(by)}, R2",
            R1=low, R2=high,
        )  # fmt: skip
        assert (warp.registers[4] == (both >> by) % (1 << 32)).all()
        assert (warp.registers[5] == (both << by >> 32) % (1 << 32)).all()
        assert (warp.registers[6] == (signed >> 32 >> by) % (1 << 32)).all()


def nearest(exact: Fraction) -> float:
    """The float32 next to it, ties to even, by comparing neighbours."""
    near = np.float32(float(exact))
    around = [np.nextafter(near, np.float32(-np.inf)), near, np.nextafter(near, np.float32(np.inf))]
    return float(min(around, key=lambda x: (abs(Fraction(float(x)) - exact), int(x.view(np.uint32)) & 1)))


def test_products_and_sums_round_once() -> None:
    a, b = (RNG.standard_normal(4096).astype(np.float32) for _ in range(2))
    # Sums that cancel all but the last bits of the product, ties, and those between.
    c = np.concatenate([-(a[:2048] * b[:2048]), (RNG.standard_normal(2048) * 1e-6).astype(np.float32)])
    got = floats.fused(a, b, c)
    for x, y, z, out in zip(a, b, c, got):
        assert float(out) == nearest(Fraction(float(x)) * Fraction(float(y)) + Fraction(float(z)))
    one = np.float32(1) + np.float32(2**-12)
    tie = floats.fused(np.array([one]), np.array([one]), np.array([2**-40], np.float32))
    assert float(tie[0]) == nearest(Fraction(float(one)) ** 2 + Fraction(1, 1 << 40))


def test_comparisons_with_nan() -> None:
    nan, one = np.full(32, 0x7FC00000), np.full(32, 0x3F800000)
    warp = run("FSETP.GEU.AND P0, PT, R1, R2, PT", "FSETP.GE.AND P1, PT, R1, R2, PT", "FMNMX R4, R1, R2, PT",
               "FMNMX.NAN R5, R1, R2, PT", R1=nan, R2=one)  # fmt: skip
    assert warp.flags[0].all() and not warp.flags[1].any()
    assert (warp.registers[4] == 0x3F800000).all() and (warp.registers[5] == 0x7FFFFFFF).all()


def test_lanes_diverge_and_meet() -> None:
    warp = run(
        "S2R R1, SR_LANEID", "BSSY B0, 0x70", "ISETP.GE.U32.AND P0, PT, R1, 0x10, PT", "@P0 BRA 0x60", "MOV R2, 0x1", "BRA 0x70",
        "MOV R2, 0x2", "BSYNC B0", "IADD3 R3, R2, R1, RZ",
    )  # fmt: skip
    assert (warp.registers[3] == np.arange(32) + np.where(np.arange(32) < 16, 1, 2)).all()
    assert warp.counts[8] == 1  # together again


def test_tables_of_branches_lead_each_lane() -> None:
    kernel = kernel_of(
        ["S2R R1, SR_LANEID", "LOP3.LUT R1, R1, 0x4, RZ, 0xc0, !PT", "LDC R2, c[0x2][R1]", "BRX R2 -0x40", "EXIT",
         "MOV R3, 0x1", "EXIT", "MOV R3, 0x2", "EXIT"]
    )  # fmt: skip
    kernel.constants = {2: np.array([0x50, 0x70], "<u4").tobytes()}
    recorded = Recorded({"threads": "32", "blocks": "1", "dynamic_bytes": "0", "parameters": ""})
    (warp,) = Launch(kernel, recorded).run()
    assert (warp.registers[3] == np.where(np.arange(32) & 4, 2, 1)).all()


@pytest.mark.parametrize(
    ("size", "stride", "wavefronts"),
    [(4, 4, 1), (4, 0, 1), (4, 8, 2), (4, 128, 32), (4, 132, 1), (8, 8, 2), (16, 16, 4), (16, 0, 1), (16, 128, 32)],
)
def test_bank_conflicts(size: int, stride: int, wavefronts: int) -> None:
    # 32 banks of 4 bytes; lanes with 8 bytes go in halves, with 16 in quarters, and with others that want the same.
    assert bank_wavefronts(np.arange(32, dtype=np.uint64) * np.uint64(stride), size) == wavefronts


def test_unknown_instructions_and_addresses_are_errors() -> None:
    with pytest.raises(Unknown, match="HMMA"):
        run("HMMA.16816.F32 R4, R4, R8, R12")
    with pytest.raises(Unknown, match="out of bounds"):
        run("MOV R2, 0x8000", "LDS R4, [R2]")
    with pytest.raises(Unknown, match="multiples of 16"):
        run("MOV R2, 0x404", "LDS.128 R4, [R2]")


def step_of(need: float, **changes: object) -> Step:
    values: dict[str, object] = {
        "name": "adamw", "arithmetic": "exact", "kernel": "", "registers": 128, "shared": 0, "bytes": 10.0, "wide_share": 1.0,
        "slots": {"issue": need, "alu": 20.0},
    }  # fmt: skip
    return Step(**{**values, **changes})  # type: ignore[arg-type]


def test_a_step_that_leaves_its_budget_is_named() -> None:
    within, over = step_of(70), step_of(90)
    assert judge([within], [within]) == [] == judge([over], [over])
    assert "adamw, exact: issue needs 90.0 slots, at most 77.8" in judge([over], [within])
    assert judge([over], []) != []
    assert "narrow accesses" in judge([step_of(70, wide_share=0.1)], [within])[0]
    assert "differ" in judge([step_of(70, different=0.001)], [within])[0]


def test_a_step_that_needs_more_than_before_is_named() -> None:
    for kept in (50, 90):  # within its budget, and over it
        assert judge([step_of(1.015 * kept)], [step_of(kept)]) == []
        (words,) = judge([step_of(1.03 * kept)], [step_of(kept)])
        assert words == f"adamw, exact: issue needs {1.03 * kept:.1f} slots, was {kept:.1f}, at most 2 % more"
    assert len(judge([step_of(4 * 90)], [step_of(90)])) == 1
    # A pipe that is not the limit, too; not one that has next to nothing to do.
    slots = {"issue": 90.0, "alu": 60.0, "xu": 0.05}
    assert judge([step_of(90, slots={**slots, "xu": 0.06})], [step_of(90, slots=slots)]) == []
    (words,) = judge([step_of(90, slots={**slots, "alu": 70.0})], [step_of(90, slots=slots)])
    assert "alu needs 70.0 slots, was 60.0" in words
    assert judge([step_of(20)], [step_of(90)]) == []


def traced(count: int, **changes: object) -> list[Issued]:
    values: dict[str, object] = {
        "stall": 1, "sets": 7, "reads": 7, "waits": 0, "pipe": None, "wavefronts": 1, "latency": 20, "bytes": 0,
    }  # fmt: skip
    return [Issued(**{**values, **changes}) for _ in range(count)]  # type: ignore[arg-type]


H200 = MACHINES[0]
RATE = H200.copied / H200.clock / H200.multiprocessors  # bytes in a cycle of a multiprocessor


@pytest.mark.parametrize(
    ("trace", "warps", "cycles"),
    [
        (traced(1000), 16, 4 * 1000),  # four warps of a partition take turns
        (traced(1000, pipe=ALU), 16, 4 * 2000),
        (traced(1000, pipe=XU), 16, 4 * 8000),
        (traced(1000, pipe=LSU, wavefronts=3), 16, 16 * 3000),  # one path for all partitions
        (traced(1000, stall=4), 4, 4000),  # alone in its partition a warp waits
        (traced(1000, stall=4), 16, 4000),  # others do not let it
    ],
)
def test_simulated_pipes_take_their_time(trace: list[Issued], warps: int, cycles: int) -> None:
    # Moved: as much as memory does in the time that it takes.
    assert share(trace, warps, RATE * cycles / warps, H200) == pytest.approx(1, rel=0.02)


def test_simulated_memory_has_its_rate_and_its_latency() -> None:
    load, use = traced(1, pipe=LSU, wavefronts=4, bytes=512, sets=0, latency=650), traced(1, waits=1)
    # One warp waits for each load alone; enough of them have as many bytes under way as the latency takes.
    alone = share((load + use) * 100, 1, 100 * 512, H200)
    assert alone == pytest.approx(512 / (650 + 512 / RATE) / RATE, rel=0.05)
    assert share((load + use) * 100, 64, 100 * 512, H200) == pytest.approx(1, rel=0.05)


EXACT = "_ZN7lowtide11cuda_device11step_kernelINS0_5AdamWENS0_4Fp32EEEvNS0_13StepArgumentsE"


def test_the_report_finds_lost_and_stray_signs() -> None:
    for good in (
        "PRMT R1, R2, 0xbb32, RZ",
        "PRMT R1, R2, 0x4440, RZ",
        "PRMT R1, R2, 0x9910, RZ",
        "PRMT R1, R2, 0x5410, R3",
    ):
        assert offences.wrong_selectors(kernel_of([good])) == [], good
    for bad in ("PRMT R1, R2, 0x3332, RZ", "PRMT R1, R2, 0xcc32, R3", "PRMT R1, R2, 0x1110, RZ"):
        assert offences.wrong_selectors(kernel_of([bad])) != [], bad


def test_the_report_finds_contraction() -> None:
    division = ["MUFU.RCP R1, R2", *["FFMA R3, R1, R2, R3"] * 6]
    assert offences.wrong_everywhere(kernel_of(division, EXACT), "adamw fp32 bf16,bf16 exact") == []
    wrong = offences.wrong_everywhere(
        kernel_of([*division, "FFMA R4, R5, R6, R4"], EXACT), "adamw fp32 bf16,bf16 exact"
    )
    assert wrong == ["7 fused sums, at most 6: something is contracted"]
    # A reciprocal of an integer division has none.
    assert offences.fused(kernel_of(["I2F.U32.RP R1, R2", "MUFU.RCP R1, R1"], EXACT))[1] == 0


def test_the_report_finds_local_memory_and_lost_occupancy() -> None:
    kernel = kernel_of(["LDL R1, [R2]"], EXACT)
    kernel.registers, kernel.shared = 136, 120 << 10
    wrong = offences.wrong_everywhere(kernel, "adamw fp32 bf16,bf16 exact")
    assert [words.split()[1] for words in wrong] == ["accesses", "registers:", "bytes"]


def test_instructions_keep_their_predicates() -> None:
    assert kernel_of(["@!P0 BRA 0x10", "EXIT"]).code[0] == Instruction(0, "BRA 0x10", "@!P0")
