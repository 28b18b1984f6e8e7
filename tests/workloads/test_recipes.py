"""What ships comes out of its recipe, byte by byte, and is what it is said to be."""

from __future__ import annotations

import itertools
from pathlib import Path

import numpy as np
import pytest

from labkit.experiment import compare
from labkit.results.intervals import holdings
from labkit.topology import build
from labkit.topology.machine_files import inventory, machines
from labkit.workloads.readers import ledgered, read
from labkit.workloads.recipes import TEXTS, TRACES, main
from labkit.workloads.trace_check import beyond

SHIPPED = Path(__file__).parents[2] / "traces"


@pytest.fixture(scope="module")
def again(tmp_path_factory):
    folder = tmp_path_factory.mktemp("traces")
    main([str(folder)])
    return folder


@pytest.mark.parametrize("name", sorted(TRACES | TEXTS))
def test_a_shipped_trace_is_what_its_recipe_makes(again, name):
    assert (SHIPPED / name).read_bytes() == (again / name).read_bytes()


def test_every_shipped_file_has_a_recipe_or_was_measured_and_a_line_in_the_readme():
    readme = (SHIPPED / "README.md").read_text()
    measured = {"testbed-profile.json"}
    assert {file.name for file in SHIPPED.iterdir()} == {*TRACES, *TEXTS, *measured, "README.md"}
    assert all(f"`{name}`" in readme for name in {*TRACES, *TEXTS, *measured})


def test_the_demo_is_some_eighty_malleable_jobs_with_servers():
    jobs = read(SHIPPED / "demo.csv")
    assert 60 <= len(jobs) <= 100
    assert (jobs.max_workers > jobs.n_workers).all()
    assert (jobs.n_ps > 0).all()


def test_the_jobs_of_the_demo_wait_for_gpus_and_never_for_cores():
    """While jobs wait, nearly all GPUs are in use, and half of the cores are free."""
    for run in compare("demo", cluster="demo", schedulers="srtf,las"):
        waits = np.zeros(3)
        held, arrived = holdings(run.events, run.jobs), run.jobs.arrival_s
        done = arrived + run.table["jct_s"].to_numpy()
        times = np.unique([*arrived, *done, *held.start_s, *held.end_s])
        for start_s, end_s in itertools.pairwise(times.tolist()):
            now = (held.start_s <= start_s) & (held.end_s >= end_s)
            n_there = ((arrived <= start_s) & (done >= end_s)).sum()
            waiting_s = (n_there - len(set(held.job[now].tolist()))) * (end_s - start_s)
            gpus, cpus = held.gpus[now].sum(), held.cpus[now].sum()
            waits += waiting_s * np.array([1, gpus >= 32, cpus > 64])
        assert waits[0] > 24 * 3600
        assert waits[1] > 0.75 * waits[0]
        assert waits[2] == 0


def test_the_gavel_trace_is_in_ten_columns_with_gangs():
    jobs = read(SHIPPED / "gavel-small.trace")
    assert set(jobs.n_workers.tolist()) == {1, 2, 4, 8}
    assert (SHIPPED / "gavel-small.trace").read_text().splitlines()[0].count("\t") == 9


def test_the_philly_like_trace_is_500_rigid_jobs_with_a_heavy_tail():
    jobs = read(SHIPPED / "philly-like.csv")
    assert len(jobs) == 500
    assert (jobs.max_workers == jobs.n_workers).all()
    assert jobs.duration_s.mean() > 4 * np.median(jobs.duration_s)


def test_the_slurm_week_is_what_a_site_exports_faults_and_rules_included(tmp_path):
    """Rows are kept in the ledger to the hour, and the machines beside the export hold what ran."""
    read = ledgered(SHIPPED / "slurm-week.sacct")
    text, notes = inventory(machines([SHIPPED / "slurm-week-nodes.txt"]), source="nodes")
    (tmp_path / "hosts.toml").write_text(text)
    jobs, cluster = read.jobs, build(str(tmp_path / "hosts.toml"))
    assert "v100-6" in notes[0]
    assert read.ledger.unexplained_hours == 0
    assert {"repeated, the same in every column"} < {*read.ledger.merged}
    assert len(read.ledger.checks) > 1
    assert set(jobs.partitions) == {"a100", "v100"} == set(cluster.partitions)
    assert (jobs.after != "").any()
    assert (jobs.at_most > 0).any()
    assert np.isfinite(jobs.begin_s).any()
    assert beyond(read.segments, n_gpus=cluster.n_gpus)[1] == 0


def test_the_dl2_trace_is_60_jobs_of_its_eight_models():
    jobs = read(SHIPPED / "dl2-small.csv")
    assert len(jobs) == 60
    assert len(jobs.models) == 8
