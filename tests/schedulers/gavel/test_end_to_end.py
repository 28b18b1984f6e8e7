"""Whole runs by name: sharing, spread gangs, slices; deadlines that cannot be kept; runs that are asked for in vain."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Any

import numpy as np
import pytest

from labkit.core.errors import InputError, LabkitError
from labkit.core.events import Kind
from labkit.experiment import Experiment
from labkit.results import RunRecord
from labkit.workloads.gavel_traces import gavel_jobs


@pytest.fixture(scope="module")
def run(shared_data: Any) -> Callable[[str], RunRecord]:
    """Return a function that runs a scheduler, once, on Gavel's trace with its measured speeds, pairs included."""
    throughputs, trace = shared_data("gavel/simulation_throughputs.json"), "gavel/traces/max_min_fairness.trace"
    return cache(Experiment.of(shared_data(trace), cluster="gavel-8-16-24", throughputs=throughputs).run)


@pytest.mark.parametrize("name", ["las", "throughput", "hierarchical", "ftf", "makespan"])
def test_sharing_gpus_shortens_jobs_where_a_policy_can_choose_it(name: str, run: Callable[[str], RunRecord]) -> None:
    """At a load that fills the cluster; some two hundred pairs run."""
    alone, shared = run(f"gavel_{name}"), run(f"gavel_{name}(space_sharing=True)")
    assert (shared.events["partner"] >= 0).any()
    assert not (alone.events["partner"] >= 0).any()
    assert shared.summary["mean_jct_s"] < 1.01 * alone.summary["mean_jct_s"]


def test_without_speeds_of_pairs_sharing_is_refused_and_says_what_to_do() -> None:
    here = Experiment.of(gavel_jobs(4, seed=0, mean_gap_s=900.0), cluster="gavel-8-16-24")
    with pytest.raises(LabkitError, match=r"needs the speeds of pairs.*--throughputs"):
        here.run("gavel_las(space_sharing=True)")


@pytest.mark.parametrize("name", ["las(placement=True)", "las(ideal=True)", "ftf(recompute_s=1800)", "las(stay=0)"])
def test_options_of_rounds_go_with_a_policys_and_change_little(name: str, run: Callable[[str], RunRecord]) -> None:
    usual = run(f"gavel_{name.split('(')[0]}").summary["mean_jct_s"]
    assert run(f"gavel_{name}").summary["mean_jct_s"] == pytest.approx(usual, rel=0.05)


def test_a_deadline_that_cannot_be_kept_is_told_once_and_the_others_are_kept() -> None:
    """Job 0 has a tenth of the time that it takes on the fastest type; the others have ten times as much."""
    jobs = gavel_jobs(12, seed=1, mean_gap_s=1800.0)
    factor = np.where(np.arange(12) == 0, 0.1, 10.0)
    jobs = jobs.with_columns(slo_s=factor * jobs.duration_s)
    record = Experiment.of(jobs, cluster="gavel-8-16-24").run("gavel_slo")
    relaxed = record.events[record.events["kind"] == Kind.RELAXED]
    assert relaxed["job"].tolist() == [0]
    late = record.table["jct_s"].to_numpy() > jobs.slo_s
    assert late.tolist() == [True] + [False] * 11
    assert record.summary["n_jobs"] == 12


def test_a_cluster_that_loses_all_machines_of_a_type_goes_on_with_the_others() -> None:
    from labkit.simulator import Faults

    jobs = gavel_jobs(10, seed=2, mean_gap_s=1800.0)
    record = Experiment.of(jobs, cluster="gavel-8-16-24", faults=Faults(40_000, 3_000, 0)).run("gavel_las")
    assert record.summary["n_jobs"] == 10
    assert (record.events["kind"] == Kind.LEFT).any()


@pytest.mark.parametrize(
    ("name", "what"),
    [
        ("gavel_lass", "Did you mean 'gavel_las'"),
        ("gavel_las(tie=middle)", "unknown tie 'middle'"),
        ("gavel_las(round_s=0)", "round_s is 0"),
        ("gavel_las(published=True,ideal=True)", "goes alone"),
        ("gavel_las(stay=9)", "stay is 9"),
    ],
)
def test_names_and_options_that_cannot_be_are_refused(name: str, what: str) -> None:
    here = Experiment.of(gavel_jobs(2, seed=0, mean_gap_s=900.0), cluster="gavel-8-16-24")
    with pytest.raises(InputError, match=what):
        here.run(name)
