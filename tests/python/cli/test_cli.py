"""The command line: its output, its exit status, and one-line errors."""

import json
import os
import re
import subprocess
import sys
import tracemalloc
from dataclasses import replace

import lowtide
import pytest
import torch
from lowtide import _core
from lowtide.cli import core_model, machine, quick_bench
from lowtide.cli.main import COMMANDS, main, parser_of
from lowtide.cli.text import count
from lowtide.planning.models import elements, model_of

from support import CODECS, FOUR_BITS, trained


MEASURE = ("info", "bench")


@pytest.fixture
def run(monkeypatch, capsys):
    """Runs a command and checks what all commands promise: the status, one line on stderr for errors, lines that fit the width,
    and no other words on stderr, except from commands that measure."""

    def call(*arguments, status=0, columns=80, raw=False):
        monkeypatch.setenv("COLUMNS", str(columns))
        capsys.readouterr()
        with pytest.raises(SystemExit) as ended:
            main([str(argument) for argument in arguments])
        out, err = capsys.readouterr()
        err = re.sub(r"^lowtide: reading the model\.*\n", "", err, flags=re.MULTILINE)  # where a plan takes half a second
        assert ended.value.code == status, out + err
        assert max(map(len, out.splitlines()), default=0) <= columns or "--json" in arguments, out
        assert "\x1b" not in out + err
        assert not any(line.endswith(" ") for line in out.splitlines())
        if status == 2:
            assert err.count("\n") == 1 and err.startswith("lowtide: "), err
            assert out == ""
            return err
        helps = not arguments or "help" in arguments or "-h" in arguments or "--help" in arguments
        assert bool(err) == (arguments[:1] in [(name,) for name in MEASURE] and not helps), err
        assert all(line.startswith("lowtide: ") for line in err.splitlines())
        return json.loads(out) if "--json" in arguments and not raw else out

    return call


@pytest.mark.parametrize("columns", [80, 120])
def test_plan_says_what_fits_and_what_would(run, columns):
    text = run("plan", "--model", "Llama-3.1-8B", "--gpu", "24GB", "--ram", "64GB", "--disk", "1TB", status=1, columns=columns)
    assert "Does not fit: device lacks" in text and "activations, estimated" in text and "process, assumed" in text
    assert "The smallest change that fits: --checkpointing --step-in-backward\n" in text
    again = ("--checkpointing", "--step-in-backward")
    text = run("plan", "--model", "Llama-3.1-8B", "--gpu", "24GB", "--ram", "64GB", "--disk", "1TB", *again, columns=columns)
    assert "Fits." in text and "smallest" not in text
    assert "\nOptimizer: state='dynamic8', master='auto', step_in_backward=True\n" in text
    text = run("plan", "--model", "Llama-3.1-70B", "--gpu", "8GB", "--ram", "32GB", "--disk", "1TB", status=1, columns=columns)
    assert "(without --gpu)" in " ".join(text.split()) and "lowtide.stream" in text


def test_plan_agrees_with_the_library(run, tmp_path):
    given = {"gpu": "12GB", "ram": "20GB", "disk": "1TB", "weights": "bfloat16", "master": "residual8", "seq": 512, "batch": 2}
    options = [word for name, value in given.items() for word in (f"--{name}", value)]
    found = run("plan", "--model", "Qwen2.5-7B", *options, "--stream", "--step-in-backward", "--checkpointing", "--json")
    plan = lowtide.plan("Qwen2.5-7B", **given, stream=True, step_in_backward=True, checkpointing=True)
    assert found == json.loads(json.dumps(plan.as_dict())) and found["lines"]["weights"]["host"] == 2 * plan.elements
    there = run("plan", "--model", "1e6", "--ram", "2GB", "--disk", tmp_path, "--json")
    assert 0 < there["given"]["disk"] < 2**50


