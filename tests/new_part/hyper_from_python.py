"""Claim: an option of groups is the files of docs/project/adding-a-hyper-parameter.md: Python takes it for the
optimizer, a group and an override, keeps it in param_groups, plans with it and refuses bad values.

hyper_from_python.py ROOT PART PACKAGE: PART has the files of the page (extract.py), PACKAGE the module that was built with
them.
"""

from __future__ import annotations

import sys
from pathlib import Path

from package import completed

HYPER = {"include/lowtide/hyper.def", "src/portable/rules/lion.h"}  # of the page's hyper-parameter


def main(root: Path, part: Path, package: Path) -> None:
    try:
        import torch
    except ImportError:
        print("skipped: no torch")
        sys.exit(77)
    touched = [name for name in completed(root, part, package) if name not in HYPER]
    print(f"{len(touched)} files of an option of groups: {', '.join(touched)}")
    assert len(touched) == 5, touched

    sys.path.insert(0, str(package.parent))
    import lowtide
    from lowtide import _core

    assert Path(lowtide.__file__).parent == package, lowtide.__file__
    assert ("min_quantized_ndim", 0, True) in _core.group_options()

    def formats(opt: lowtide.Optimizer) -> list[str]:
        entries = opt.state.values()  # dicts have both forms of vectors
        return [str(entry.get("exp_avg", entry.get("exp_avg_codes")).dtype).removeprefix("torch.") for entry in entries]

    def stepped(**options: object) -> lowtide.Optimizer:
        opt = lowtide.AdamW(params, **options)
        opt.step()
        return opt

    params = [torch.nn.Parameter(torch.zeros(sizes)) for sizes in ((64, 256), (64 * 256,))]
    for param in params:
        param.grad = torch.ones_like(param)
    assert formats(stepped()) == ["uint8", "uint8"]
    opt = stepped(min_quantized_ndim=2)
    assert formats(opt) == ["uint8", "float32"] and opt.param_groups[0]["min_quantized_ndim"] == 2
    saved = opt.state_dict()
    assert saved["param_groups"][0]["min_quantized_ndim"] == 2
    opt.load_state_dict(saved)
    groups = [{"params": [params[0]], "min_quantized_ndim": 3}, {"params": [params[1]]}]
    opt = lowtide.AdamW(groups)
    opt.step()
    assert formats(opt) == ["float32", "uint8"]
    planned = [lowtide.forecast([{"params": params, "min_quantized_ndim": ndim}]).state_bytes for ndim in (1, 2, 3)]
    assert planned[2] == 8 * 2 * 64 * 256 and planned[0] < planned[1] < planned[2], planned

    def refused(error: type[Exception], call: object) -> str:
        try:
            call()
        except error as found:
            return str(found)
        raise AssertionError(f"wanted a {error.__name__}")

    assert "min_quantized_ndim: got 2.0" in refused(TypeError, lambda: stepped(min_quantized_ndim=2.0))
    assert "min_quantized_ndim: got -1" in refused(ValueError, lambda: stepped(min_quantized_ndim=-1))
    opt = stepped()
    opt.param_groups[0]["min_quantized_ndim"] = 1
    assert "fixed when the group is added" in refused(ValueError, opt.step)
    override = lowtide.override(params, min_quantized_ndim=2)
    assert formats(stepped()) == ["uint8", "float32"]
    override.remove()


if __name__ == "__main__":
    main(*(Path(argument).resolve() for argument in sys.argv[1:]))
