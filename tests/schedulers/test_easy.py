"""EASY backfilling, by hand and by the property that names it: the first job that waits is not put off."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from labkit import compare, simulate
from labkit.core import InputError, Jobs
from labkit.core.placement import Placement
from labkit.experiment import Experiment
from labkit.placers import Pack
from labkit.schedulers import make
from labkit.schedulers.easy import Easy, reservation
from labkit.topology import no_network, single_switch
from labkit.topology.servers import Server, server


def jobs_of(*rows):
    """Return jobs of (arrival, duration, GPUs)."""
    arrival_s, duration_s, gpus = zip(*rows, strict=True)
    return Jobs.of(arrival_s=arrival_s, total_steps=duration_s, duration_s=duration_s, n_workers=gpus)


def starts(jobs, scheduler, *, cluster="no_network(1)"):
    run = simulate(jobs, cluster=cluster, scheduler=scheduler, speed="recorded")
    return run.table["first_start_s"].tolist()


BY_HAND = jobs_of((0, 100, 3), (1, 50, 4), (2, 90, 1), (3, 200, 1))
"""Four GPUs. Three are held until 100, when the second job is to have all four."""


def test_a_short_job_passes_the_one_that_waits_and_a_long_one_does_not():
    assert starts(BY_HAND, "easy") == [0, 100, 2, 150]


def test_without_a_reservation_the_long_one_puts_the_first_off_and_without_backfill_none_passes():
    assert starts(BY_HAND, "fifo(backfill=True)") == [0, 292, 2, 92]
    assert starts(BY_HAND, "fifo") == [0, 100, 150, 150]


def test_a_long_job_in_its_last_per_cent_keeps_its_end():
    """A job of 90 s would pass at 9,990 s if the one that ends at 10,000 s were believed to have 1% left."""
    jobs = jobs_of((0, 10_000, 3), (1, 50, 4), (9_990, 90, 1))
    assert starts(jobs, "easy") == [0, 10_000, 10_050]


def test_jobs_that_start_in_the_same_decision_are_counted_once():
    """Eight GPUs; two start beside the first four, and two more are free beside the four that are kept from 100 on."""
    cluster = no_network(1, servers=server("dgx1"))
    jobs = jobs_of((0, 100, 4), (1, 1000, 2), (1, 50, 4), (1, 1000, 2))
    assert starts(jobs, "easy", cluster=cluster) == [0, 1, 100, 1]


def moments():
    """Return moments early on, and near the ends of long jobs."""
    return st.integers(0, 300) | st.integers(0, 10**6) | st.sampled_from([9_990, 99_500, 990_000, 999_999])


def textbook(jobs, n_gpus):
    """Return when jobs start by EASY as Mu'alem and Feitelson write it, on one pool of GPUs: (N,) seconds."""
    arrival_s, lasts_s, gpus = jobs.arrival_s.tolist(), jobs.duration_s.tolist(), jobs.n_workers.tolist()
    start_s, queue, ends = [None] * len(jobs), [], {}
    while None in start_s:
        coming = [at_s for j, at_s in enumerate(arrival_s) if j not in queue and start_s[j] is None]
        now_s = min([*coming, *ends.values()])
        ends = {j: end_s for j, end_s in ends.items() if end_s > now_s}
        queue += [j for j, at_s in enumerate(arrival_s) if at_s == now_s]
        free = n_gpus - sum(gpus[j] for j in ends)
        while queue and gpus[queue[0]] <= free:
            j = queue.pop(0)
            start_s[j], ends[j], free = now_s, now_s + lasts_s[j], free - gpus[j]
        if not queue:
            continue
        extra, shadow_s = free - gpus[queue[0]], now_s
        for j in sorted(ends, key=lambda j: (ends[j], j)):
            if extra >= 0:
                break
            extra, shadow_s = extra + gpus[j], ends[j]
        for j in queue[1:]:
            spare = now_s + lasts_s[j] > shadow_s
            if gpus[j] <= free and (not spare or gpus[j] <= extra):
                start_s[j], ends[j], free, extra = now_s, now_s + lasts_s[j], free - gpus[j], extra - spare * gpus[j]
        queue = [j for j in queue if start_s[j] is None]
    return start_s


@given(rows=st.lists(st.tuples(moments(), st.integers(1, 10**6), st.integers(1, 8)), min_size=3, max_size=25))
def test_it_is_the_textbooks_easy(rows):
    jobs = jobs_of(*sorted(rows))
    one_pool = no_network(1, servers=Server("pool", sockets=((8, 80, 256),)))
    assert starts(jobs, "easy", cluster=one_pool) == textbook(jobs, 8)


def test_a_long_job_passes_where_it_leaves_the_place_free():
    long = jobs_of((0, 100, 3), (1, 50, 3), (2, 1000, 1))  # at 100 the second job needs three of four GPUs
    assert starts(long, "easy") == [0, 100, 2]


def test_the_place_that_is_kept_is_on_one_device_type():
    """Of four V100 two are held until 100 and two until 120, of four K80 two until 50 and two until 200."""
    cluster = no_network(2, servers=[(1, server("gavel-v100")), (1, server("gavel-k80"))])
    jobs = jobs_of((0, 100, 2), (0, 120, 2), (0, 50, 2), (0, 200, 2), (1, 10, 4), (60, 300, 2))
    assert starts(jobs, "easy", cluster=cluster) == [0, 0, 0, 0, 120, 60]  # not two of each at 100