def test_plan_takes_the_options_of_rules(run):
    def state(*options, status=0):
        return run("plan", "--model", "1e6", "--master", "none", *options, "--json", status=status)["lines"]["state"]["host"]

    plain = state()
    assert state("--amsgrad") > state("--state", "dynamic4", "--betas", "0.9,0.999") and state("--amsgrad") > 1.4 * plain
    assert state("--rule", "rmsprop", "--centered", "--momentum", "0.9") > 2.9 * state("--rule", "rmsprop")
    assert state("--rule", "rmsprop", "--centered", "--alpha", "0.9", "--state", "dynamic4") < plain
    assert state("--rule", "muon") < plain == state("--rule", "adamw")


def test_plan_of_shapes_and_configs(run, tmp_path):
    listed, named = tmp_path / "list.json", tmp_path / "named.json"
    listed.write_text("[[512, 256], [256], []]")
    named.write_text('{"weight": [512, 256], "bias": [256], "scale": []}')
    plans = [run("plan", "--model", path, "--json") for path in (listed, named)]
    assert plans[0]["lines"] == plans[1]["lines"] and plans[0]["elements"] == 512 * 256 + 256 + 1
    assert "Activations are not counted: shapes say" in " ".join(run("plan", "--model", listed).split())
    config = tmp_path / "config.json"
    config.write_text(json.dumps({
        "model_type": "llama", "hidden_size": 64, "intermediate_size": 128, "num_hidden_layers": 2,
        "num_attention_heads": 4, "num_key_value_heads": 2, "vocab_size": 1000,
    }))  # fmt: skip
    layer = 64 * 64 * 2 + 64 * 32 * 2 + 3 * 64 * 128 + 2 * 64
    for path in (config, tmp_path):
        assert run("plan", "--model", path, "--json")["elements"] == 2 * layer + 2 * 64000 + 64


def test_info(run, tmp_path, monkeypatch):
    rates = lowtide.measure_rates(tmp_path, elements=4096, disk_bytes="16MiB", seconds=0.001)
    monkeypatch.setattr("lowtide.cli.machine.measure_rates", lambda *_: rates)
    found = run("info", "--disk", tmp_path, "--json")
    assert found["version"] == lowtide.__version__ and found["cpu_targets"] == _core.cpu_targets()
    assert found["ram_total"] >= found["ram_free"] > 0 and found["memory_rate"] > 1e8
    assert set(found["step_rates"]) == set(CODECS + FOUR_BITS) and found["disk"]["free_bytes"] > 0
    text = run("info", "--disk", tmp_path)
    assert lowtide.__version__ in text and "GB/s" in text and "free" in text
    assert all(f"backend {name}" in text for name in lowtide.backends())
    assert "--disk DIR" in run("info")
    run("info", "--disk", tmp_path, columns=120)
    monkeypatch.setattr(machine, "others_share", lambda _: 0.4)
    assert "Busy machine? other programs took 40% of the processors. Run it again when idle." in " ".join(run("info").split())
    monkeypatch.setattr(machine, "others_share", lambda _: 0.05)
    assert "Busy" not in run("info") and run("info", "--json")["doubts"] == []


def test_others_are_those_that_are_not_this_process(figure):
    """Two processes each use a processor while this one sleeps, on a machine with two or more processors."""
    before = machine.processor_seconds()
    busy = "import time\nend = time.monotonic() + 3\nwhile time.monotonic() < end: pass"
    programs = [subprocess.Popen([sys.executable, "-c", busy]) for _ in range(2)]
    for program in programs:
        program.wait(timeout=60)
    share = machine.others_share(before)
    figure(f"two busy programs on {os.cpu_count()} processors: {share:.0%} of them")
    assert share > 0.5 * min(2, os.cpu_count()) / os.cpu_count()  # they work for most of the time that they live


@pytest.mark.parametrize("rule", _core.rule_names())
def test_bench(run, tmp_path, rule):
    found = run("bench", "--rule", rule, "--elements", "256Ki", "--rounds", "2", "--json")
    names = [line["name"] for line in found["lines"]]
    assert all(line["seconds"] >= line["fastest"] > 0 and line["moved"] > 0 for line in found["lines"])
    assert any(name.startswith("torch") for name in names) == (rule in ("adam", "adamw", "sgd", "adagrad"))
    assert sum(name.startswith("lowtide") for name in names) == 2 and found["disk"] is None and found["model"] is None


