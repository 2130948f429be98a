"""The report finds faults in the machine code of CUDA kernels."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[3] / "tools"))

from sass import offences
from sass.cubins import Instruction, Kernel, read_code

EXACT = "_ZN7lowtide11cuda_device11step_kernelINS0_5AdamWENS0_4Fp32EEEvNS0_13StepArgumentsE"


def kernel_of(lines: Sequence[str], name: str = "kernel") -> Kernel:
    text = "\n".join(f"/*{16 * n:04x}*/ {line} ;" for n, line in enumerate(lines))
    code, _ = read_code(text)
    return Kernel(name, "sm_90", registers=32, code=code)


def test_the_report_finds_lost_and_stray_signs() -> None:
    for good in ("0xbb32, RZ", "0x4440, RZ", "0x9910, RZ", "0x5410, R3"):
        assert offences.wrong_selectors(kernel_of([f"PRMT R1, R2, {good}"])) == [], good
    for bad in ("0x3332, RZ", "0xcc32, R3", "0x1110, RZ"):
        assert offences.wrong_selectors(kernel_of([f"PRMT R1, R2, {bad}"])) != [], bad


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
    kernel.registers = 136
    wrong = offences.wrong_everywhere(kernel, "adamw fp32 bf16,bf16 exact")
    assert [words.split()[1] for words in wrong] == ["accesses", "registers:"]


def test_instructions_keep_their_predicates() -> None:
    assert kernel_of(["@!P0 BRA 0x10", "EXIT"]).code[0] == Instruction(0, "BRA 0x10", "@!P0")
