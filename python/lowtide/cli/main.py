"""The command line: the abilities of this machine, the memory that a run will take, and the speed of a step.

Exit status: 0; 1 if a plan does not fit; 2 for bad arguments or system errors, with one line on stderr.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Any

import typer
from typer.core import TyperGroup

from lowtide import _core
from lowtide.cli import text

# A command imports its implementation, and torch, only after its arguments are checked: `lowtide --help` needs neither.
FAILED, BAD = 1, 2
_RULES, _STATES = _core.rule_names(), _core.codec_names()
_PLANNED_RULES = [*_RULES, "muon"]


class _Commands(TyperGroup):
    """Reports errors as one line on stderr and status 2, without a traceback."""

    def main(self, *args: Any, **more: Any) -> Any:
        standalone = more.get("standalone_mode", True)
        try:
            status = super().main(*args, **{**more, "standalone_mode": False})
        except OSError as error:
            status = _complain(str(error).removeprefix(f"[Errno {error.errno}] "))  # the text repeats it in words
        except ModuleNotFoundError as error:
            if error.name != "torch":
                raise
            status = _complain("this command needs PyTorch, which is not installed: pip install torch")
        except (ValueError, TypeError, MemoryError, NotImplementedError) as error:
            status = _complain(str(error))
        except Exception as error:
            if not hasattr(error, "format_message"):  # click's own errors, for arguments
                raise
            context = getattr(error, "ctx", None)
            command = context.command_path if context else "lowtide"
            status = _complain(f"{error.format_message().rstrip('.')} (see {command} --help)")
        if not standalone:
            return status
        sys.exit(status if isinstance(status, int) else 0)


def _complain(message: str) -> int:
    print(f"lowtide: {text.printable(' '.join(message.split()))}", file=sys.stderr)
    return BAD


app = typer.Typer(
    cls=_Commands, add_completion=False, pretty_exceptions_enable=False, rich_markup_mode=None, no_args_is_help=False
)
Json = Annotated[bool, typer.Option("--json", help="One JSON object instead of tables.")]
Disk = Annotated[str | None, typer.Option(help="Directory for scratch files, best on a local SSD.", metavar="DIR")]
Rule = Annotated[str, typer.Option(help=f"One of {', '.join(_RULES)}.", metavar="NAME")]
PlannedRule = Annotated[str, typer.Option(help=f"One of {', '.join(_PLANNED_RULES)}.", metavar="NAME")]
State = Annotated[str, typer.Option(help=f"State format: one of {', '.join(_STATES)}.", metavar="NAME")]
Momentum = Annotated[
    float, typer.Option(help="For SGD and LARS (no state without it) and RMSprop.", metavar="X")
]
PlannedMomentum = Annotated[
    float | None,
    typer.Option(help="For SGD and LARS (no state without it), RMSprop, Muon. Default: the rule's.", metavar="X"),
]


def _version(wanted: bool) -> None:
    if wanted:
        print(_core.__version__)
        raise typer.Exit


@app.callback()
def _lowtide(
    version: Annotated[bool, typer.Option("--version", help="Print the version.", callback=_version, is_eager=True)] = False,
) -> None:
    """Optimizers for training large models on little memory."""


@app.command()
def info(disk: Disk = None, as_json: Json = False) -> None:
    """Show the abilities of this installation and machine. Measures rates for about four seconds."""
    from lowtide.cli import commands, render

    found = commands.describe_machine(disk)
    _out(found) if as_json else render.machine(found)


@app.command()
def plan(
    params: Annotated[str | None, typer.Option(help="Number of parameters, e.g. 7e9 or 7B.", metavar="N")] = None,
    hf_config: Annotated[
        Path | None, typer.Option(help="config.json of a transformers causal language model.", metavar="FILE")
    ] = None,
    shapes_file: Annotated[
        Path | None, typer.Option("--shapes", help="JSON: a list of shapes, or name: shape.", metavar="FILE")
    ] = None,
    rule: PlannedRule = "adamw",
    state: State = "dynamic8",
    host: Annotated[
        str | None, typer.Option(help="Host memory for state, e.g. 8GiB or 50%. Default: no limit.", metavar="SIZE")
    ] = None,
    device: Annotated[
        str | None, typer.Option(help="Device memory for state, e.g. 8GiB; parameters are on the device.", metavar="SIZE")
    ] = None,
    on: Annotated[str | None, typer.Option(help="The device, by torch's name; without: cuda.", metavar="NAME")] = None,
    step: Annotated[str | None, typer.Option(help="Who steps: device, host (the CPU) or auto.", metavar="NAME")] = None,
    link: Annotated[
        str | None, typer.Option(help="Rate of the device's link in each direction, e.g. 25GB a second.", metavar="SIZE")
    ] = None,
    dtype: Annotated[str, typer.Option(help="Parameter type: float32, bfloat16 or float16.", metavar="NAME")] = "float32",
    disk: Disk = None,
    disk_limit: Annotated[str | None, typer.Option(help="At most this much on disk.", metavar="SIZE")] = None,
    chunk: Annotated[str | None, typer.Option(help="Unit of transfer; by default chosen.", metavar="SIZE")] = None,
    momentum: PlannedMomentum = None,
    amsgrad: Annotated[bool, typer.Option("--amsgrad", help="For Adam and AdamW.")] = False,
    centered: Annotated[bool, typer.Option("--centered", help="For RMSprop.")] = False,
    max_unorm: Annotated[float, typer.Option(help="For LAMB and LARS; 0: a trust ratio instead.", metavar="X")] = 0.0,
    betas: Annotated[
        str | None, typer.Option(help="E.g. 0.9,0.95: 4 bits accept no long averages. Default: the rule's.", metavar="X,X")
    ] = None,
    alpha: Annotated[float | None, typer.Option(help="For RMSprop, AdEMAMix. Default: the rule's.", metavar="X")] = None,
    measure: Annotated[bool, typer.Option("--measure", help="Measure this machine, for seconds per step.")] = False,
    as_json: Json = False,
) -> None:
    """Say whether the optimizer's state will fit. Shows the memory of each state format; status 1 if the chosen one does not fit."""
    models = {"--params": params, "--hf-config": hf_config, "--shapes": shapes_file}
    given = [name for name, value in models.items() if value is not None]
    if len(given) != 1:
        raise ValueError(f"got {' and '.join(given) or 'no model'}, wanted one of --params, --hf-config, --shapes")
    count = None if params is None else text.count_of("--params", params)
    pair = None if betas is None else text.numbers_of("--betas", betas)
    text.check_name("--rule", rule, _PLANNED_RULES)
    text.check_name("--state", state, _STATES)
    text.check_name("--dtype", dtype, ["float32", "bfloat16", "float16"])
    for name, value in (("--step", step), ("--link", link), ("--on", on)):
        if device is None and value is not None:
            raise ValueError(f"got {name} without --device, wanted --device SIZE too")
    if device is not None and "%" in device:
        raise ValueError(f"--device: got {device!r}, wanted bytes such as 8GiB: the device need not be in this machine")
    if device is not None and (disk is not None or step == "auto") and not (measure and link is not None):
        raise ValueError("got --device with --disk or --step auto, wanted --link and --measure too: rates decide who steps")
    for name, size in (("--host", host), ("--disk-limit", disk_limit), ("--device", device), ("--link", link)):
        text.check_unit(name, size)
    if disk is not None and host is None:
        raise ValueError("got --disk without --host, wanted --host SIZE too: without it all state stays in host memory")

    import torch

    from lowtide.cli import commands, render
    from lowtide.memory.budgets import Memory, size_of
    from lowtide.planning import shapes

    assumed = ""
    if count is not None:
        model = shapes.of_count(count)
        assumed = f"{count:,} parameters are taken for matrices of 4096 by 4096 and a rest of rows of 4096"
    else:
        model = shapes.of_hf_config(hf_config) if hf_config else shapes.of_file(str(shapes_file))
    limited = any(value is not None for value in (host, disk, disk_limit, chunk, device))
    # As bytes, 0 may mean that no state is on the device.
    there = None if device is None else size_of("--device", device)
    memory = Memory(device=there, host=host, disk=disk, disk_limit=disk_limit, chunk=chunk, step=step) if limited else None
    rate = 0.0 if link is None else float(size_of("--link", link))
    where = "cpu" if device is None else on or "cuda"
    hyper = {"momentum": momentum, "amsgrad": amsgrad, "centered": centered, "max_unorm": max_unorm, "betas": pair,
             "alpha": alpha}  # fmt: skip
    found = commands.plan_formats(model, rule, state, memory, hyper, measure, where, getattr(torch, dtype), rate)
    if as_json:
        plans = {name: _plan_dict(one) for name, one in found.plans.items()}
        _out({
            "assumed": assumed, "rule": rule, "chosen": state, "fits": found.chosen.fits, "rates": asdict(found.rates),
            "free_on_disk": found.free_on_disk, "plans": plans,
        })  # fmt: skip
    else:
        render.formats(found, assumed)
    if not found.chosen.fits:
        raise typer.Exit(FAILED)


