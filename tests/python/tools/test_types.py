"""Types: the package passes mypy's strict checks, and a user's code is checked against it."""

import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[3]
# A user's lines, each with the error that mypy must report; without one, mypy must accept the line.
LINES = [
    ("import lowtide, torch", None),
    ("model = torch.nn.Linear(2, 2)", None),
    ("one = lowtide.AdamW(model.parameters(), lr=1e-3, betas=(0.9, 0.99), state='dynamic8')", None),
    ("plain: torch.optim.Optimizer = one", None),
    ("groups = lowtide.Lion([{'params': [*model.parameters()], 'lr': 1e-4}], weight_decay=0.1)", None),
    ("budget = lowtide.AdamW(model.parameters(), memory=lowtide.Memory(host='8GiB', disk='/tmp'))", None),
    ("total: int = one.report()['state_bytes']", None),
    ("loss: float | None = one.step(lambda: 0.5)", None),
    ("lowtide.AdamW(model.parameters(), lr='fast')", "arg-type"),
    ("lowtide.AdamW(model.parameters(), momentum=0.9)", "call-arg"),
    ("lowtide.SGD(model.parameters(), betas=(0.9, 0.99))", "call-arg"),
    ("one.report()['state_byte']", "typeddict-item"),
    ("lowtide.AdamW(model.parameters(), state=8)", "arg-type"),
    ("lowtide.Memory(ram='8GiB')", "call-arg"),
    ("lowtide.Memory('8GiB')", "call-arg"),
]


def mypy(*arguments: str) -> tuple[int, str]:
    done = subprocess.run(
        [sys.executable, "-m", "mypy", "--cache-dir", str(ROOT / "build/mypy-cache"), *arguments],
        cwd=ROOT, capture_output=True, text=True, check=False,
    )  # fmt: skip
    return done.returncode, done.stdout + done.stderr


@pytest.mark.parametrize("subject", ["the package", "a user's code"])
def test_types_hold(subject, tmp_path, figure):
    if subject == "the package":
        status, said = mypy()
        assert status == 0, said
        figure(said.strip())
        return
    script = tmp_path / "train.py"
    script.write_text("\n".join(line for line, _ in LINES) + "\n")
    _, said = mypy("--strict", str(script))
    found = {}
    for line in said.splitlines():
        if "error:" in line and "train.py" in line:
            found[int(line.split(":")[1])] = line.rsplit("[", 1)[-1].rstrip("]")
    wanted = {number: kind for number, (_, kind) in enumerate(LINES, 1) if kind}
    assert found == wanted, said
    figure(f"{len(LINES) - len(wanted)} right lines taken, {len(wanted)} mistakes found by mypy")
