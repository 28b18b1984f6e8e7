"""Tiresias' own order, queues and promotion, job by job against its simulator read a second time."""

from __future__ import annotations

from dataclasses import replace
from math import ceil, inf

import pytest
from hypothesis import given
from hypothesis import strategies as st

from labkit import simulate
from labkit.core import InputError, Jobs, Placement
from labkit.experiment import Experiment
from labkit.schedulers import make
from labkit.schedulers.rule import rule_of
from labkit.testing import check_scheduler
from labkit.topology import no_network
from labkit.topology.servers import Server

LIMITS = 40, 120


def dlas(rows, n_gpus, promote):  # noqa: C901 - one loop over time, as published
    """Return the JCT of (arrival, seconds, GPUs) as `dlas_sim_jobs` of Tiresias' simulator has it, in lists."""
    queues, jobs, now, jump = ([], [], []), {}, 0, inf
    done = {}
    while len(done) < len(rows):
        ends = {j: now + each["left"] for j, each in jobs.items() if each["runs"]}
        coming = [at for j, (at, _, _) in enumerate(rows) if j not in jobs and j not in done]
        then = min([*coming, *ends.values(), jump])
        for j in [j for j, end in ends.items() if end == then]:
            done[j] = then - rows[j][0]
            queues[jobs.pop(j)["queue"]].remove(j)
        for j, each in jobs.items():
            if each["runs"]:
                each["ran"], each["left"] = each["ran"] + then - now, each["left"] - (then - now)
                if each["queue"] < 2 and each["ran"] * rows[j][2] >= LIMITS[each["queue"]]:
                    queues[each["queue"]].remove(j)
                    each["queue"] += 1
                    queues[each["queue"]].append(j)
            elif each["ran"]:
                each["waited"] += then - now
        for j, (at, seconds, _) in enumerate(rows):
            if at == then and j not in jobs and j not in done:
                jobs[j] = {"ran": 0, "waited": 0, "left": seconds, "queue": 0, "runs": False}
                queues[0].append(j)
        for j, each in jobs.items():
            waits = not each["runs"] and each["queue"] and each["ran"]
            if waits and each["waited"] >= each["ran"] * promote:
                queues[each["queue"]].remove(j)
                queues[0].append(j)
                each.update(ran=0, waited=0, queue=0)
        now, free = then, n_gpus
        for j in [j for queue in queues for j in queue]:
            jobs[j]["runs"] = rows[j][2] <= free
            free -= rows[j][2] * jobs[j]["runs"]
        for queue in queues:
            queue.sort(key=lambda j: not jobs[j]["runs"])
        jump = inf
        for j, each in jobs.items():
            if each["runs"] and each["queue"] < 2:
                jump = min(jump, now + ceil((LIMITS[each["queue"]] - each["ran"]) / rows[j][2]))
            elif not each["runs"] and each["queue"] and each["ran"] and promote < inf:
                rest = each["ran"] * promote - each["waited"]
                jump = min(jump, now + rest) if rest > 0 else jump
    return [done[j] for j in range(len(rows))]


@given(
    rows=st.lists(
        st.tuples(st.integers(0, 300), st.integers(1, 150), st.sampled_from([1, 1, 2, 4])), min_size=2, max_size=20
    ),
    promote=st.sampled_from([inf, 1, 2, 4]),
)
def test_published_las_is_tiresias_own_simulator_job_by_job(rows, promote):
    rows = sorted(rows)
    arrival_s, seconds, gpus = zip(*rows, strict=True)
    jobs = Jobs.of(arrival_s=arrival_s, total_steps=seconds, duration_s=seconds, n_workers=gpus)
    cluster = no_network(1, servers=Server("pool", ((4, 40.0, 64.0),)))
    scheduler = make("las", published=True, thresholds_gpu_s=LIMITS, promote=float(promote))
    run = simulate(jobs, cluster=cluster, scheduler=scheduler, speed="recorded")
    assert run.table["jct_s"].tolist() == pytest.approx(dlas(rows, 4, promote))


def jct_s(rows, scheduler, *, n_gpus=1):
    """Return the JCT of jobs of (arrival, seconds, GPUs)."""
    arrival_s, seconds, gpus = zip(*rows, strict=True)
    jobs = Jobs.of(arrival_s=arrival_s, total_steps=seconds, duration_s=seconds, n_workers=gpus)
    cluster = no_network(1, servers=Server("pool", ((n_gpus, 40.0, 64.0),)))
    return simulate(jobs, cluster=cluster, scheduler=scheduler, speed="recorded").table["jct_s"].tolist()


def test_a_job_that_runs_stays_ahead_of_an_equal_that_waits_and_by_arrival_it_does_not():
    """At 100 s the second job, of two GPUs, finds one of them free and the third job on the other."""
    rows = [(0, 100, 1), (5, 50, 2), (10, 100, 1)]
    assert jct_s(rows, "las", n_gpus=2) == [100, 145, 150]
    assert jct_s(rows, "las(order='start')", n_gpus=2) == [100, 155, 100]


QUEUED = [(0, 100, 1), (5, 10, 1), (10, 100, 1)]
"""On one GPU the first job leaves the first queue at 20 s, and the third at 50 s."""


def test_it_is_asked_when_a_job_changes_queues_without_a_quantum():
    by_quantum = jct_s(QUEUED, "las(threshold_gpu_s=20, quantum_s=1)")
    assert by_quantum == [130, 25, 200]
    assert jct_s(QUEUED, "las(threshold_gpu_s=20, order='start', quantum_s=1e9)") == by_quantum
    assert jct_s(QUEUED, "las(threshold_gpu_s=20, quantum_s=1e9)") != by_quantum


def test_only_the_two_queues_by_arrival_are_compiled():
    cluster = no_network(1)
    assert rule_of(make("las"), cluster) is not None
    for options in ({"order": "start"}, {"promote": 2.0}, {"thresholds_gpu_s": (10, 20)}, {"published": True}):
        assert rule_of(make("las", **options), cluster) is None


def test_queues_by_arrival_without_a_way_back_are_those_of_the_plain_rule():
    plain = jct_s(QUEUED, "las(threshold_gpu_s=20, quantum_s=1)")
    assert jct_s(QUEUED, "las(thresholds_gpu_s=(20,), quantum_s=1)") == plain


def test_it_keeps_the_rules_of_a_scheduler():
    check_scheduler(make("las", order="start", thresholds_gpu_s=(40, 120), promote=2.0))


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"order": "begin"}, "order of las"),
        ({"promote": 0.0}, "promote is 0.0; expected times"),
        ({"thresholds_gpu_s": (20, 10)}, r"thresholds_gpu_s is \(20, 10\); expected GPU-seconds > 0 that rise"),
        ({"threshold_gpu_s": 0.0}, "threshold_gpu_s is 0.0; expected GPU-seconds > 0"),
    ],
)
def test_options_that_make_no_sense_are_refused(options, said):
    with pytest.raises(InputError, match=said):
        make("las", **options)


def test_a_decision_may_ask_for_the_next_one():
    """At 30 s nothing happens; a wish for the past is none."""
    jobs = Jobs.of(arrival_s=[0], total_steps=[60], duration_s=[60])
    session = Experiment.of(jobs, cluster="no_network(1)").session(make("fifo"))
    started = make("fifo").schedule(session.snapshot())
    again = replace(started, again_s=30.0)
    session.step(again)
    assert session.now_s == 30
    assert Placement.joined([again, Placement.nothing()]).again_s == 30
    session.step(Placement.joined([]))
    assert session.now_s == 60