@app.command()
def bench(
    elements: Annotated[str, typer.Option(help="Elements of the stepped parameter.", metavar="N")] = "16Mi",
    rule: Rule = "adamw",
    state: State = "dynamic8",
    disk: Disk = None,
    rounds: Annotated[int, typer.Option(help="Rounds; every contender runs once in each.", min=1, max=1000, metavar="N")] = 15,
    momentum: Momentum = 0.9,
    as_json: Json = False,
) -> None:
    """Time a step, torch's fused step and the memory's rate. All in the same run; --disk: also with state on disk."""
    count = text.count_of("--elements", elements)
    text.check_name("--rule", rule, _RULES)
    text.check_name("--state", state, _STATES)

    from lowtide.cli import quick_bench, render

    found = quick_bench.run(count, rule, state, disk, rounds, momentum)
    _out(asdict(found)) if as_json else render.bench(found)


@app.command()
def inspect(file: Annotated[Path, typer.Argument(help="A file that Optimizer.save wrote.")], as_json: Json = False) -> None:
    """Show the contents of a checkpoint file. Checks its header, not its data."""
    from lowtide.cli import commands, render

    found = commands.describe_checkpoint(file)
    _out(found) if as_json else render.checkpoint(found)


def _plan_dict(one: Any) -> dict[str, Any]:
    hidden = ("rates", "memories", "budgets", "names", "rule", "by_host")
    return {key: value for key, value in asdict(one).items() if key not in hidden}


def _out(value: dict[str, Any]) -> None:
    typer.echo(text.json_text(value))


def main(arguments: Sequence[str] | None = None) -> None:
    """The entry point: exits with the status. arguments: the process's by default."""
    app(None if arguments is None else list(arguments), prog_name="lowtide")