def test_bench_shows_what_is_asked_for(run, monkeypatch):
    """bitsandbytes has a row if it can step, only from the first rounds. Memory and the unchecked step are details."""
    steps = []

    class Theirs:
        def __init__(self, params, lr):
            self.params = params

        def step(self):
            steps.append(self.params[0].shape)

    monkeypatch.setattr(quick_bench, "_bitsandbytes", lambda rule, hyper, wait: Theirs)
    text = run("bench", "--elements", "256Ki", "--rounds", "5")
    table = text.split("\n\n")[1].splitlines()
    assert [line.split("  ")[0] for line in table[1:]] == ["torch AdamW, fused, fp32", "bitsandbytes Theirs", "lowtide AdamW, dynamic8"]
    assert table[0].endswith("x torch  x bitsandbytes") and "one core" not in text
    assert len(steps) == 2 + 3 and {*steps} == {(64, 4096)}
    details = run("bench", "--elements", "256Ki", "--rounds", "2", "--details")
    assert all(words in details for words in ("memory: a += b", "unchecked", "GB/s  memory", "in the cache of one core", "cores that saturate"))
    assert details.split("\n\n")[1].splitlines()[0].endswith("x torch  x bitsandbytes"), "a row is a line of 80 columns"
    model = run("bench", "--elements", "256Ki", "--rounds", "2", "--details", "--json")["model"]
    assert model["cache_seconds"] > 0 and model["all_rate"] >= model["one_rate"] > 0 and model["saturating"] >= 1
    assert model["core_rate"] == pytest.approx(model["bytes"] / model["cache_seconds"])
    assert "bitsandbytes" not in run("bench", "--elements", "256Ki", "--rounds", "2", "--state", "fp32")
    momenta = []

    class Lars(quick_bench.CLASSES["lars"]):
        def __init__(self, params, **options):
            super().__init__(params, **options)
            momenta.append(self.param_groups[0]["momentum"])

    monkeypatch.setitem(quick_bench.CLASSES, "lars", Lars)
    run("bench", "--rule", "lars", "--momentum", "0.5", "--state", "fp32", "--elements", "4Ki", "--rounds", "1")
    assert momenta == [0.5, 0.5]


def test_bench_beside_bitsandbytes(run):
    pytest.importorskip("bitsandbytes")
    assert "bitsandbytes AdamW8bit" in run("bench", "--elements", "4Ki", "--rounds", "2")


@pytest.mark.parametrize(
    ("nanoseconds", "one", "every", "threads", "saturating", "best"),
    [
        (1.0, 30e9, 50e9, 2, 4, 0.5),  # a core uses up 16 GB/s: four of them 64 of 50, and two are bound by arithmetic
        (1.0, 30e9, 50e9, 128, 4, 0.32),  # bound by memory
        (0.25, 30e9, 50e9, 2, 2, 0.32),  # a core could use up 64 GB/s, and draws 30
        (0.25, 50e9, 50e9, 1, 1, 0.32),
    ],
)
def test_cores_that_saturate_memory(nanoseconds, one, every, threads, saturating, best):
    """16 bytes per element."""
    model = core_model.model_of(nanoseconds * 1e-9, 16.0, one, every, threads)
    assert model.saturating == saturating and model.element_seconds == pytest.approx(best * 1e-9)


def test_bench_doubts_what_an_idle_machine_would_not_show():
    memory, unchecked, checked = (quick_bench.Line(name, 1.0, 1.0, 0.1, 100) for name in ("memory", "unchecked", "checked"))
    assert quick_bench.doubts_of([memory, unchecked, checked]) == ()
    for lines, words in (
        ([memory, replace(unchecked, spread=0.4), checked], "spread by up to 40%"),
        ([memory, replace(unchecked, moved=201), checked], "201% of what the memory gave"),
        ([memory, replace(unchecked, seconds=1.1), checked], "faster than the unchecked"),
    ):
        (found,) = quick_bench.doubts_of(lines)
        assert words in found
    assert quick_bench.spread_of([1, 2, 3, 4, 100]) == 2 / 3 and quick_bench.spread_of([7.0]) == 0


