"""Commands that can do without torch do not wait for it: help, the version, wrong command lines, `import lowtide`."""

from __future__ import annotations

import subprocess
import sys
import types
from pathlib import Path

import lowtide
import pytest
from lowtide import _check_processor
from lowtide.cli.main import COMMANDS
from support import run_and_list


LIGHT = [
    [], ["help"], ["--help"], ["--version"], *([name, "-h"] for name in COMMANDS), ["nope"], ["inspect"], ["inspect", "nope"],
    ["bench", "--rounds", "0"],
    ["plan", "--model", "many"], ["plan", "--model", "1e6", "--rule", "adamax"], ["plan", "--model", "1e6", "--betas", "0.9;0.95"],
    ["plan", "--model", "Llama-3.1-8B", "--gpu", "24GB", "--ram", "64GB"], ["plan", "--model", "7B", "--json"],
    ["bench", "--elements", "x"], ["bench", "--rule", "muon"],
]  # fmt: skip


def test_help_plans_and_mistakes_import_no_torch(figure):
    most = 0
    for arguments in LIGHT:
        _, modules = run_and_list("-m", "lowtide", *arguments)
        assert "lowtide.cli.main" in modules and "torch" not in modules and "numpy" not in modules, arguments
        most = max(most, len(modules))
    assert len(COMMANDS) == 4 and most < 250  # argparse and json, no framework
    figure(f"{len(LIGHT)} command lines without torch: {most} modules at most")


@pytest.mark.share
@pytest.mark.parametrize(
    ("code", "torch_too"),
    [
        ("import lowtide", False),
        ("import lowtide; lowtide.__doc__, hasattr(lowtide, '__wrapped__'), hasattr(lowtide, '_wrapped')", False),
        ("from lowtide import _core; _core.backends()", False),
        ("import lowtide; lowtide.AdamW", True),
        ("from lowtide import sign", True),
        ("import lowtide; lowtide.sign.pack, lowtide.compat.bitsandbytes", True),
        ("from lowtide import *; AdamW, sign, backends", True),
        ("import lowtide; assert 'AdamW' in dir(lowtide)", True),
        ("import lowtide; assert lowtide.__version__", True),
        ("import lowtide; lowtide.compat.hf, lowtide.optimizers.adam.AdamW, lowtide.planning.plan", True),
        ("import lowtide.compat.deepspeed; lowtide.compat.deepspeed.unpackbits", True),
    ],
)
def test_names_are_there_when_they_are_used(code, torch_too):
    assert ("torch" in run_and_list("-c", code)[1]) == torch_too


def test_the_package_has_the_names_of_its_list_and_no_others():
    assert {"AdamW", "Muon", "Backend", "backends", "sign", "hf", "__version__"} <= set(lowtide.__all__) <= set(dir(lowtide))
    assert all(getattr(lowtide, name) is not None for name in lowtide.__all__)
    with pytest.raises(AttributeError, match="'PagedAdamW8bit': lowtide.compat.bitsandbytes.optim has"):
        lowtide.PagedAdamW8bit  # noqa: B018
    with pytest.raises(AttributeError, match="module 'lowtide' has no attribute 'AdamX'"):
        _ = lowtide.AdamX
    with pytest.raises(ImportError, match="AdamX"):
        from lowtide import AdamX  # noqa: F401


@pytest.mark.parametrize("name", ["", "a.b", "..", "a/b", "state.format", "x" * 5000])
def test_names_that_cannot_be_are_missing(name):
    assert not hasattr(lowtide, name)


def test_what_others_put_in_the_place_of_a_name_stays(monkeypatch):
    """Doubles of tests. Looking up another name, existing or not, must not remove them."""
    monkeypatch.setattr(lowtide, "AdamW", None)
    monkeypatch.setitem(sys.modules, "lowtide.double", types.ModuleType("lowtide.double"))
    assert not hasattr(lowtide, "AdamX") and lowtide.double
    assert lowtide.AdamW is None
    code = "import lowtide; lowtide.AdamW = None; lowtide.Lion; assert lowtide.AdamW is None"
    subprocess.run([sys.executable, "-c", code], check=True, timeout=120)


IMPORTS_AT_ONCE = """
import faulthandler, random, sys, threading, traceback
from importlib import import_module
from pathlib import Path
import torch, torch.distributed.tensor
from lowtide import _core

folder = Path(_core.__file__).parent
files = [file.relative_to(folder.parent).with_suffix("") for file in sorted(folder.rglob("*.py"))]
modules = [".".join(file.parts).removesuffix(".__init__") for file in files if not {"cli", "hf", "__main__"} & set(file.parts)]
rng = random.Random(int(sys.argv[1]))
sys.setswitchinterval(1e-5)
failures = []

def use(name, gate):
    gate.wait()
    try:
        if name == "lowtide":
            import lowtide
            lowtide.AdamW, lowtide.compat.bitsandbytes.optim.Adam8bit, lowtide.distributed.Signum
        else:
            import_module(name)
    except BaseException as error:
        failures.append(name + ": " + "".join(traceback.format_exception(error)))

tries = int(sys.argv[2])
faulthandler.dump_traceback_later(240, exit=True)
for _ in range(tries):
    for name in [name for name in sys.modules if name.split(".")[0] == "lowtide" and name != "lowtide._core"]:
        del sys.modules[name]
    one = rng.choice(modules)
    room = [name for name in modules if name.split(".")[:2] == one.split(".")[:2]]
    gate = threading.Barrier(3)
    threads = [threading.Thread(target=use, args=(name, gate)) for name in (one, rng.choice(room), rng.choice(modules))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
print(f"{tries} times three imports at once of {len(modules)} modules, {len(failures)} failed", *failures[:5], sep="; ")
sys.exit(bool(failures))
"""


def test_threads_that_import_modules_at_the_same_instant_get_them(seed, figure):
    """A process whose threads import Lowtide first. It forgets the modules and starts again, many times."""
    done = subprocess.run(
        [sys.executable, "-c", IMPORTS_AT_ONCE, str(seed), "25"], capture_output=True, text=True, timeout=300
    )
    assert done.returncode == 0, done.stdout + done.stderr
    figure(done.stdout.strip())


def test_a_build_for_another_processor_is_refused_by_name(tmp_path: Path) -> None:
    built_for, cpuinfo = tmp_path / "processor.txt", tmp_path / "cpuinfo"
    _check_processor(built_for, cpuinfo)  # a build for all processors
    built_for.write_text("avx2\navx512f\n")
    _check_processor(built_for, cpuinfo)  # a system that does not tell
    cpuinfo.write_text("processor : 0\nflags\t\t: sse4_2 avx2 avx512f fma\n")
    _check_processor(built_for, cpuinfo)
    cpuinfo.write_text("processor : 0\nflags\t\t: sse4_2 avx2 fma\n")
    with pytest.raises(ImportError, match="without avx512f, .*LOWTIDE_NATIVE=OFF"):
        _check_processor(built_for, cpuinfo)
