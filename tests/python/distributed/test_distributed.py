"""Meshes change nothing: weights, state, checkpoints and resumed training are those of one process; fully_shard,
DistributedDataParallel and tensor parallelism among them."""

from __future__ import annotations

from pathlib import Path

import distributed_jobs as jobs
import distributed_models as models
import pytest
from distributed_jobs import Layout
from distributed_support import differing, shared_ranks, size

ROWS = [Layout("rows", (n,)) for n in (1, 2, 3, 4)] + [Layout("rows", (2, 2))]
COLUMNS = [Layout("columns", (n,)) for n in (1, 2, 3)] + [Layout("columns", (2, 2))]
REPLICAS = [Layout("plain"), Layout("replicas", (2,))]


@pytest.mark.parametrize(
    ("rule", "state"),
    [
        ("adamw", "dynamic8"),
        ("adamw", "bf16"),
        ("adamw", "fp32"),
        ("lion", "dynamic8"),
        ("sgd", "dynamic8"),
        ("schedulefree", "dynamic8"),
    ],
)
@pytest.mark.share
def test_any_mesh_gives_the_same_bits(rule: str, state: str, figure) -> None:
    ranks = shared_ranks()
    compared, meshes = 0, 0
    for family in (ROWS, COLUMNS, REPLICAS) if rule == "adamw" else (ROWS[::2],):
        expected = None
        for layout in family:
            for found in ranks.run(layout.world, jobs.uninterrupted, layout, rule, state):
                expected = expected or found
                assert differing(found, expected) == [], f"{layout}"
                compared += size(found)
            meshes += 1
    figure(f"{rule} {state}: {meshes} meshes, {len(jobs.SHAPES)} parameters, {compared} bytes compared, 0 differ")


@pytest.mark.parametrize("rule", ["adamw", "schedulefree"])
def test_a_mesh_gives_the_bits_of_no_mesh(rule: str, figure) -> None:
    """All but what a mesh stores in another format, as docs/distributed.md says: the long row."""
    plain = Layout("plain")
    alone = shared_ranks().run(1, jobs.uninterrupted, plain, rule, "dynamic8")[0]
    for layout in (Layout("rows", (3,)), Layout("rows", (2, 2))):
        found = shared_ranks().run(layout.world, jobs.uninterrupted, layout, rule, "dynamic8")[0]
        same = [name for name in alone if name.split(".")[0] != "row"]
        assert [name for name in same if alone[name] != found[name]] == []
        assert "row.exp_avg_sq_scale" in alone and "row.exp_avg_sq_scale" not in found
        assert "uneven.exp_avg_sq_scale" in found and "edge.exp_avg_sq_scale" in found, "judged by the whole"
        figure(f"{rule}, {layout}: {sum(len(alone[name]) for name in same)} bytes compared, 0 differ")


def test_a_plan_of_shards_is_what_the_report_says(tmp_path, figure) -> None:
    compared, on_disk = 0, 0
    for layout in (Layout("rows", (3,)), Layout("columns", (2,)), Layout("replicas", (2,))):
        for state in ("dynamic8", "fp32"):
            for paged in (False, True):
                disk = str(tmp_path) if paged else None
                for got, wanted in shared_ranks().run(layout.world, jobs.planned, layout, state, disk):
                    assert got == wanted, f"{layout} {state}"
                    compared += 1
                    on_disk += got["disk"] > 0
    assert on_disk > 0
    figure(f"{compared} ranks planned ({on_disk} with state on disk): RAM, disk and traffic off by 0 bytes")


@pytest.mark.parametrize(
    ("kind", "rule", "world"),
    [
        ("rows", "adamw", 3),
        ("rows", "lion", 2),
        ("hsdp", "adamw", 4),
        ("tensor", "adamw", 4),
        ("bf16", "adamw", 2),
        ("offload", "adamw", 2),
        ("ddp", "adamw", 2),  # of three, the order of sums changes when torch rebuilds its buckets
    ],
)
@pytest.mark.share
def test_models_resume(kind: str, rule: str, world: int, tmp_path: Path, figure) -> None:
    answers = shared_ranks().run(world, models.resume, kind, rule, str(tmp_path / "saved"))
    compared = 0
    for one, other, kinds in answers:
        assert differing(one, other) == []
        assert differing(one, answers[0][0]) == [], "ranks differ"
        assert kinds == ("Parameter Tensor" if kind == "ddp" else "DTensor DTensor")
        compared += size(one)
    figure(f"{kind}, {world} ranks: {len(answers[0][0])} tensors, {compared} bytes compared twice, 0 differ")


