"""heSRPT: the published shares against a numerical optimum, whole tasks by Webster's method, the fitted exponent."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.optimize import minimize

from labkit.core import InputError, Jobs, Role
from labkit.core.resources import amounts
from labkit.experiment import Experiment
from labkit.schedulers import make
from labkit.schedulers.hesrpt import deal_out, fit_exponent, frontier, optimal_shares, scale_of
from labkit.speed.measured import MeasuredSpeed, SpeedTable
from labkit.topology import no_network


def flow_time(sizes, p):
    """Return the sum of completion times of jobs on one server's worth of capacity if each has its published share."""
    left, now_s, total = np.sort(sizes)[::-1].astype(float), 0.0, 0.0
    while len(left):
        speed = optimal_shares(len(left), p=p) ** p
        step_s = (left / speed).min()
        now_s, left = now_s + step_s, left - speed * step_s
        done = left <= 1e-9 * sizes.max()
        total, left = total + now_s * done.sum(), left[~done]
    return total


def least_flow_time(sizes, p):
    """Return the least sum of completion times, found numerically.

    The shortest job ends first, so phase k has the k longest jobs. If job i does w_ik of its work in phase k, that
    phase takes at least (sum_i w_ik^(1/p))^p, as shares add up to 1. Minimised over w >= 0 with rows that add up to
    sizes.
    """
    sizes = np.sort(sizes)[::-1]
    alive = [(i, k) for k in range(len(sizes)) for i in range(k + 1)]  # phase k: jobs 0 to k

    def total(w):
        work = np.zeros((len(sizes), len(sizes)))
        work[tuple(np.transpose(alive))] = w
        return sum((k + 1) * ((work[:, k] ** (1 / p)).sum() + 1e-300) ** p for k in range(len(sizes)))

    rows = [
        {"type": "eq", "fun": lambda w, i=i: w @ np.array([j == i for j, _ in alive]) - sizes[i]}
        for i in range(len(sizes))
    ]
    begin = np.array([sizes[i] / (len(sizes) - i) for i, _ in alive])
    found = minimize(total, begin, method="SLSQP", bounds=[(1e-9, None)] * len(alive), constraints=rows, tol=1e-12)
    return found.fun


@pytest.mark.parametrize("p", [0.2, 0.5, 0.8])
@pytest.mark.parametrize("sizes", [[1.0, 1.0], [1.0, 5.0], [1.0, 2.0, 3.0], [2.0, 2.5, 7.0, 9.0]])
def test_no_allocation_has_a_smaller_flow_time_than_the_published_one(p, sizes):
    """Berg, Vesilo and Harchol-Balter (2019), theorem 8: T = sum_i x_i (i^(1/(1-p)) - (i - 1)^(1/(1-p)))^(1-p)."""
    i, c = np.arange(1, len(sizes) + 1), 1 / (1 - p)
    published = (np.sort(sizes)[::-1] * (i**c - (i - 1) ** c) ** (1 - p)).sum()
    assert flow_time(np.array(sizes), p) == pytest.approx(published)
    assert least_flow_time(np.array(sizes), p) == pytest.approx(published, rel=1e-4)


def test_it_lies_between_equal_shares_and_the_shortest_job_alone():
    assert optimal_shares(4, p=1e-9) == pytest.approx([0.25] * 4)
    assert optimal_shares(4, p=0.999) == pytest.approx([0, 0, 0, 1])


@given(n=st.integers(1, 200), p=st.floats(0.05, 0.95))
def test_shares_add_up_and_grow_towards_the_shortest_job(n, p):
    shares = optimal_shares(n, p=p)
    assert shares.sum() == pytest.approx(1)
    assert (np.diff(shares) >= -1e-15).all()


