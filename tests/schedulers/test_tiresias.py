"""Tiresias: the Gittins index against dynamic programming, what its code has in its place, and its queues."""

from __future__ import annotations

from functools import cache
from math import inf

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from labkit import simulate
from labkit.core import InputError, Jobs
from labkit.schedulers import make
from labkit.schedulers.tiresias import code_index, gittins_index
from labkit.testing import check_scheduler
from labkit.topology import no_network
from labkit.topology.servers import Server


def flow_time(sizes, n, choose):
    """Return the mean sum of completion times of n jobs of one server, their sizes drawn from samples, a step a time.

    `choose(costs, state)` picks among the jobs left; `costs` are what each choice leads to.
    """

    @cache
    def value(state):
        if not state:
            return 0.0
        costs = []
        for i, attained in enumerate(state):
            alive = [size for size in sizes if size > attained]
            ends = sum(size == attained + 1 for size in alive) / len(alive)
            rest = state[:i] + state[i + 1 :]
            stays = tuple(sorted((*rest, attained + 1))) if ends < 1 else ()
            costs.append(len(state) + ends * value(rest) + (value(stays) * (1 - ends) if ends < 1 else 0.0))
        return costs[choose(costs, state)]

    return value((0,) * n)


@given(sizes=st.lists(st.integers(1, 6), min_size=2, max_size=6), n=st.integers(2, 4))
def test_no_policy_has_a_smaller_mean_flow_time_than_the_gittins_index(sizes, n):
    """Gittins 1979: on one server, of policies that know the distribution alone; by dynamic programming."""
    samples = np.array(sizes, float)
    by_index = flow_time(sizes, n, lambda _, state: int(np.argmax(gittins_index(samples, np.array(state, float)))))
    assert by_index == pytest.approx(flow_time(sizes, n, lambda costs, _: int(np.argmin(costs))), abs=1e-9)


def test_first_come_first_served_is_worse_than_the_index_where_most_jobs_are_short():
    sizes = [1, 1, 1, 6]
    fifo = flow_time(sizes, 3, lambda _, state: int(np.argmax(state)))
    index = flow_time(sizes, 3, lambda _, state: int(np.argmax(gittins_index(np.array(sizes, float), np.array(state)))))
    assert index < 0.9 * fifo


def test_the_index_of_one_known_size_is_shortest_remaining_first():
    assert gittins_index(np.array([8.0]), np.array([0.0, 4.0, 7.0])).tolist() == [1 / 8, 1 / 4, 1.0]


def test_what_tiresias_code_computes_is_another_index():
    """It adds up sizes whole, as if a job that has attained 3,000 GPU-seconds had attained none."""
    sizes = np.array([100.0, 4000.0, 4000.0, 50_000.0])
    attained = np.array([0.0, 3500.0])
    assert np.diff(gittins_index(sizes, attained)) < 0
    assert np.diff(code_index(sizes, attained)) > 0


@pytest.mark.parametrize("gittins", ["paper", "code"])
def test_jobs_that_ended_in_the_run_tell_the_index(gittins):
    """Once short jobs have ended, a new job goes before one that has outlived them, in one queue."""
    jobs = Jobs.of(
        arrival_s=[0, 0, 0, 300], total_steps=[100, 100, 5000, 100], duration_s=[100, 100, 5000, 100], n_workers=1
    )
    cluster = no_network(1, servers=Server("one", sockets=((1, 8, 64),)))
    ended_s = {
        name: simulate(jobs, cluster=cluster, scheduler=make("tiresias", thresholds_gpu_s=(1e9,), gittins=name)).table[
            "completion_s"
        ]
        for name in ("", gittins)
    }
    assert ended_s[""][3] > 5000
    assert ended_s[gittins][3] < 5000


def test_pollux_tiresias_moves_a_job_down_at_57600_gpu_seconds_and_places_where_most_is_free():
    """Its jobs run by entry into a queue: the one that was moved down first goes first among those moved down."""
    jobs = Jobs.of(arrival_s=[0, 0, 10], total_steps=40_000, duration_s=40_000.0, n_workers=[4, 4, 4], max_workers=4)
    cluster = no_network(1, servers=Server("four", sockets=((4, 64, 512),)))
    run = simulate(jobs, cluster=cluster, scheduler="tiresias(published='pollux')", cadence="pollux")
    starts = run.events[run.events["kind"] == 3]
    assert starts["job"].tolist()[:3] == [0, 1, 2]
    assert np.diff(starts["time_s"][:3]).tolist() == [14_400.0, 14_400.0]


@pytest.mark.parametrize(("published", "moved_s"), [("tiresias", 1090.0), ("muri", 1084.0)])
def test_muris_tiresias_moves_a_gang_down_in_time(published, moved_s):
    """3,250 GPU-seconds of 3 GPUs are 1,083.3 s; Tiresias looks (3,250 - 10) / 3 s after the event at 10 s."""
    jobs = Jobs.of(arrival_s=[0, 10], total_steps=4_000, duration_s=4_000.0, n_workers=[3, 3], max_workers=3)
    cluster = no_network(1, servers=Server("three", sockets=((3, 64, 512),)))
    run = simulate(jobs, cluster=cluster, scheduler=f"tiresias(published={published!r})")
    start_s = run.events["time_s"][(run.events["kind"] == 3) & (run.events["job"] == 1)][0]
    assert start_s == moved_s


@pytest.mark.parametrize("options", [{}, {"gittins": "paper"}, {"thresholds_gpu_s": (60, 600), "promote": 4.0}])
def test_tiresias_passes_the_suite(options):
    check_scheduler(make("tiresias", **options), seed=5)


def test_bad_options_are_named():
    with pytest.raises(InputError, match=r"thresholds_gpu_s is .*expected GPU-seconds > 0 that rise"):
        make("tiresias", thresholds_gpu_s=(5.0, 5.0))
    with pytest.raises(InputError, match="Did you mean 'paper'"):
        make("tiresias", gittins="papr")
    with pytest.raises(InputError, match="Did you mean 'pollux'"):
        make("tiresias", published="polux")
    with pytest.raises(InputError, match="promote is 0"):
        make("tiresias", promote=0.0)
    assert make("tiresias").promote == inf
