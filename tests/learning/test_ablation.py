"""Kept results of training without one part of the published recipe."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from labkit.core.errors import InputError
from labkit.learning.ablation import RUNS, ablation

KEPT = Path(__file__).parents[2] / "benchmarks" / "claims.json"


def test_every_part_was_judged_on_the_same_twenty_traces_on_both_clusters():
    counts = ablation(KEPT).groupby(["cluster", "recipe"], sort=False)["trace"].apply(list)
    assert len(counts) == 2 * len(RUNS)
    assert all(traces == list(range(20)) for traces in counts)


def test_a_reward_for_each_action_is_the_worst_as_published():
    means = ablation(KEPT).groupby(["cluster", "recipe"])["slots"].mean().unstack("cluster")
    assert (means.idxmax() == "a reward for each action").all()


def test_a_run_that_was_not_kept_is_told_with_the_command_that_measures_it(tmp_path):
    file = tmp_path / "claims.json"
    file.write_text(json.dumps({}))
    said = "has no run '16 nodes, measured: paper, seed 1'; python -m benchmarks.claims"
    with pytest.raises(InputError, match=said):
        ablation(file, nodes=[16])