def test_the_place_is_where_the_placer_would_put_the_job_on_a_network():
    """Evenly over two hosts of eight: twelve need six free on each, as when the first job ends, not the second."""
    cluster = single_switch(2, gbps=100, servers=server("dgx1"))
    jobs = jobs_of((0, 1000, 4), (1, 300, 8), (2, 100, 12), (3, 5000, 4))
    assert starts(jobs, "easy", cluster=cluster)[2] == starts(jobs, "fifo", cluster=cluster)[2] == 1000


def test_a_job_that_was_preempted_counts_with_what_is_left_of_it():
    """Maintenance from 901 to 950: of the first job 99 s are left then, so the second starts at 1049."""
    jobs = jobs_of((0, 1000, 6), (902, 1000, 8), (903, 900, 2))
    kept = {"m": {"hosts": 1, "start_s": 901, "end_s": 950}}
    run = simulate(jobs, cluster=no_network(1, servers=server("dgx1")), scheduler="easy", reservations=kept)
    assert run.table["first_start_s"].tolist() == [0, 1049, 2049]


def test_none_passes_where_jobs_that_are_not_seen_hold_the_place():
    """The first job goes on on hosts that others have from 100 on: when it ends is not known to their scheduler."""
    jobs = jobs_of((0, 1000, 6), (101, 100, 8), (102, 5000, 2)).with_columns(user=[0, 1, 1], users=("v", "u"))
    kept = {"m": {"hosts": 1, "start_s": 100, "running": "finish", "users": ["u"]}}
    run = simulate(jobs, cluster=no_network(1, servers=server("dgx1")), scheduler="easy", reservations=kept)
    assert run.table["first_start_s"].tolist() == [0, 1000, 1100]


def test_only_as_many_jobs_are_looked_at_as_asked_for():
    some = jobs_of((0, 100, 3), (1, 50, 4), (2, 200, 1), (3, 90, 1))
    assert starts(some, "easy(depth=1)") == [0, 100, 150, 150]
    assert starts(some, "easy(depth=2)") == [0, 100, 150, 3]
    assert starts(some, "easy(depth=0)") == starts(some, "fifo")
    with pytest.raises(InputError, match="depth is -1; expected a number of jobs, 0 or more"):
        Easy(depth=-1)


def test_there_is_no_reservation_where_no_end_makes_room():
    session = Experiment.of(jobs_of((0, 100, 3), (1, 50, 4)), cluster="no_network(1)").session(make("easy"))
    in_s, free = reservation(session.snapshot(), Placement.nothing(), 1, placer=Pack())  # nothing runs yet
    assert in_s == np.inf
    assert free.tolist() == session.snapshot().offered.tolist()


@given(
    st.lists(
        st.tuples(moments(), st.integers(1, 400) | st.integers(1, 10**6), st.integers(1, 8)), min_size=3, max_size=25
    ),
    st.sampled_from(["pack", "spread", "first_fit", "by_network"]),
    st.sampled_from(["no_network(2)", "single_switch(2)"]),
)
def test_the_first_job_that_waits_starts_no_later_than_its_reservation(rows, placer, cluster):
    jobs = jobs_of(*sorted(rows))
    scheduler = make("easy", placer=placer)
    session = Experiment.of(jobs, cluster=cluster, speed="recorded").session(scheduler)
    promised: dict[int, float] = {}
    while not session.done:
        snapshot = session.snapshot()
        decided = scheduler.schedule(snapshot)
        left = [job for job in snapshot.waiting.tolist() if job not in decided.set_jobs.tolist()]
        if left:  # the first promise to a job holds
            in_s, _ = reservation(snapshot, decided, left[0], placer=scheduler.placer)
            promised.setdefault(left[0], snapshot.now_s + in_s)
        session.step(decided)
    began = simulate(jobs, cluster=cluster, scheduler=scheduler, speed="recorded").table["first_start_s"]
    assert all(began[job] <= at_s + 1e-6 for job, at_s in promised.items())


def test_on_a_busy_cluster_it_waits_as_little_as_backfill_on_average_and_no_longer_than_fifo_at_worst():
    runs = compare("philly-like", cluster="no_network(16)", schedulers="fifo,easy,fifo(backfill=True)", load=2)
    fifo, easy, backfill = (run.table["queueing_s"] for run in runs)
    assert easy.mean() < 1.1 * backfill.mean() < 0.2 * fifo.mean()
    assert easy.max() <= fifo.max() < backfill.max()


def test_with_time_limits_a_job_that_would_end_in_time_but_may_not_waits():
    jobs = Jobs.of(arrival_s=[0, 1, 2], total_steps=[100, 50, 60], duration_s=[100, 50, 60], n_workers=[1, 2, 1],
                   limit_s=[100, 50, 500])  # fmt: skip
    cluster = no_network(1, servers=Server("two", ((2, 8, 64),)))
    for scheduler, third in (("easy", 2), ("easy(limits=True)", 150)):
        table = simulate(jobs, scheduler=scheduler, cluster=cluster).table
        assert table["first_start_s"].tolist()[2] == third