def experiment_of(speed, *, steps, most=8):
    """Return malleable jobs on 8 GPUs, with speeds by workers alone; a server takes nothing."""
    jobs = Jobs.of(
        arrival_s=np.zeros(len(steps)), total_steps=steps, n_workers=1, n_ps=1, max_workers=most, max_ps=1,
        model=["m"] * len(steps), worker_demand=amounts(gpus=1, cpus=1), ps_demand=amounts(),
    )  # fmt: skip
    counts, cluster = np.arange(1, 9), no_network(2)
    table = SpeedTable.of(["m"] * 8, n_ps=[1] * 8, n_workers=counts, samples_per_s=speed(counts))
    return Experiment.of(jobs, cluster=cluster, speed=MeasuredSpeed(jobs, cluster, table=table))


def workers_of(experiment, **options):
    scheduler = make("hesrpt", oracle=True, **options)
    placement = scheduler.schedule(experiment.session(scheduler).snapshot())
    job, count = (column[placement.role == Role.WORKER] for column in (placement.job, placement.count))
    return np.bincount(job, count, len(experiment.jobs)).astype(int).tolist()


def test_two_jobs_that_grow_by_the_square_root_get_a_quarter_and_three_quarters():
    assert workers_of(experiment_of(lambda k: 10 * k**0.5, steps=[16_000, 3_000])) == [2, 6]
    assert workers_of(experiment_of(lambda k: 10 * k**0.5, steps=[3_000, 16_000])) == [6, 2]


def test_what_a_job_cannot_use_goes_to_the_others():
    assert workers_of(experiment_of(lambda k: np.where(k <= 2, 10.0 * k, 19.0 - k), steps=[3_000, 16_000]), p=0.5) == [
        2,
        2,
    ]
    assert workers_of(experiment_of(lambda k: 10.0 * k**0.5, steps=[3_000, 16_000], most=5), p=0.9) == [5, 3]


def test_the_exponent_and_the_scale_of_a_power_law_are_found():
    workers = np.arange(1, 9)
    seconds = np.full((3, 9), np.nan)
    seconds[1, 1:] = 1 / (7 * workers**0.4)
    seconds[2, 1:] = 2 * seconds[1, 1:]  # a second server only slows, so no smaller gang is behind it
    share, speed = frontier(seconds, worker_cost=0.1, ps_cost=0.0)
    assert share == pytest.approx(0.1 * workers)
    assert fit_exponent(share, speed) == pytest.approx(0.4)
    assert scale_of(share, speed, p=0.4) == pytest.approx(7 * 10**0.4)


@given(seed=st.integers(0, 10_000))
def test_whole_tasks_fit_and_leave_nothing_that_some_job_would_gain_by(seed):
    rng = np.random.default_rng(seed)
    n, most = int(rng.integers(1, 8)), int(rng.integers(1, 6))
    theta = rng.dirichlet(np.ones(n))
    seconds = 1 / np.cumsum(rng.uniform(0.1, 1, (n, 2, most + 1)), axis=2)  # each worker more is faster
    need, none = np.tile([1.0, 2.0], (n, 1)), np.zeros((n, 2))
    total = rng.integers(1, 12, 2).astype(float) * [1.0, 2.0]
    one, zero = np.ones(n, np.int32), np.zeros(n, np.int32)
    cost = np.full(n, (need[0] / total).max())
    workers, servers = deal_out(
        np.arange(n), theta, np.arange(n), seconds, 1, cost, 1e-9 * one, need, none, one, zero, most * one, zero,
        np.ones(n, np.bool_), total,
    )  # fmt: skip
    assert (workers @ need <= total + 1e-6).all()
    assert (servers == 0).all()
    assert (workers == most).all() or (workers.sum() + 1) * need[0].max() > total.min() - 1e-6


def test_what_it_cannot_take_is_refused():
    with pytest.raises(InputError, match=r"^hesrpt: p is 1\.0; expected an exponent > 0 and < 1, or None"):
        make("hesrpt(p=1.0)")
    with pytest.raises(InputError, match=r"^hesrpt: n_pre_runs is 0; expected a number of gangs >= 1\.$"):
        make("hesrpt(n_pre_runs=0)")
    with pytest.raises(InputError, match=r"^hesrpt: look_ahead is 0; expected a number of tasks >= 1\.$"):
        make("hesrpt(look_ahead=0)")
