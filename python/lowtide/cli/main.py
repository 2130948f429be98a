"""The command line: what this machine can do, how much memory a run takes, and how fast a step is.

Exit status: 0; 1 if a plan does not fit; 2 for bad arguments and system errors, with one line on stderr; 130 after Ctrl-C; 141
if nobody reads the output. The last two are what a shell reports for these signals.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import sys
from collections.abc import Callable, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any, NamedTuple, NoReturn

from lowtide import _core
from lowtide.checks.hints import check_name, hint
from lowtide.cli import text
from lowtide.cli.waiting import Waiting
from lowtide.options import MASTERS
from lowtide.planning.models import state_of

# A command checks its arguments before it imports its implementation and, if needed, torch.
FAILED, BAD, STOPPED, UNREAD = 1, 2, 130, 141
_RULES, _STATES = _core.rule_names(), _core.codec_names()
_PLANNED_RULES = [*_RULES, "muon"]
_MASTERS = [*MASTERS, "none"]
_DEFAULT = "The default is the rule's own."


class _Parser(argparse.ArgumentParser):
    """Raises ValueError for bad arguments, and OSError if the help cannot be written, where argparse keeps silent."""

    def error(self, message: str) -> NoReturn:
        raise ValueError(f"{message.removeprefix('argument ')} (see {self.prog} --help)")

    def print_help(self, file: Any = None) -> None:
        print(self.format_help(), end="", file=file)


class Command(NamedTuple):
    what: str  # sentences; the first is shown in the list of commands
    add_options: Callable[[argparse.ArgumentParser], None]
    run: Callable[[argparse.Namespace], int]


def _info_options(add: argparse.ArgumentParser) -> None:
    _add_disk(add, "Measure the disk of this directory, too.")


def _info(args: argparse.Namespace) -> int:
    with Waiting("lowtide") as wait:
        wait.for_torch()
        from lowtide.cli.machine import describe

        found = describe(args.disk, wait)
    _show("machine", found, args.json)
    return 0


def _plan_options(add: argparse.ArgumentParser) -> None:
    add.add_argument(
        "MODEL", nargs="?",
        help="The model: a name such as Llama-3.1-8B or Qwen/Qwen2.5-7B, a folder with a config.json, such a file, a JSON file of shapes, or a "
        "number of parameters such as 7B or 7e9.",
    )  # fmt: skip
    sized = add.add_argument_group("memory", "Sizes are written as 24GB or 1.5GiB; shares are not taken.")
    option = sized.add_argument
    option("--gpu", metavar="SIZE", help="The memory of the device, for all that a training takes. Without it the CPU trains.")
    option("--ram", metavar="SIZE", help="The host memory for the whole process. Without it there is no limit.")
    option("--disk", metavar="SIZE|DIR", help="The space for state on a disk, or a directory whose free space counts. Without it there is no disk.")
    option = add.add_argument_group("training").add_argument
    option("--model", metavar="MODEL", help="The same as MODEL.")
    option("--weights", metavar="TYPE", default="bf16", help="The type of weights and gradients: fp32, bf16 (the default) or fp16.")
    option(
        "--master", metavar="NAME", default="auto",
        help=f"What keeps weights of 16 bits exact: {', '.join(_MASTERS)}. The default is auto: stochastic rounding, which takes no bytes.",
    )  # fmt: skip
    _add_rule(option, _PLANNED_RULES)
    option("--seq", metavar="N", type=_whole, default=2048, help="The tokens of a sequence. The default is 2048.")
    option("--batch", metavar="N", type=_whole, default=1, help="The sequences of a forward pass. The default is 1.")
    option("--checkpointing", action="store_true", help="Layers are computed again in backward instead of kept.")
    option("--accumulate", action="store_true", help="Gradients are kept over several backward passes.")
    option("--step-in-backward", action="store_true", help="Gradients are stepped and freed during backward.")
    option(
        "--stream", action="store_true",
        help="Weights that do not fit are kept in host memory (with --gpu) or on the disk (without), and two or three layers are loaded at a time.",
    )  # fmt: skip
    option("--momentum", metavar="X", type=_number, help=f"The momentum of SGD and LARS (no state without it), RMSprop or Muon. {_DEFAULT}")
    option("--amsgrad", action="store_const", const=True, help="Adam and AdamW keep the maximum of second moments.")
    option("--centered", action="store_const", const=True, help="RMSprop keeps the mean of gradients.")
    option("--betas", metavar="X,X", help=f"The betas, as in 0.9,0.95: state of 4 bits needs short averages. {_DEFAULT}")
    option("--alpha", metavar="X", type=_number, help=f"The alpha of RMSprop or AdEMAMix. {_DEFAULT}")


def _plan(args: argparse.Namespace) -> int:
    given = {name: value for name, value in vars(args).items() if name not in ("MODEL", "model", "json")}
    if (args.MODEL is None) == (args.model is None):
        got = "no model" if args.model is None else f"{args.MODEL!r} and --model {args.model!r}"
        raise ValueError(f"got {got}, wanted one model, as in: lowtide plan Llama-3.1-8B --gpu 24GB (see lowtide plan --help)")
    if args.betas is not None:
        given["betas"] = text.numbers_of("--betas", args.betas)
    check_name("--rule", args.rule, _PLANNED_RULES)
    given["state"] = state_of("--state", args.state, _STATES)
    check_name("--master", args.master, _MASTERS)
    given["master"] = None if args.master == "none" else args.master

    from lowtide.planning.plan import plan as planned  # imports torch only for Muon

    with Waiting("lowtide") as wait:
        if args.rule == "muon":
            wait.for_torch()
        wait("reading the model", perhaps=True)
        found = planned(args.model if args.MODEL is None else args.MODEL, **given)
    _show("plan", found, args.json, found.as_dict)
    return 0 if found.fits else FAILED


def _bench_options(add: argparse.ArgumentParser) -> None:
    option = add.add_argument
    option("--elements", metavar="N", default="16Mi", help="The elements of the stepped parameter. The default is 16Mi.")
    _add_rule(option, _RULES)
    _add_disk(add, "Measure a step with all state in this directory, too.")
    option("--rounds", metavar="N", type=_whole, default=15, help="The number of rounds, in each of which every contender runs once. The default is 15.")
    option("--momentum", metavar="X", type=_number, default=0.9, help="The momentum of SGD and LARS (no state without it) and RMSprop. The default is 0.9.")
    option("--details", action="store_true", help="Show the memory's rate, the step without checks, and what bounds a step, too.")


def _bench(args: argparse.Namespace) -> int:
    count = text.count("--elements", args.elements)
    check_name("--rule", args.rule, _RULES)
    state = state_of("--state", args.state, _STATES)
    if not 1 <= args.rounds <= 1000:
        raise ValueError(f"--rounds: got {args.rounds}, wanted 1 to 1000")
    with Waiting("lowtide") as wait:
        wait.for_torch()
        from lowtide.cli import quick_bench

        found = quick_bench.run(count, args.rule, state, args.disk, args.rounds, args.momentum, args.details, wait)
    _show("bench", found, args.json, lambda: asdict(found))
    return 0


def _inspect_options(add: argparse.ArgumentParser) -> None:
    add.add_argument("FILE", type=Path, help="A file that Optimizer.save wrote.")


def _inspect(args: argparse.Namespace) -> int:
    from lowtide.state.metadata import describe_checkpoint

    _show("checkpoint", describe_checkpoint(args.FILE), args.json)
    return 0


COMMANDS = {
    "info": Command("Show the abilities of this installation and machine. Measures rates for some seconds.", _info_options, _info),
    "plan": Command(
        "Say whether a training fits. Counts weights, gradients, masters, state and activations. The exit status is 1 if they do not fit.",
        _plan_options, _plan,
    ),
    "bench": Command(
        "Time a step beside torch's fused step and bitsandbytes, if it is installed. All are measured in the same run.", _bench_options, _bench
    ),
    "inspect": Command("Show the contents of a checkpoint file. Checks its header, not its data.", _inspect_options, _inspect),
}  # fmt: skip


def _whole(given: str) -> int:
    try:
        return int(given)
    except ValueError:
        raise argparse.ArgumentTypeError(f"got {given!r}, wanted a whole number") from None


def _number(given: str) -> float:
    try:
        return float(given)
    except ValueError:
        raise argparse.ArgumentTypeError(f"got {given!r}, wanted a number") from None


def _add_disk(add: argparse.ArgumentParser, what: str) -> None:
    add.add_argument("--disk", metavar="DIR", help=f"{what} A local SSD is best.")


def _add_rule(option: Callable[..., Any], rules: Sequence[str]) -> None:
    option("--rule", metavar="NAME", default="adamw", help=f"The optimizer: {', '.join(rules)}. The default is adamw.")
    option("--state", metavar="NAME", default="dynamic8", help=f"The state format: {', '.join(_STATES)}. The default is dynamic8.")


def parser_of(name: str) -> argparse.ArgumentParser:
    """The parser of a command."""
    command = COMMANDS[name]
    made = _Parser(f"lowtide {name}", description=command.what, allow_abbrev=False, add_help=False)
    command.add_options(made)
    made.add_argument("--json", action="store_true", help="Print one JSON object instead of tables.")
    made.add_argument("-h", "--help", action="help", help="Print this help.")
    return made


def _overview() -> str:
    rows = [(name, f"{command.what.partition('. ')[0].rstrip('.')}.") for name, command in COMMANDS.items()]
    return "\n".join([
        "Optimizers for training large models on little memory.", "", "Usage: lowtide COMMAND [OPTIONS]", "", "Commands:",
        *text.pairs(rows, "  "), "", "Options:", *text.pairs([("--version", "Print the version."), ("-h, --help", "Print this help.")], "  "), "",
        "lowtide COMMAND --help has the options of a command.",
    ])  # fmt: skip


def _run(given: Sequence[str]) -> int:
    first, *rest = given or ["--help"]
    if first == "help" and rest:
        first, rest = rest[0], ["--help"]
    if first in ("-h", "--help", "help"):
        print(_overview())
        return 0
    if first == "--version":
        print(_core.__version__)
        return 0
    if first not in COMMANDS:
        raise ValueError(f"got {first!r}{hint(first, [*COMMANDS, '--version', '--help'])}, wanted {', '.join(COMMANDS)} (see lowtide --help)")
    parser = parser_of(first)
    try:
        args, unknown = parser.parse_known_args(rest)
    except SystemExit:  # argparse has printed the help
        return 0
    options = [f"--{name.replace('_', '-')}" for name in vars(args) if name.islower()]
    if unknown:
        parser.error(f"got {unknown[0]!r}{hint(unknown[0], options)}, which is no option of this command")
    try:
        return COMMANDS[first].run(args)
    except (ValueError, TypeError) as error:  # the library names arguments, not options
        name, colon, more = str(error).partition(":")
        option = f"--{name.replace('_', '-')}"
        raise ValueError(f"{option if colon and option in options else name}{colon}{more}") from error


def _status(given: Sequence[str]) -> int:
    """Runs the command; reports errors as one line on stderr and status 2, without a traceback."""
    try:
        status = _run(given)
        if sys.stdout:  # None where it is closed
            sys.stdout.flush()
        return status
    except KeyboardInterrupt:
        return STOPPED
    except BrokenPipeError:  # as in `lowtide plan ... | head -1`: the reader wants no error
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return UNREAD
    except OSError as error:
        return _complain(str(error).removeprefix(f"[Errno {error.errno}] "))  # the text says it in words
    except ModuleNotFoundError as error:
        if error.name != "torch":
            raise
        return _complain("this command needs PyTorch, which is not installed: pip install torch")
    except (ValueError, TypeError, MemoryError, NotImplementedError) as error:
        return _complain(str(error))


def _complain(message: str) -> int:
    with contextlib.suppress(OSError):  # nobody may read stderr
        if sys.stderr:
            print(f"lowtide: {text.printable(' '.join(message.split()))}", file=sys.stderr)
    return BAD


def _show(name: str, found: Any, as_json: bool, values: Callable[[], dict[str, Any]] | None = None) -> None:
    """Prints the table that `render` makes under this name, or JSON of `values()`, which defaults to the dict `found`."""
    from lowtide.cli import render

    print(text.json_text(values() if values else found) if as_json else getattr(render, name)(found), flush=True)


def main(arguments: Sequence[str]) -> NoReturn:
    """Runs the command and exits with the status."""
    sys.exit(_status(arguments))


def program() -> NoReturn:
    """The entry point of a process. Ends it at once: Python would take seconds to unload torch."""
    os._exit(_status(sys.argv[1:]))
