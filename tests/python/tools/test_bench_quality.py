"""bench/quality: its noise is the runs' noise, and its results last."""

import json
import math
import random
import statistics
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

sys.path.append(str(Path(__file__).resolve().parents[3] / "bench"))

from common.store import Store  # noqa: E402
from quality import finetune, rl, run  # noqa: E402
from quality.gaps import Noise, Row, analyse, student  # noqa: E402
from quality.model import build  # noqa: E402
from quality.variants import VARIANTS, of_rule, why_not  # noqa: E402


@pytest.mark.parametrize("about", ["dynamic8", "fp32"])
def test_noise_is_that_of_the_runs(about: str, figure: Callable[[str], None]) -> None:
    """Losses with a known scatter: the band holds about 95 of 100 means of gaps that are only noise. A float32 run is itself in
    the mean of its seed, and in the scatter, so that its bound holds more; there, seeds have different numbers of runs."""
    draw = random.Random(7)
    plain = [variant.id for variant in of_rule("AdamW") if variant.noise]
    runs_of = {name: 3 for name in [*plain, about]} if about != "fp32" else {"fp32": 6, "fp32_c": 6, "fp32_d": 3}
    inside, rounds, sigmas = 0, 400, []
    for _ in range(rounds):
        runs = [
            {"variant": name, "seed": seed, "beta2": 0.9, "loss": seed + draw.gauss(0, 2e-3), "updates": None}
            for name, seeds in runs_of.items()
            for seed in range(seeds)
        ]
        rows, noise, _ = analyse(runs, 0.9, of_rule("AdamW"))
        assert noise is not None
        sigmas.append(noise.sigma)
        row = next(row for row in rows if row.id == about)
        inside += row.verdict(noise).startswith("yes") if about == "fp32" else abs(row.mean) <= noise.band(range(3))
    figure(f"{about}: {100 * inside / rounds:.1f} % of means inside; sigma {statistics.fmean(sigmas):.2f} mN of 2")
    assert 0.92 <= inside / rounds <= (1 if about == "fp32" else 0.98)  # three standard deviations of 400 draws
    if about == "fp32":
        assert noise.band(range(6), is_float32=True) < noise.band(range(6)) < noise.band(range(3))
    else:
        assert math.isclose(statistics.fmean(sigmas), 2, rel_tol=0.05)
    assert math.isclose(student(9), 2.262, rel_tol=0.01) and math.isclose(student(5), 2.571, rel_tol=0.01)


@pytest.mark.parametrize(
    ("gaps", "wanted"),
    [((1.0, -1.0, 0.5), "yes, ≤"), ((9.0, 9.5, 9.2), "worse, >"), ((30.0, -5.0, 3.0), "open, >"), ((-9.0, -9.5, -9.2), "better, >"),
     ((1.0, math.nan, 0.0), "worse: diverged")],
)
def test_what_scatters_more_than_it_is_off_stays_open(gaps: tuple[float, ...], wanted: str) -> None:
    row = Row("some", "some", gaps=dict(enumerate(gaps)))
    assert row.verdict(Noise(sigma=2.0, freedom=9, runs={seed: 3 for seed in range(3)})).startswith(wanted)


def test_results_last(tmp_path: Path) -> None:
    store = Store(tmp_path, {"steps": 1}, {"revision": "some"})
    assert store.make("one", lambda: {"loss": 2.0})
    again = Store(tmp_path, {"steps": 1})
    assert not again.make("one", lambda: pytest.fail("made twice"))
    assert again.get("one") == {"loss": 2.0, "made": {"revision": "some"}}
    assert Store(tmp_path, {"steps": 2}).get("one") is None
    with pytest.raises(ZeroDivisionError):
        store.make("two", lambda: {"loss": 1 / 0})
    assert store.get("two") is None


def test_every_variant_is_there_or_says_why_not(figure: Callable[[str], None]) -> None:
    assert len({variant.id for variant in VARIANTS}) == len(VARIANTS)
    reasons = {variant.id: why_not(variant) for variant in VARIANTS}
    absent = {id: reason for id, reason in reasons.items() if reason is not None}
    figure(f"{len(VARIANTS) - len(absent)} of {len(VARIANTS)} variants; absent: {absent}")
    assert {"fp32", "dynamic8"}.isdisjoint(absent) and all(absent.values())


def study(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, *options: str, main: Callable[[], int] = run.main
) -> tuple[int, str]:
    """The program's exit status and what it says, in this process, which has torch already."""
    monkeypatch.setattr(sys, "argv", ["run.py", *options])
    threads = torch.get_num_threads()
    try:
        status = main()
    except SystemExit as end:
        status = int(end.code or 0)
    finally:
        torch.set_num_threads(threads)
    captured = capsys.readouterr()
    return status, captured.out + captured.err


