"""Checkpoints of one mesh go on, bit for bit, on another one, in any memory tier."""

from __future__ import annotations

from pathlib import Path

import distributed_jobs as jobs
import pytest
from distributed_jobs import Layout
from distributed_support import differing, shared_ranks, size

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
