"""Claim: a rule is three files: its header, its line in rules.def and its Python class.

rule_from_python.py ROOT PART PACKAGE: PART has the files of docs/adding-a-rule.md (extract.py), PACKAGE the module that
was built with them. This adds the package's Python files with the class, counts the files that differ from those of the
tree, and steps the rule.
"""

from __future__ import annotations

import shutil
import sys
from pathlib import Path

CLASS = '''

@steps("accumulated_sign")
class AccumulatedSign(Optimizer):
    """The rule of docs/adding-a-rule.md."""

    def __init__(self, params: ParamsT, lr: float | Tensor = 1e-3, **options: Unpack[Options]) -> None:
        super().__init__(params, "accumulated_sign", {"lr": lr}, options)
'''


def main(root: Path, part: Path, package: Path) -> None:
    try:
        import torch
    except ImportError:
        print("skipped: no torch")
        sys.exit(77)
    for file in (root / "python/lowtide").rglob("*.py"):
        to = package / file.relative_to(root / "python/lowtide")
        to.parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(file, to)
    rules = package / "optimizers/rules.py"
    rules.write_text(rules.read_text() + CLASS)

    touched = [str(file.relative_to(part / "src")) for file in (part / "src").rglob("*") if file.is_file()]
    for file in package.rglob("*.py"):
        if file.read_bytes() != (root / "python/lowtide" / file.relative_to(package)).read_bytes():
            touched.append(str(file.relative_to(package)))
    print(f"{len(touched)} files of a rule: {', '.join(touched)}")
    assert len(touched) == 3, f"got {touched}, wanted a header, rules.def and a Python file"

    sys.path.insert(0, str(package.parent))
    import lowtide
    from lowtide.optimizers.rules import AccumulatedSign

    assert Path(lowtide.__file__).parent == package, lowtide.__file__
    compared = 0
    for state in ("fp32", "dynamic8"):
        p = torch.nn.Parameter(torch.linspace(-1, 1, 6000).view(6, 1000))
        wanted, total = p.detach().double(), torch.zeros(6, 1000, dtype=torch.float64)
        opt = AccumulatedSign([p], lr=0.01, state=state)
        for _ in range(5):
            p.grad = torch.randn(6, 1000)
            total += p.grad.double().abs()
            wanted -= 0.01 * p.grad.double().sign() / (1 + total)
            opt.step()
        assert "sum" in opt.state_dict()["state"][0]
        # dynamic8 rounds the sum: to about 1/16 of itself.
        worst = float((p.detach().double() - wanted).abs().max())
        assert worst < (1e-6 if state == "fp32" else 5e-3), (state, worst)
        compared += p.numel()
    print(f"{compared} elements as the reference has them, in 2 state formats")


if __name__ == "__main__":
    main(*(Path(argument).resolve() for argument in sys.argv[1:]))