def test_bench_on_disk(run, tmp_path):
    text = run("bench", "--elements", "1Mi", "--rounds", "2", "--disk", tmp_path)
    assert "Medians of 2 rounds" in text and "All state on disk" in text and "the file alone" in text and "predicted" in text
    assert [path.name for path in tmp_path.iterdir()] == [".lowtide.lock"]


def test_inspect(run, tmp_path):
    params, opt = trained(state="dynamic8")
    opt.save(tmp_path / "a.lowtide")
    found = run("inspect", tmp_path / "a.lowtide", "--json")
    assert found["rule"] == "adamw" and found["params"] == len(params) and found["most_steps"] == 3
    assert sum(entry["bytes"] for entry in found["states"].values()) == opt.report()["state_bytes"]
    assert len(found["groups"]) == 2 and found["bytes"] == (tmp_path / "a.lowtide").stat().st_size
    assert "dynamic8" in run("inspect", tmp_path / "a.lowtide")
    (tmp_path / "b.lowtide").write_bytes(b"no checkpoint")
    run("inspect", tmp_path / "b.lowtide", status=2)
    run("inspect", tmp_path / "missing", status=2)


def test_nothing_of_a_file_reaches_the_terminal_as_a_command(run, tmp_path):
    """Control characters (ESC, the one-byte CSI, BEL, line ends) and marks that reverse the writing direction, in keys and
    values of groups, in a rule's name and in a file's. Tables, JSON and errors show them escaped."""
    evil = "ad\x1b[2J\x9b31m\x07\u202ew\x7f"
    _, opt = trained()
    opt.param_groups[0][evil] = f"{evil}\n{evil}"
    path = tmp_path / "evil\x1b[2J.lowtide"
    opt.save(path)
    data = path.read_bytes()
    assert data.count(b'"adamw"') > 0
    refused = tmp_path / "rule.lowtide"
    raw = run("inspect", path, "--json", raw=True)
    assert json.loads(raw)["groups"][0][evil] == f"{evil}\n{evil}"
    refused.write_bytes(data.replace(b'"adamw"', b'"a\\u001b"', 1))
    shown = [run("inspect", path), raw, run("inspect", refused, status=2), run("inspect", tmp_path / f"no {evil}", status=2)]
    for text in shown:
        strange = {one for one in text if not one.isprintable()} - {"\n"}
        assert not strange, strange
    assert "\\x1b[2J" in shown[0] and "\\u001b[2J" in raw


