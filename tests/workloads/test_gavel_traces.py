"""Gavel's recipe, draw by draw, against a second reading of it."""

from __future__ import annotations

import math
import random  # noqa: TID251  (the published recipe draws from it)

import numpy as np
import pytest

from labkit.core.errors import InputError
from labkit.core.jobs import Jobs
from labkit.workloads.gavel import Throughputs
from labkit.workloads.gavel_traces import DISTRIBUTED, JOB_TABLE, gavel_jobs, write_gavel
from labkit.workloads.readers import read


def by_the_book(n, seed, lam, multi):
    """Return (model, GPUs, seconds, arrival) of n jobs, from the description of the published generator."""
    jobs, gaps = random.Random(seed + 2), random.Random(seed + 3)
    at, rows = 0.0, []
    for i in range(n):
        if i:
            at += -math.log(1.0 - gaps.random()) * lam
        r = jobs.uniform(0, 1)
        gpus = 1 if r < 0.7 else 2 if r <= 0.8 else 4 if r <= 0.95 else 8
        minutes = 10 ** (jobs.uniform(3, 4) if jobs.random() >= 0.8 else jobs.uniform(1.5, 3))
        if not multi:
            gpus = 1
        while True:
            name = jobs.choice(JOB_TABLE)
            if gpus == 1 or name in DISTRIBUTED:
                break
        rows.append((name, gpus, 60 * minutes, at))
    return rows


@pytest.mark.parametrize("multi", [False, True])
@pytest.mark.parametrize("seed", [0, 1, 42])
def test_a_seed_means_the_same_jobs_as_by_the_book(seed, multi):
    jobs = gavel_jobs(200, seed=seed, mean_gap_s=900, multi_gpu=multi)
    rows = by_the_book(200, seed, 900, multi)
    assert jobs.model_names().tolist() == [row[0] for row in rows]
    assert jobs.n_workers.tolist() == [row[1] for row in rows]
    assert jobs.duration_s.tolist() == [row[2] for row in rows]
    assert jobs.arrival_s.tolist() == [row[3] for row in rows]
    rate = Throughputs.published().steps_per_s(
        jobs.model_names().tolist(), n_gpus=jobs.n_workers, device_types=("v100",), strict=True
    )
    assert jobs.total_steps.tolist() == (jobs.duration_s * rate[:, 0]).tolist()


def test_gangs_durations_gaps_and_weights_have_the_published_distributions():  # Gavel, sec. 7.1
    jobs = gavel_jobs(20_000, seed=5, mean_gap_s=300, multi_gpu=True, priorities=True, slos=True)
    shares = [(jobs.n_workers == n).mean() for n in (1, 2, 4, 8)]
    assert shares == pytest.approx([0.70, 0.10, 0.15, 0.05], abs=0.01)
    minutes = jobs.duration_s / 60
    assert (minutes.min() > 10**1.5, minutes.max() < 10**4) == (True, True)
    assert (minutes > 1000).mean() == pytest.approx(0.2, abs=0.01)
    assert np.diff(jobs.arrival_s).mean() == pytest.approx(300, rel=0.03)
    assert (jobs.weight == 5).mean() == pytest.approx(0.2, abs=0.01)
    assert np.unique(np.round(jobs.slo_s / jobs.duration_s, 6)).tolist() == [1.2, 2, 10]


def test_priorities_do_not_change_the_first_job_but_do_draw():
    plain, ranked = (gavel_jobs(50, seed=0, priorities=p) for p in (False, True))
    assert plain.model_names()[0] == ranked.model_names()[0]
    assert plain.model_names().tolist() != ranked.model_names().tolist()


def test_without_a_gap_all_jobs_are_there_at_the_start():
    assert gavel_jobs(30, seed=1).arrival_s.tolist() == [0] * 30


def test_what_is_written_in_ten_columns_is_read_back(tmp_path):
    jobs = gavel_jobs(100, seed=3, mean_gap_s=60, multi_gpu=True, priorities=True, slos=True)
    back = read(write_gavel(jobs, tmp_path / "a.trace"))
    assert back.model_names().tolist() == jobs.model_names().tolist()
    assert back.n_workers.tolist() == jobs.n_workers.tolist()
    assert back.weight.tolist() == jobs.weight.tolist()
    assert back.total_steps.tolist() == np.floor(jobs.total_steps).tolist()
    assert back.arrival_s == pytest.approx(jobs.arrival_s, abs=1e-6)
    assert back.slo_s == pytest.approx(jobs.slo_s, rel=1e-2)


def test_gangs_with_servers_have_no_place_in_gavels_format(tmp_path):
    with pytest.raises(InputError, match="rigid gangs"):
        write_gavel(Jobs.of(arrival_s=0, total_steps=1, n_ps=1), tmp_path / "a.trace")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(("n", "gap_s", "message"), [(0, 1, "n is 0"), (1, -1, "mean_gap_s is -1")])
def test_wrong_parameters_are_refused(n, gap_s, message):
    with pytest.raises(InputError, match=message):
        gavel_jobs(n, seed=0, mean_gap_s=gap_s)
