"""Overrides of modules hold for the DTensors that fully_shard puts in the place of their parameters."""

from __future__ import annotations

import override_jobs
import pytest
from distributed_support import shared_ranks


@pytest.mark.parametrize("when", ["early", "late"])
def test_overrides_survive_fully_shard(when: str, figure) -> None:
    answers = shared_ranks().run(2, override_jobs.overridden, when)
    compared = 0
    for codecs, of_plain, values, plain in answers:
        big = {name: codec for name, codec in codecs.items() if name.endswith("weight") and "norm" not in name}
        assert big == {"0.weight": "fp32", "1.weight": "fp32", "2.weight": "dynamic8"}
        assert codecs == of_plain
        # Every rank has the same samples, so averaging over two ranks changes no bit of a gradient.
        assert values == plain
        compared += sum(map(len, values))
    figure(f"2 ranks: {compared} bytes of parameters as without shards")


def test_muon_leaves_sharded_matrices_to_adamw_where_told(figure) -> None:
    for names, of_adamw in shared_ranks().run(2, override_jobs.muon_of_shards):
        assert "momentum_buffer" in names and "exp_avg_sq" in names, "vectors"
        assert "exp_avg_sq" in of_adamw and "momentum_buffer" not in of_adamw
    figure("2 ranks: momentum of matrices, moments with use_muon=False")