@pytest.mark.parametrize(("kind", "world"), [("offload", 1), ("offload", 2), ("rows", 3), ("bf16", 2), ("hsdp", 4)])
@pytest.mark.parametrize("bucket", [0, True])
def test_steps_in_backward_are_those_after_it(kind: str, world: int, bucket: int | bool, figure) -> None:
    answers = shared_ranks().run(world, models.in_backward, kind, bucket)
    for after, within, left in answers:
        assert differing(after, within) == [] and left == 0
        assert differing(within, answers[0][1]) == [], "ranks differ"
    figure(f"{kind}, {world} ranks: {len(answers[0][0])} tensors, {size(answers[0][0])} bytes, 0 differ; no gradient is left")


@pytest.mark.parametrize(
    ("kind", "nonfinite", "words"),
    [
        ("nan", "skip", None),
        ("nan", "raise", ("NaN", "another rank")),
        ("none", "skip", ("on some ranks and none on others",) * 2),
        ("other layout on one rank", "skip", ("redistribute", "another rank")),
        ("partial", "skip", ("redistribute", "redistribute")),
        ("placement", "propagate", ("redistribute", "redistribute")),
    ],
)
def test_what_one_rank_cannot_step_none_does(
    kind: str, nonfinite: str, words: tuple[str, str] | None, figure
) -> None:
    """`words`: in the error of rank 1, on which it goes wrong, and of the others; None: no error, a skipped step."""
    answers = shared_ranks().run(3, models.spoiled, kind, nonfinite)
    for rank, (error, skipped, unchanged, alike) in enumerate(answers):
        assert unchanged and alike, f"rank {rank}: {error}"
        assert skipped == (1 if words is None else 0)
        assert (words[0 if rank == 1 else 1] in error) if words else not error, f"rank {rank}: {error}"
    figure(f"{kind}, {nonfinite}: 3 ranks unchanged by the step; then as if it had not been")


def test_refusals(figure) -> None:
    wanted = {
        "partial parameter": "only Shard and Replicate",
        "moved state": "redistribute",
        "a local part as plain state": "the whole of it",
        "sharded state into a plain parameter": "a plain tensor",
    }
    for found in shared_ranks().run(2, models.refusals):
        assert found.keys() == wanted.keys()
        for name, word in wanted.items():
            assert word in found[name], f"{name}: {found[name]}"
    figure(f"{len(wanted)} refusals on 2 ranks, each with its reason")


def test_scaled_steps_and_copies(figure) -> None:
    answers = shared_ranks().run(2, models.scaled_and_copied)
    assert answers == [([(1, 0), (1, 1)], True)] * 2
    figure("2 ranks skip the step with an infinity on one of them; copies go on alike")


HSDP = Layout("rows", (2, 2))


@pytest.mark.parametrize(
    ("rule", "state", "save_on_disk", "load_on_disk"),
    [
        ("adamw", "dynamic8", False, False),
        ("adamw", "dynamic8", True, False),
        ("adamw", "dynamic8", False, True),
        ("lion", "dynamic8", True, True),
        ("sgd", "dynamic8", True, True),
        ("schedulefree", "dynamic8", False, True),
        ("adamw", "bf16", False, False),
        ("adamw", "dynamic4", False, True),
    ],
)
@pytest.mark.share
def test_a_checkpoint_goes_to_any_mesh(
    rule: str, state: str, save_on_disk: bool, load_on_disk: bool, tmp_path: Path, figure
) -> None:
    ranks = shared_ranks()
    disk = str(tmp_path)
    compared = moves = on_disk = 0
    for source in (Layout("rows", (2,)), HSDP) if not save_on_disk else (Layout("rows", (2,)),):
        path = str(tmp_path / f"saved-{moves}")
        expected = ranks.run(
            source.world, jobs.uninterrupted, source, rule, state, path, disk if save_on_disk else None
        )[0]
        for target in [Layout("rows", (n,)) for n in (1, 2, 3)] + [HSDP]:
            answers = ranks.run(
                target.world, jobs.resumed, target, rule, state, path, disk if load_on_disk else None
            )
            for found, report in answers:
                assert differing(found, expected) == [], f"{source} to {target}"
                compared += size(found)
                on_disk += report["disk_bytes"]
            moves += 1
    assert bool(on_disk) == load_on_disk
    figure(f"{moves} moves between meshes, {compared} bytes compared, 0 differ; {on_disk} bytes of state on disk")


