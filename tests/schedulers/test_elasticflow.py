"""ElasticFlow: shares, admission and savings worked out by hand, and what becomes of jobs in runs."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from labkit.core import InputError, Jobs, Kind
from labkit.experiment import Experiment
from labkit.schedulers import make
from labkit.schedulers.elasticflow import Choices, shares
from labkit.simulator import Overheads
from labkit.testing import check_scheduler
from labkit.testing.scenes import random_scenes


def choices(jobs):
    """Return what jobs may have, of (steps left, seconds to the deadline, steps/s with 1, 2, 4, ... GPUs)."""
    n = np.array([len(speed) for *_, speed in jobs], np.int32)
    speed, gpus = np.zeros((len(jobs), n.max() + 1)), np.append(0, 2.0 ** np.arange(n.max()))
    for j, (*_, of) in enumerate(jobs):
        speed[j, 1 : n[j] + 1] = of
    price = np.tile(gpus, (len(jobs), 1))
    left, due_s = (np.array([job[i] for job in jobs], float) for i in (0, 1))
    return Choices(left, due_s, n, speed, price, price[:, :, None])


def shared(jobs, n_gpus, *, more=False, published=False):
    """Return the GPUs of each job now, which ones are satisfied, and when a share changes."""
    level, met, next_s = shares(choices(jobs), np.array([float(n_gpus)]), (60.0, 0.0), more, published)
    return [int(2 ** (k - 1)) if k else 0 for k in level], met.tolist(), next_s


LINE = (1.0, 2.0, 4.0)


def test_the_minimum_share_is_the_smallest_level_that_ends_in_time():
    assert shared([(240, 120, LINE)], 4) == ([2], [True], 120)
    assert shared([(120, 120, LINE)], 4) == ([1], [True], 120)
    assert shared([(481, 120, LINE)], 4) == ([0], [False], np.inf)


def test_periods_before_those_that_suffice_have_one_level_less():
    """One GPU is free in the first minute, and two later: two GPUs from 60 to 240 s would do, one would not."""
    first = (180, 60, (*LINE[:2], 3.0))
    assert shared([first, (300, 240, LINE)], 5) == ([4, 1], [True, True], 60)
    assert shared([first, (300, 240, LINE)], 4) == ([4, 0], [True, True], 60)
    assert shared([first, (361, 240, LINE[:2])], 4)[1] == [True, False]


def test_what_is_left_goes_where_it_costs_the_least_gpu_time_or_as_published_the_most():
    """From one GPU to two: 600 GPU-seconds before and after, or 600 and 840. The second share may begin later."""
    both = [(600, 6000, (1.0, 2.0)), (600, 7200, (1.0, 1.5))]
    assert shared(both, 3) == ([1, 0], [True, True], 600)
    assert shared(both, 3, more=True)[0] == [2, 1]
    assert shared(both, 3, more=True, published=True)[0] == [1, 2]


def test_a_job_without_a_deadline_takes_what_is_left_and_one_without_gpus_comes_first():
    best_effort = (600, np.inf, (1.0, 2.0))
    assert shared([(240, 120, LINE), best_effort], 2, more=True)[0] == [2, 0]
    assert shared([(240, 120, LINE), best_effort], 3, more=True)[0] == [2, 1]
    assert shared([(240, 120, LINE), best_effort], 4, more=True)[0] == [2, 2]
    assert shared([(60, 120, LINE), best_effort, best_effort], 3, more=True)[0] == [1, 1, 1]


def test_a_level_that_is_no_faster_is_taken_as_published_alone():
    assert shared([(600, 6000, (1.0, 1.0))], 4, more=True)[0] == [1]
    assert shared([(600, 6000, (1.0, 1.0))], 4, more=True, published=True)[0] == [2]


def of(arrival_s, seconds, slo_s, *, n=1, most=None):
    return Jobs.of(
        arrival_s=arrival_s, total_steps=seconds, duration_s=seconds, slo_s=slo_s, n_workers=n,
        max_workers=n if most is None else most,
    )  # fmt: skip


def outcome(jobs, scheduler="elasticflow", **options):
    """Return the jobs that were declined, those of which the goal was given up, and when each one ended on 4 GPUs."""
    run = Experiment.of(jobs, cluster="no_network(1)", speed="recorded", **options).run(scheduler)
    dropped, relaxed = (run.events["job"][run.events["kind"] == kind].tolist() for kind in (Kind.DROPPED, Kind.RELAXED))
    return dropped, relaxed, np.nan_to_num(run.table["completion_s"].to_numpy(), nan=-1).round(6).tolist()


def test_a_newcomer_is_declined_if_another_job_would_be_late_and_published_all_that_come_with_it():
    """Job 1 alone would end in time, at 160 s; job 0 would then end at 700 s and not within 650."""
    jobs = of([0, 60, 60], [600, 100, 50], [650, 300, 2000], n=[4, 4, 1])
    assert outcome(jobs) == ([1], [], [600, -1, 650])
    assert outcome(jobs, "elasticflow(published=True)") == ([1, 2], [], [600, -1, -1])
    assert outcome(jobs, "elasticflow(declines=False)") == ([], [1], [600, 750, 650])


def test_shares_end_on_the_slot():
    """Job 1 would end 100 s after its arrival, which counts as 120 s in slots of 60: job 0 has 540 s to do in 520."""
    jobs = of([0, 60], [600, 100], [700, 300], n=4)
    assert outcome(jobs) == ([1], [], [600, -1])
    assert outcome(jobs, "elasticflow(align_s=20)") == ([], [], [700, 160])


def test_an_admitted_job_that_turns_out_late_goes_on_and_its_goal_is_given_up_once():
    jobs = of([0, 10, 20], [600, 5, 5], [600, np.nan, np.nan])
    assert outcome(jobs, overheads=Overheads(start_s=5)) == ([], [0], [605, 20, 30])
    assert outcome(jobs) == ([], [], [600, 15, 25])


def test_a_job_without_a_deadline_gives_way_to_one_with_a_deadline_and_returns():
    jobs = of([0, 100], [300, 100], [np.nan, 120], n=4)
    assert outcome(jobs) == ([], [], [400, 200])


def test_elastic_jobs_grow_into_what_is_left():
    assert outcome(of(0, 1200, 1300, most=4)) == ([], [], [300])


@pytest.mark.filterwarnings("ignore:elasticflow")
@pytest.mark.parametrize("seed", [0, 1])
def test_with_true_speeds_admitted_jobs_end_in_time(seed):
    rng = np.random.default_rng(seed)
    most, seconds = 2 ** rng.integers(0, 3, 30), rng.lognormal(6.5, 1, 30).round()
    jobs = of(
        np.cumsum(rng.exponential(200, 30)).round(),
        seconds,
        (seconds / most * rng.uniform(1.1, 3, 30)).round(),
        most=most,
    )
    declined, relaxed, ends_s = outcome(jobs, "elasticflow(oracle=True)")
    assert 0 < len(declined) < 15
    assert relaxed == []
    assert np.flatnonzero(np.array(ends_s) > jobs.arrival_s + jobs.slo_s + 1e-6).tolist() == []


@pytest.mark.parametrize("published", [False, True])
def test_it_passes_the_suite_with_deadlines_too(published):
    scenes = [
        replace(
            scene, jobs=scene.jobs.with_columns(slo_s=np.where(np.arange(len(scene.jobs)) % 3, 200.0 + 400 * i, np.nan))
        )
        for i, scene in enumerate(random_scenes(seed=4))
    ]
    check_scheduler(make("elasticflow", published=published), scenes=scenes)


def test_it_says_that_without_deadlines_there_is_only_best_effort():
    said = Experiment.of(of(0, 600, np.nan), cluster="no_network(1)", speed="recorded").caveats(
        make("elasticflow"), name="elasticflow"
    )
    assert "elasticflow: no job of jobs has an SLO (slo_s), so all of them are best effort." in said


def test_a_slot_that_is_none_is_refused():
    with pytest.raises(InputError, match=r"elasticflow: align_s is 0; expected seconds > 0, e.g. 60"):
        make("elasticflow", align_s=0)
