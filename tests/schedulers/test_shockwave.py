"""Shockwave: its plans by hand, its rounds, its fair shares, and the shape of its paper's table."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from labkit import simulate
from labkit.core import Cluster, InputError, Jobs, Kind
from labkit.experiment import Experiment, every_slot
from labkit.results import fair_share_s
from labkit.schedulers import make
from labkit.topology import no_network
from labkit.topology.servers import Server

NO_GOALS = {"makespan": 0.0, "power": 0.0, "rho": 1e6}


def machine(n_gpus: int) -> Cluster:
    """Return one machine."""
    return no_network(1, servers=[(1, Server("host", sockets=((n_gpus, 64, 512),)))])


def simulated(scheduler: object, *, n_gpus: int, jobs: Jobs | None = None, cadence: Any = None, **columns: Any) -> Any:
    """Return a run of jobs that take what they declare, on one machine."""
    jobs = Jobs.of(total_steps=columns["duration_s"], **columns) if jobs is None else jobs
    return simulate(jobs, cluster=machine(n_gpus), speed="recorded", scheduler=scheduler, cadence=cadence)


def crowded(seed: int) -> Jobs:
    """Return 50 jobs much as in the paper, for 8 GPUs: most take one and an hour or less, a few take five hours."""
    rng = np.random.default_rng(seed)
    seconds = rng.permutation(np.append(rng.uniform(720.0, 5000.0, 47), [18000.0] * 3))
    gpus = rng.choice([1, 2, 4], 50, p=[0.75, 0.17, 0.08])
    arrival_s = np.sort(rng.uniform(0.0, 5000.0, 50))
    return Jobs.of(arrival_s=arrival_s, total_steps=seconds, duration_s=seconds, n_workers=gpus)


def test_jobs_that_are_alike_progress_alike() -> None:
    """Two jobs of 20 rounds, one GPU: each 4 rounds gain ln(0.2 / 1e-6), ln 2, ln 1.5: so 8 go to each, 4 to either."""
    scheduler = make("shockwave", **NO_GOALS)
    jobs = Jobs.of(arrival_s=[0.0, 0.0], total_steps=2400.0, duration_s=2400.0)
    scheduler.schedule(Experiment.of(jobs, cluster=machine(1), speed="recorded").session(scheduler).snapshot())
    rounds = scheduler._history.newest.rows.sum(axis=1)
    assert rounds.sum() == 20
    assert rounds.min() >= 8


@pytest.mark.parametrize(("makespan", "most_s"), [(1e-3, 12_240.0), (0.0, 20_000.0)])
def test_the_longest_job_runs_all_the_time_where_the_makespan_counts(makespan: float, most_s: float) -> None:
    """Two GPUs, a job of 12,000 s and ten of 1,200 s: none ends all in less than 12,000 s; two rounds are lost."""
    options = NO_GOALS | {"makespan": makespan}
    seconds = [1200.0] * 10 + [12000.0]
    run = simulated(make("shockwave", **options), n_gpus=2, arrival_s=[0.0] * 11, duration_s=seconds)
    assert run.summary["makespan_s"] <= most_s
    assert (run.summary["makespan_s"] > 15_000.0) == (makespan == 0)


def test_a_job_that_would_be_late_by_its_fair_share_is_not_passed_over() -> None:
    """Short jobs arrive without end; without weights a long one waits for all of them."""
    worst = {}
    for power in (0.0, 12.0):
        arrival_s = [0.0, 1000.0, *np.arange(2000.0, 38000.0, 1200.0)]
        seconds = [6000.0] + [1200.0] * 31
        scheduler = make("shockwave", makespan=0.0, power=power)
        worst[power] = simulated(scheduler, n_gpus=1, arrival_s=arrival_s, duration_s=seconds).summary["max_rho"]
    assert worst[0.0] > 3.0
    assert worst[12.0] < 1.2


def test_jobs_stop_at_the_end_of_a_round_and_rounds_are_as_long_as_slots() -> None:
    for cadence, round_s in ((None, 120.0), (every_slot(600.0), 600.0)):
        run = simulated("shockwave", n_gpus=8, jobs=crowded(1), cadence=cadence)
        stopped = run.events["time_s"][run.events["kind"] == Kind.PREEMPTED]
        assert len(stopped) > 50
        assert np.abs(stopped / round_s - np.round(stopped / round_s)).max() < 1e-6
        assert run.summary["n_unfinished"] == 0


def test_fair_shares_are_those_of_results() -> None:
    """The number of jobs since a job's arrival, on average, is what `fair_share_s` finds from the events."""
    scheduler = make("shockwave")
    run = simulated(scheduler, n_gpus=8, jobs=crowded(0))
    table, seen = run.table, scheduler._history.newest
    early = table.completion_s.to_numpy() < seen.now_s
    crowd = (seen.crowd_s / table.jct_s)[early]
    mine = table.duration_s[early] * np.maximum(1.0, table.asked_gpus[early] * crowd / 8)
    np.testing.assert_allclose(mine, fair_share_s(table, n_gpus=8, until_s=1e9)[early], rtol=1e-6)


def test_the_shape_of_the_papers_table_short_makespan_and_few_late_jobs() -> None:
    """There: makespan 24,197 s beside 31,909 to 33,208 s of the fair ones, and the least worst ratio, 1.78."""
    for seed in (0, 2):
        names = ("shockwave", "fifo", "srtf", "las", "gavel_las", "gavel_ftf")
        found = {name: simulated(name, n_gpus=8, jobs=crowded(seed)).summary for name in names}
        mine = found.pop("shockwave")
        assert mine["makespan_s"] < 0.95 * min(other["makespan_s"] for other in found.values())
        assert mine["max_rho"] < min(other["max_rho"] for other in found.values())


def test_bad_options_are_named() -> None:
    with pytest.raises(InputError, match=r"shockwave: window is 0, round_s 120\.0; expected a number of rounds >= 1"):
        make("shockwave", window=0)
    with pytest.raises(InputError, match=r"shockwave: makespan is -1, power 12\.0, rho 1\.0; expected a cost >= 0"):
        make("shockwave", makespan=-1)