@pytest.mark.parametrize(
    ("state", "on_disk"), [("dynamic8", False), ("dynamic8", True), ("dynamic4", False), ("dynamic4", True)]
)
def test_a_full_state_dict(state: str, on_disk: bool, tmp_path: Path, figure) -> None:
    layout = Layout("rows", (3,))
    compared = 0
    for one, other in shared_ranks().run(
        layout.world, jobs.through_full_state_dict, layout, state, str(tmp_path) if on_disk else None
    ):
        assert differing(one, other) == []
        compared += size(one)
    figure(f"{compared} bytes compared, 0 differ")


@pytest.mark.parametrize("master", ["residual16", "residual8"])
def test_residuals_travel_in_a_full_state_dict(master: str, tmp_path: Path, figure) -> None:
    """gloo, like NCCL, carries no int16: DTensors are gathered, and plain tensors handed out by rank 0."""
    compared = 0
    for layout, disk in ((Layout("rows", (3,)), None), (Layout("rows", (2,)), str(tmp_path)), (Layout("plain"), None)):
        world = layout.world if layout.kind != "plain" else 2
        for one, other in shared_ranks().run(world, jobs.through_full_state_dict, layout, "dynamic8", disk, master):
            assert differing(one, other) == []
            compared += len(one["bfloat.residual"])
    assert compared
    figure(f"{compared} bytes of residuals compared, 0 differ")


def test_codes_of_four_bits_have_the_shape_of_a_process_alone() -> None:
    for alone, sharded in shared_ranks().run(3, jobs.shapes_alone_and_sharded, Layout("rows", (3,)), "dynamic4"):
        assert sharded == alone and alone["edge"]["exp_avg_codes"] == (16, 150)


@pytest.mark.parametrize("on_disk", [False, True])
def test_asking_for_the_state_changes_nothing(on_disk: bool, tmp_path: Path, figure) -> None:
    layout = Layout("rows", (2,))
    compared = 0
    for one, other in shared_ranks().run(
        layout.world, jobs.untouched_by_asking, layout, str(tmp_path) if on_disk else None
    ):
        assert differing(one, other) == []
        compared += size(one)
    figure(f"{compared} bytes compared, 0 differ")


def test_a_plain_state_dict(figure) -> None:
    layout = Layout("rows", (3,))
    compared = 0
    for one, other in shared_ranks().run(layout.world, jobs.plain_into_shards, layout, "bf16"):
        assert differing(one, other) == []
        compared += size(one)
    for error in shared_ranks().run(layout.world, jobs.plain_into_shards, layout, "dynamic8"):
        assert "dynamic8" in error and "fp32" in error, error
    figure(f"bf16: {compared} bytes compared, 0 differ; dynamic8 with a long row of its own is refused")


def test_state_dicts_of_torch(figure) -> None:
    layout = Layout("rows", (2,))
    worst = max(shared_ranks().run(layout.world, jobs.torch_into_shards, layout))
    figure(f"largest difference after going to fp32 and back: {worst}")
    assert worst == 0


def test_a_file_is_for_its_rank(tmp_path: Path, figure) -> None:
    layout = Layout("rows", (4,))
    for one, other, error in shared_ranks().run(layout.world, jobs.own_files, layout, str(tmp_path)):
        assert differing(one, other) == []
        assert "coordinate" in error and "torch.distributed.checkpoint" in error, error
    refused = 0
    for wrong in (Layout("rows", (1,)), Layout("replicas", (1,)), Layout("plain"), Layout("rows", (2,))):
        for error in shared_ranks().run(wrong.world, jobs.read_file, wrong, str(tmp_path / "0.lowtide")):
            assert "a file is for the rank and mesh" in error, error
            refused += 1
    figure(f"4 ranks read their own files; {4 + refused} reads of others' refused")
