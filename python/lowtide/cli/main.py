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
    model: Annotated[
        str,
        typer.Option(
            help="A name such as Llama-3.1-8B or Qwen/Qwen2.5-7B, a folder with config.json, such a file, a JSON file of shapes, or a "
            "number of parameters such as 7e9.",
            metavar="MODEL",
        ),
    ],
    gpu: Annotated[str | None, typer.Option(help="Device memory, e.g. 24GB. Without it the CPU trains.", metavar="SIZE")] = None,
    ram: Annotated[str | None, typer.Option(help="Host memory for the process, e.g. 64GB. Default: no limit.", metavar="SIZE")] = None,
    disk: Annotated[
        str | None, typer.Option(help="Disk for state, e.g. 1TB, or a directory such as /scratch. Default: no disk.", metavar="SIZE")
    ] = None,
    weights: Annotated[str, typer.Option(help="Type of weights and gradients: fp32, bf16 or fp16.", metavar="NAME")] = "bf16",
    master: Annotated[
        str, typer.Option(help="residual16, residual8, stochastic or none; auto: residual16 for 16 bits.", metavar="NAME")
    ] = "auto",
    rule: PlannedRule = "adamw",
    state: State = "dynamic8",
    seq: Annotated[int, typer.Option(help="Tokens of a sequence.", metavar="N")] = 2048,
    batch: Annotated[int, typer.Option(help="Sequences of a forward pass.", metavar="N")] = 1,
    checkpointing: Annotated[bool, typer.Option("--checkpointing", help="Compute layers again in backward.")] = False,
    accumulate: Annotated[bool, typer.Option("--accumulate", help="Keep gradients over several backward passes.")] = False,
    step_in_backward: Annotated[
        bool, typer.Option("--step-in-backward", help="Step and free gradients during backward.")
    ] = False,
    stream: Annotated[
        bool, typer.Option("--stream", help="Keep weights in host memory (with --gpu) or on the disk, and load two or three layers at a time.")
    ] = False,
    momentum: PlannedMomentum = None,
    amsgrad: Annotated[bool, typer.Option("--amsgrad", help="For Adam and AdamW.")] = False,
    centered: Annotated[bool, typer.Option("--centered", help="For RMSprop.")] = False,
    betas: Annotated[
        str | None, typer.Option(help="E.g. 0.9,0.95: 4-bit state needs short averages. Default: the rule's.", metavar="X,X")
    ] = None,
    alpha: Annotated[float | None, typer.Option(help="For RMSprop, AdEMAMix. Default: the rule's.", metavar="X")] = None,
    as_json: Json = False,
) -> None:
    """Say whether a training fits. Counts weights, gradients, masters, state and activations; status 1 if they do not fit."""
    pair = None if betas is None else text.numbers_of("--betas", betas)
    text.check_name("--rule", rule, _PLANNED_RULES)
    text.check_name("--state", state, _STATES)
    for name, size in (("--gpu", gpu), ("--ram", ram), ("--disk", disk)):
        text.check_unit(name, size)

    from lowtide.planning.plan import plan as planned  # imports no torch, except for Muon

    found = planned(
        model, gpu=gpu, ram=ram, disk=disk, weights=weights, master=None if master == "none" else master, rule=rule, state=state,
        seq=seq, batch=batch, checkpointing=checkpointing, accumulate=accumulate, step_in_backward=step_in_backward, stream=stream,
        momentum=momentum, amsgrad=amsgrad or None, centered=centered or None, betas=pair, alpha=alpha,
    )  # fmt: skip
    if as_json:
        _out(found.as_dict())
    else:
        from lowtide.cli import render

        render.plan(found)
    if not found.fits:
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
    count = text.count("--elements", elements)
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


def _out(value: dict[str, Any]) -> None:
    typer.echo(text.json_text(value))


def main(arguments: Sequence[str] | None = None) -> None:
    """The entry point: exits with the status. arguments: the process's by default."""
    app(None if arguments is None else list(arguments), prog_name="lowtide")