def test_the_study_runs_and_goes_on_from_its_report(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    one, two = tmp_path / "one", tmp_path / "two"
    name, known = "train-bf16_nearest-0-0.95: {", ("--known", str(one / "quality.json"))
    quick = ("--quick", "--seeds", "1", "--beta2", "0.95", "--variants", "bf16_nearest")
    status, said = study(capsys, monkeypatch, *quick, "--out", str(one))
    assert status == 0 and name in said, said
    report = json.loads((one / "quality.json").read_text())
    assert [found["made"]["revision"] for found in report["runs"]] == [report["machine"]["revision"]]
    status, said = study(capsys, monkeypatch, *quick, *known, "--out", str(two))
    assert status == 0 and name not in said, said
    assert json.loads((two / "quality.json").read_text())["runs"] == report["runs"]
    more = ("--quick", "--seeds", "7", "--beta2", "0.95", "--variants", "bf16_nearest")  # which has 5
    status, said = study(capsys, monkeypatch, *more, "--out", str(two))
    assert status == 0, said
    assert [run["seed"] for run in json.loads((two / "quality.json").read_text())["runs"]] == [*range(7)]
    for options, words in (
        (known, "steps 30 in place of 600"),
        (("--report", "--seeds", "1", "--variants", "fp32"), "--variants, --seeds with --report"),
        (("--quick", "--text", str(tmp_path)), "got no .py file"),
        (("--quick", "--report", "--device", "cuda", *known), "device cpu in place of cuda"),
        *([] if torch.cuda.is_available() else [(("--device", "cuda"), "torch sees no GPU here")]),
    ):
        status, said = study(capsys, monkeypatch, *options, "--out", str(two))
        assert status == 2 and words in said


def test_success_is_the_share_of_right_sampled_answers(tmp_path: Path, figure: Callable[[str], None]) -> None:
    """The computed probability agrees with samples, whose share scatters by sqrt(p (1 - p) / n) at most: over problems with
    different probabilities it scatters less."""
    start = rl.QUICK.start
    stated = rl.begin(start, tmp_path / "start.pt")["right"]
    model = build(start.size, 0)
    model.load_state_dict(torch.load(tmp_path / "start.pt"))
    _, held_out = rl.sums(start)
    rows = held_out.repeat(500, 1)
    tried = rl.answered(model, rows[:, : -start.digits - 1], torch.float32, start.digits, torch.Generator().manual_seed(1))
    share = float((tried == rows).all(-1).float().mean())
    figure(f"stated {stated:.4f}, sampled {share:.4f} of {len(rows)}")
    assert stated > 0.02 and abs(share - stated) <= 4 * math.sqrt(stated * (1 - stated) / len(rows))


def test_a_policy_step_makes_rewarded_answers_likelier() -> None:
    """A small step against the gradient raises the rewarded answer's probability. A group of equal rewards has no gradient."""
    start = rl.QUICK.start
    rows = rl.sums(start)[0][:4]
    model = build(start.size, 0)
    rewards = torch.tensor([[0.0, 1.0, 0.0, 0.0]])
    rl.policy_loss(model, rows, rewards, torch.float32, start.digits).backward()
    with torch.no_grad():
        before, _ = rl.losses(model, rows[1:2], torch.float32, start.digits)
        for param in model.parameters():
            param -= 1e-3 * param.grad
        after, _ = rl.losses(model, rows[1:2], torch.float32, start.digits)
    assert float(after.sum()) < float(before.sum())
    model.zero_grad()
    rl.policy_loss(model, rows, torch.ones(1, 4), torch.float32, start.digits).backward()
    assert all(not param.grad.any() for param in model.parameters())


def test_reinforcement_runs_and_resumes(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    quick = ("--quick", "--seeds", "1", "--out", str(tmp_path), "--variants")
    status, said = study(capsys, monkeypatch, *quick, "fp32,bf16_nearest", main=rl.main)
    assert status == 0 and "rl-bf16_nearest-0: {" in said, said
    first = {run["variant"]: run for run in json.loads((tmp_path / "rl.json").read_text())["runs"]}
    assert len(set(first["fp32"]["curve"])) > 1  # it has learned something
    status, said = study(capsys, monkeypatch, *quick, "fp32,dynamic8", main=rl.main)
    assert status == 0 and "rl-fp32-0: {" not in said, said
    again = {run["variant"]: run for run in json.loads((tmp_path / "rl.json").read_text())["runs"]}
    assert set(again) == {"fp32", "bf16_nearest", "dynamic8"} and again["fp32"] == first["fp32"]
    status, said = study(capsys, monkeypatch, *quick, "muon_fp32", main=rl.main)
    assert status == 2 and "got muon_fp32, wanted some of fp32," in said


def test_fine_tunes_run_and_resume(tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    """Each rate has its own runs from one start, which all learn. Adapters change nothing before their first step, and only they
    train."""
    quick = ("--quick", "--seeds", "1", "--out", str(tmp_path), "--lr", "1e-3", "2e-3", "--variants")
    status, said = study(capsys, monkeypatch, *quick, "fp32,lora_fp32", main=finetune.main)
    assert status == 0 and said.count("tune-lora_fp32-0: {") == 2, said
    first = json.loads((tmp_path / "finetune.json").read_text())
    runs = {(run["variant"], run["lr"]): run for run in first["runs"]}
    assert set(runs) == {(variant, lr) for variant in ("fp32", "lora_fp32") for lr in (1e-3, 2e-3)}
    assert len({run["learned"] for run in runs.values()} | {first["start"]["learned"]}) == 5
    assert all(run["learned"] < first["start"]["learned"] for run in runs.values())
    status, said = study(capsys, monkeypatch, *quick, "fp32,bf16_nearest", main=finetune.main)
    assert status == 0 and "tune-fp32-0: {" not in said and said.count("tune-bf16_nearest-0: {") == 2, said
    again = json.loads((tmp_path / "finetune.json").read_text())
    assert again["start"] == first["start"] and all(run in again["runs"] for run in first["runs"])
    status, said = study(capsys, monkeypatch, *quick, "muon_fp32", main=finetune.main)
    assert status == 2 and "got muon_fp32, wanted some of fp32," in said
    model = build(run.QUICK.size, 0)
    seen = torch.arange(24).view(2, 12)
    before = model(seen)
    finetune.adapt(model, 0)
    assert torch.equal(model(seen), before)
    assert runs["lora_fp32", 1e-3]["trained"] == sum(param.numel() for name, param in model.named_parameters() if name.endswith((".a", ".b")))