def test_metadata_of_many_values_takes_neither_time_nor_memory(run, tmp_path, figure):
    """24 MB of empty lists would take Python half a gigabyte; 100,000 groups, minutes for the table. Lists are counted and
    refused before they are parsed (`load` raises; `inspect` shows the rest), and the table has the first 50 groups. Nesting
    ends at Python's recursion depth. tracemalloc measures Python's own memory."""
    opt = lowtide.AdamW([torch.nn.Parameter(torch.ones(4))])
    path = tmp_path / "many.lowtide"
    worst = 0
    for part in ("[]", "1"):
        opt._core.save(str(path), '{"lowtide_groups":[{"x":[' + ",".join([part] * (24_000_000 // (len(part) + 1))) + "]}]}")
        size = path.stat().st_size
        tracemalloc.start()
        found = run("inspect", path, "--json")
        worst = max(worst, tracemalloc.get_traced_memory()[1])
        tracemalloc.stop()
        assert found["groups"] == [] and found["params"] == 1
        with pytest.raises(ValueError, match="metadata of .* lists and .* values"):
            opt.load(path)
    assert worst < 2.5 * size  # the text once, and once while it is handed over
    opt._core.save(str(path), '{"lowtide_groups":' + "[" * 1_000_000 + "]" * 1_000_000 + "}")
    with pytest.raises(ValueError, match="not JSON"):
        opt.load(path)
    groups = [{"lr": 0.1, "params": 0, "n": i, "x": "y" * 5000 if i == 7 else ""} for i in range(20_000)]
    opt._core.save(str(path), json.dumps({"lowtide_groups": groups}))
    text = run("inspect", path)
    assert "group 49 " in text and "group 50 " not in text and "19,950 more" in text and "y" * 2000 not in text
    with pytest.raises(ValueError, match="20000 groups"):
        opt.load(path)
    figure(f"24 MB of values: {worst / 1e6:.0f} MB at most; 20,000 groups: a table of {len(text.splitlines())} lines")


def test_the_program_may_be_called_as_a_function(capsys, tmp_path):
    """With the arguments in a list. Errors give their status then, too."""
    for arguments, status, words in ((["--version"], 0, lowtide.__version__), (["inspect", str(tmp_path / "no")], 2, "no")):
        with pytest.raises(SystemExit) as ended:
            main(arguments)
        said = capsys.readouterr()
        assert ended.value.code == status and words in said.out + said.err


def test_bad_arguments_have_status_2_and_one_line(run, tmp_path, figure):
    (tmp_path / "file").write_text("{")
    (tmp_path / "number.json").write_text("7")
    (tmp_path / "sizes.json").write_text("[7]")
    (tmp_path / "digits.json").write_text(f"[[{'9' * 5000}]]")
    (tmp_path / "config.json").write_text('{"model_type": "no such model"}')
    (tmp_path / "link").symlink_to(tmp_path, target_is_directory=True)
    plan = ["plan", "--model", "1e6"]
    cases = {
        "--nope": ["--nope"],
        "'nope'": ["nope"],
        "did you mean 'plan'?": ["paln"],
        "did you mean '--version'?": ["--versio"],
        "'--bad' (did you mean '--betas'?), which is no option of this command": [*plan, "--bad"],
        "'--rma' (did you mean '--ram'?), which is no option of this command": [*plan, "--rma", "8GB"],
        "wanted one model, as in: lowtide plan": ["plan"],
        "got '7B' and --model '1e6', wanted one model": [*plan, "7B"],
        "--weights: got 'int8'": [*plan, "--weights", "int8"],
        "got 'many', wanted a folder": ["plan", "--model", "many"],
        "got 'Lama-3.1-8B' (did you mean 'Llama-3.1-8B'?)": ["plan", "Lama-3.1-8B"],
        "'0'": ["plan", "--model", "0"],
        "'1e30'": ["plan", "--model", "1e30"],
        "got ''": ["plan", "--model", ""],
        "parameters, wanted": ["plan", "--model", "9e18"],
        "adamax": [*plan, "--rule", "adamax"],
        "int3": [*plan, "--state", "int3"],
        "(did you mean 'dynamic8'?)": [*plan, "--state", "8bit"],
        "--master: got 'residual7' (did you mean 'residual8'?), wanted one of auto, residual16, residual8, stochastic, none": [
            *plan, "--master", "residual7"
        ],
        "mean 16GB": [*plan, "--ram", "16"],
        "mean 5GB": [*plan, "--disk", "5"],
        "--ram: got '8G', wanted bytes with a unit; did you mean 8GB?": [*plan, "--ram", "8G"],
        "mean 1.5TB?": [*plan, "--gpu", "1.5t"],
        "--disk: got 'nowhere', wanted a size such as 1TB, or a directory that exists": [*plan, "--disk", "nowhere"],
        "2GB ?": [*plan, "--gpu", "2GB ?"],
        '--ram: got ""': [*plan, "--ram", ""],
        "200%": [*plan, "--ram", "200%"],
        f"--disk: got {tmp_path}/missing for": [*plan, "--disk", tmp_path / "missing"],
        "file": [*plan, "--disk", tmp_path / "file"],
        "link": [*plan, "--disk", tmp_path / "link"],
        "/proc": [*plan, "--disk", "/proc"],
        "--seq: got 0": [*plan, "--seq", "0"],
        "--seq: got '2k', wanted a whole number": [*plan, "--seq", "2k"],
        "--seq: expected one argument": [*plan, "--seq"],
        "--batch: got -1": [*plan, "--batch", "-1"],
        "wanted known layers": [*plan, "--gpu", "8GB", "--stream"],
        "--stream: got no gpu and no limit of ram": ["plan", "--model", "Llama-2-7B", "--stream"],
        "each backward pass": [*plan, "--accumulate", "--step-in-backward"],
        "momentum=nan": [*plan, "--rule", "sgd", "--momentum", "nan"],
        "adamw has no such option": [*plan, "--momentum", "0.9"],
        "--betas: got (0.9, 0.95), wanted none": [*plan, "--rule", "sgd", "--betas", "0.9,0.95"],
        "--betas: got '0.9;0.95'": [*plan, "--betas", "0.9;0.95"],
        "--betas: got (0.9, 0.95, 0.999), wanted two numbers: beta1, beta2": [*plan, "--betas", "0.9,0.95,0.999"],
        "--betas: got (0.9,), wanted two numbers": [*plan, "--betas", "0.9"],
        "a beta of 0.95 for its exp_avg": [*plan, "--state", "dynamic4", "--betas", "0.95,0.999"],
        "a beta of 0.99 for its grad_avg": [*plan, "--state", "dynamic4", "--rule", "rmsprop", "--centered"],
        "missing.json": ["plan", "--model", tmp_path / "missing.json"],
        "digits": ["plan", "--model", tmp_path / "digits.json"],
        "not JSON": ["plan", "--model", tmp_path / "file"],
        "a list of shapes": ["plan", "--model", tmp_path / "number.json"],
        "shape 0: got 7 (int), wanted a list of sizes such as [4096, 4096]": ["plan", "--model", tmp_path / "sizes.json"],
        "transformers": ["plan", "--model", tmp_path / "config.json"],
        "elements": ["bench", "--elements", "x"],
        "--rounds": ["bench", "--rounds", "0"],
        "adamax'": ["bench", "--rule", "adamax"],
        "int3'": ["bench", "--state", "int3"],
        f"--disk: got {tmp_path}/missing'": ["bench", "--disk", tmp_path / "missing'"],
        "required: FILE": ["inspect"],
        "wanted a path in UTF-8": ["inspect", os.fsdecode(b"\xff")],
        f"lowtide: checkpoint '{tmp_path / 'no'}'": ["inspect", tmp_path / "no"],
    }
    for part, arguments in cases.items():
        assert part.lower() in run(*arguments, status=2).lower(), part
    figure(f"bad command lines: {len(cases)}, each with status 2 and one line")


def test_without_torch_a_command_says_so_in_one_line():
    program = "import sys; sys.modules['torch'] = None; from lowtide.cli.main import main; main(['info'])"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=120)
    assert done.returncode == 2 and done.stdout == ""
    assert done.stderr.count("\n") == 1 and "pip install torch" in done.stderr, done.stderr


def test_help_is_there_in_every_form_and_has_whole_sentences(run):
    overview = run()
    assert all(overview == run(form) for form in ("-h", "--help", "help"))
    assert "Print the version." in overview and all(f"\n  {name} " in overview for name in COMMANDS)
    for name in COMMANDS:
        text = run(name, "-h")
        assert text == run(name, "--help") == run("help", name) and " ".join(COMMANDS[name].what.split()[:5]) in text
        for action in parser_of(name)._actions:
            words = action.help or ""
            assert words[0].isupper() and words.endswith("."), f"{name} {action.dest}: {words!r}"


def test_plan_takes_the_names_that_people_type(run, tmp_path, monkeypatch):
    """Types, a model as an argument, a folder in the working directory, Path, and torch's types."""
    plain = run("plan", "--model", "1e6", "--weights", "fp32", "--state", "bf16", "--json")
    assert plain == run("plan", "1e6", "--weights", "float32", "--state", "bfloat16", "--json")
    assert plain == json.loads(json.dumps(lowtide.plan("1e6", weights=torch.float32, state="bf16").as_dict()))
    half = [lowtide.plan("1e6", weights=name) for name in ("fp16", "float16", "half", "torch.float16", torch.float16)]
    assert all(each == half[0] for each in half)
    (tmp_path / "scratch").mkdir()
    (tmp_path / "1TB").mkdir()
    monkeypatch.chdir(tmp_path)
    free = [lowtide.plan("1e6", ram="2GB", disk=disk).given[2] for disk in ("scratch", "./scratch", tmp_path / "scratch")]
    assert all(size and abs(size - free[0]) < 1e9 for size in free)
    assert run("plan", "1e6", "--ram", "2GB", "--disk", "scratch", "--json")["given"]["disk"] > 0
    assert lowtide.plan("1e6", ram="2GB", disk="1TB").given[2] == 10**12, "a size, also if a folder is called so"


def test_a_plan_of_many_parameters_takes_few_shapes(run):
    """A trillion parameters, in matrices that grow with their number, so that the plan takes as long as for a billion."""
    for count, columns in ((7 * 10**9, 4096), (10**12, 16384), (1 << 46, 131072)):
        model = model_of(count)
        assert elements(model.shapes) == count and len(model.shapes) <= 4098 and f"{columns} by {columns}" in model.name
    text = run("plan", "1T", "--gpu", "24GB", "--ram", "64GB", status=1)
    assert "1,000,000,000,000 parameters" in text and "--disk -" not in text


def test_numbers_are_read_exactly():
    read = {"7e9": 7 * 10**9, "7B": 7 * 10**9, "350m": 350 * 10**6, "1.5T": 15 * 10**11, "16Mi": 1 << 24, "1": 1}
    assert {text: count("n", text) for text in read} == read


def test_module_runs_as_a_program(tmp_path):
    def call(*arguments):
        environment = {**os.environ, "NO_COLOR": "1", "COLUMNS": "80"}
        command = [sys.executable, "-m", "lowtide", *arguments]
        return subprocess.run(command, capture_output=True, text=True, timeout=120, env=environment, cwd=tmp_path)

    done = call("plan", "--model", "1e6", "--ram", "1MiB")
    assert done.returncode == 1 and "Does not fit" in done.stdout and done.stderr == ""
    done = call("plan", "--model", "x")
    assert done.returncode == 2 and done.stdout == "" and done.stderr.count("\n") == 1


@pytest.mark.parametrize(
    ("command", "status", "said"),
    [
        ("plan 1e6 --rule muon >&-", 0, r"lowtide: importing torch\.*\n(lowtide: reading the model\.*\n)?"),
        ("plan 1e6 --rule muon 2>&-", 0, r"1e6, taken for [^$]*"),
        ("plan --model x 2>&-", 2, ""),
        ("plan --model x 2> /dev/full", 2, ""),
        ("plan --help > /dev/full", 2, r"lowtide: No space left on device\n"),
        ("plan 1e6 >&UNREAD", 141, ""),
    ],
)
def test_streams_that_take_nothing(tmp_path, command, status, said):
    """Closed streams, a full disk, and a pipe that nobody reads."""
    reader, unread = os.pipe()
    os.close(reader)
    program = f"exec {sys.executable} -m lowtide {command.replace('UNREAD', str(unread))}"
    done = subprocess.run(["bash", "-c", program], capture_output=True, text=True, timeout=120, cwd=tmp_path, pass_fds=[unread])
    os.close(unread)
    out = done.stdout + done.stderr
    assert done.returncode == status and re.fullmatch(said, out), out


def test_commands_need_no_class_to_be_named_before(tmp_path):
    """In a separate process, where nobody has asked `lowtide` for a class, the list of rules is still complete."""
    program = """
import json, sys
from lowtide.cli.main import main
for command in json.loads(sys.argv[1]):
    try:
        main(command)
    except SystemExit as ended:
        print("status", ended.code, file=sys.stderr)
"""
    plan = ["plan", "--model", "1e6", "--master", "none"]
    long_average = [*plan, "--state", "dynamic4", "--betas", "0.95,0.999"]
    commands = [["bench", "--elements", "4Ki", "--rounds", "1", "--state", "fp32"], [*plan, "--rule", "muon"], long_average]
    command = [sys.executable, "-c", program, json.dumps(commands)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, cwd=tmp_path)
    lines = done.stderr.splitlines()
    assert [line for line in lines if line.startswith("status")] == ["status 0", "status 0", "status 2"], done.stderr
    assert "a beta of 0.95 for its exp_avg" in done.stderr and "Fits without activations." in done.stdout


def test_torch_threads_are_left_alone(run):
    before = torch.get_num_threads()
    run("bench", "--elements", "4Ki", "--rounds", "1", "--json")
    assert torch.get_num_threads() == before
