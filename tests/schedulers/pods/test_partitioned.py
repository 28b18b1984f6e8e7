"""Schedulers in pods: what they promise of every run, the rules of forwarding by hand, and what is refused."""

from __future__ import annotations

from copy import deepcopy
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from labkit.core import Cluster, InputError, Jobs, Kind, Scheduler
from labkit.core.events import Events
from labkit.core.life import begin
from labkit.experiment import Session
from labkit.experiment.context import context
from labkit.schedulers import make
from labkit.simulator import Faults, Simulator
from labkit.simulator.replay import Replay
from labkit.speed.recorded import Recorded
from labkit.topology import fat_tree, no_network, vl2

CLUSTER = fat_tree(4)  # four pods of four machines of four GPUs, 16 cores
IN_PODS = (
    "load_balance", "least_interference", "even_pods", "whole_gang", "kubernetes", "attention",
    "partitioned(placer=pack)",
)  # fmt: skip
WHOLE = ("even", "whole_gang(pods=False)")


def jobs_of(seed: int, n: int = 40, *, homes: int = 4, most: int = 5) -> Jobs:
    rng = np.random.default_rng(seed)
    return Jobs.of(
        arrival_s=np.sort(rng.integers(0, 400, n)), total_steps=rng.integers(30, 600, n), duration_s=300.0,
        n_workers=rng.integers(1, most, n), n_ps=rng.integers(0, most, n),
        home=rng.integers(0, homes, n) if homes else -1,
        id=[f"j{i}" for i in range(n)], worker_demand=np.array([1.0, 2.0, 0.0]), ps_demand=np.array([0.0, 2.0, 0.0]),
    )  # fmt: skip


def run(jobs: Jobs, scheduler: Scheduler | str, cluster: Cluster = CLUSTER, **disturbances: object) -> Events:
    speed = Recorded(jobs, cluster)
    made = make(scheduler) if isinstance(scheduler, str) else scheduler
    begin(made, context(jobs, cluster, speed=speed, seed=0))
    session = Session(Simulator(jobs, cluster, speed=speed, **disturbances))
    session.run(made)
    return session.log.rows


def pods_of(rows: Events, cluster: Cluster = CLUSTER) -> list[tuple[int, int]]:
    placed = rows[rows["kind"] == Kind.PLACED]
    where = cluster.partition[cluster.group_machine[placed["group"]]]
    return list(zip(placed["job"].tolist(), where.tolist(), strict=True))


def forwarded(rows: Events) -> dict[int, int]:
    told = rows[rows["kind"] == Kind.FORWARDED]
    assert len(set(told["job"].tolist())) == len(told), "forwarded twice"
    return dict(zip(told["job"].tolist(), told["value"].astype(int).tolist(), strict=True))


# --- what every run keeps


@given(name=st.sampled_from(IN_PODS), seed=st.integers(0, 10_000), faults=st.booleans())
def test_a_job_runs_whole_at_home_or_where_it_was_forwarded_to_once(name: str, seed: int, faults: bool) -> None:
    """Machines that fail change nothing: a forwarded job comes back to where it was sent."""
    jobs = jobs_of(seed)
    disturbed = {"faults": Faults(900, 100, 60), "rng": np.random.default_rng(seed)} if faults else {}
    rows = run(jobs, name, **disturbed)
    sent = forwarded(rows)
    assert (rows["kind"] == Kind.COMPLETED).sum() == len(jobs)
    at = {job: {pod} for job, pod in enumerate(jobs.home.tolist())}
    for job, pod in pods_of(rows):
        assert pod in at[job] | {sent.get(job)}
    assert all(sent[job] != jobs.home[job] for job in sent)
    assert set(sent) == {job for job, pod in pods_of(rows) if pod != jobs.home[job]}


@given(name=st.sampled_from(IN_PODS), seed=st.integers(0, 10_000))
def test_jobs_alike_with_one_home_start_in_order_of_arrival(name: str, seed: int) -> None:
    jobs = jobs_of(seed)
    rows = run(jobs, name)
    started = rows[rows["kind"] == Kind.STARTED]
    start_s = dict(zip(started["job"].tolist(), started["time_s"].tolist(), strict=True))
    last: dict[tuple[int, int, int], float] = {}
    for job in range(len(jobs)):
        kind = int(jobs.home[job]), int(jobs.n_workers[job]), int(jobs.n_ps[job])
        assert start_s[job] >= last.get(kind, 0.0)
        last[kind] = start_s[job]


@given(seed=st.integers(0, 10_000))
@settings(max_examples=10)
def test_without_forwarding_each_pod_is_a_cluster_under_fifo_with_backfill(seed: int) -> None:
    jobs = jobs_of(seed)
    together = completions(run(jobs, "partitioned(placer=pack, forward=none)"), jobs)
    for pod in np.unique(jobs.home).tolist():
        mine = jobs.take(np.flatnonzero(jobs.home == pod))
        alone = completions(run(mine, "fifo(backfill=True, placer=pack)", CLUSTER.part(pod)), mine)
        assert alone == pytest.approx({name: together[name] for name in alone}, rel=1e-12)


@pytest.mark.parametrize("name", [*IN_PODS, *WHOLE])
def test_jobs_without_home_and_clusters_of_one_pod_work_too(name: str) -> None:
    homeless = jobs_of(3, homes=0)
    for cluster in (CLUSTER, no_network(6)):
        rows = run(homeless, name, cluster)
        assert (rows["kind"] == Kind.COMPLETED).sum() == len(homeless)
        assert not forwarded(rows)


def test_a_copy_in_the_middle_of_a_run_goes_on_alike() -> None:
    """What was forwarded is in the snapshot, so nothing is lost with a scheduler."""
    jobs = jobs_of(5)
    faults = {"faults": Faults(900, 100, 60)}
    first = run(jobs, "even_pods", rng=np.random.default_rng(1), **faults)
    made, n = make("even_pods"), 0

    class Copied:
        def schedule(self, snapshot):
            nonlocal made, n
            n += 1
            made = make("even_pods") if n % 2 else deepcopy(made)
            return made.schedule(snapshot)

    again = run(jobs, Copied(), rng=np.random.default_rng(1), **faults)
    assert len(forwarded(first)) > 0
    assert first.tobytes() == again.tobytes()


def completions(rows: Events, jobs: Jobs) -> dict[str, float]:
    done = rows[rows["kind"] == Kind.COMPLETED]
    return dict(zip(jobs.id[done["job"]].tolist(), done["time_s"].tolist(), strict=True))


# --- forwarding by hand


def gangs(n_workers: list[int], home: list[int], **columns: object) -> Jobs:
    n = len(n_workers)
    given = {"arrival_s": np.arange(n) * 10.0, "total_steps": 1000, "duration_s": 1000.0} | columns
    return Jobs.of(n_workers=n_workers, home=home, worker_demand=np.array([1.0, 1.0, 0.0]), **given)


@pytest.mark.parametrize(
    ("forward", "to"), [("most_free", 3), ("least_free", 1), ("next", 1), ("none", None)]
)  # fmt: skip
def test_where_a_job_goes_that_finds_no_room_at_home(forward: str, to: int | None) -> None:
    """Pod 0 is full; 4 GPUs are free in pod 1, 8 in pod 2 and 12 in pod 3."""
    jobs = gangs([16, 12, 8, 4, 4], [0, 1, 2, 3, 0])
    rows = run(jobs, f"partitioned(placer=pack, forward={forward})")
    assert forwarded(rows) == ({} if to is None else {4: to})
    started = rows[(rows["kind"] == Kind.STARTED) & (rows["job"] == 4)]["time_s"][0]
    assert started == (1000.0 if to is None else 40.0)


def test_the_pod_with_most_free_gpus_is_passed_over_if_it_does_not_hold_the_job() -> None:
    """A worker of two GPUs; pod 3 has eight free, in pieces of one, pod 2 has four."""
    halves = [*[[2.0, 1, 0]] * 3, *[[1.0, 1, 0]] * 16, [2.0, 1, 0]]
    jobs = Jobs.of(
        arrival_s=[*[0.0] * 19, 50.0], total_steps=1000, true_steps=[*[1000] * 3, *[1000, 10] * 8, 1000],
        duration_s=1000.0, home=[0, 1, 2, *[3] * 16, 0], n_workers=[8, 8, 6, *[1] * 16, 1], worker_demand=halves,
    )  # fmt: skip
    assert forwarded(run(jobs, "partitioned(placer=first_fit)")) == {19: 2}


def test_a_job_larger_than_its_home_is_forwarded() -> None:
    jobs = gangs([20, 2], [1, 1])
    cluster = uneven_pods()
    assert forwarded(run(jobs, "even_pods", cluster)) == {0: 0}


def uneven_pods() -> Cluster:
    """Six machines of four GPUs: five of them are pod 0."""
    cluster = no_network(6)
    return replace(cluster, partition=np.array([0, 0, 0, 0, 0, 1], np.int32))


def test_a_gang_that_its_pod_holds_but_not_evenly_is_packed_there() -> None:
    """Two machines of 4 and 2 GPUs are a pod: six workers fit, but in no equal parts, whatever other pods could do."""
    whole = no_network(4)
    capacity = whole.capacity.copy()
    capacity[2:4, 0] = 1  # machine 1 has 2 GPUs
    cluster = replace(whole, capacity=capacity, partition=np.array([0, 0, 1, 1], np.int32))
    jobs = gangs([6], [0])
    rows = run(jobs, "partitioned(placer=even, forward=none)", cluster)
    assert set(pods_of(rows, cluster)) == {(0, 0)}


def test_a_scheduler_of_the_whole_cluster_is_told_to_forward_too() -> None:
    """Whichever scheduler places a job away from home: the event is the session's."""
    jobs = gangs([4, 4, 4, 4, 4], [3] * 5)
    rows = run(jobs, "fifo(placer=first_fit)")
    sent = forwarded(rows)
    assert sent == dict.fromkeys(range(4), 0) | {4: 1}
    first = rows[rows["kind"] == Kind.FORWARDED][0]
    assert first["time_s"] == 0.0
    assert first["job"] == 0


def test_a_job_partly_at_home_is_not_forwarded() -> None:
    jobs = gangs([4, 16], [0, 0])
    rows = run(jobs, "fifo(placer=first_fit)")
    assert {pod for job, pod in pods_of(rows) if job == 1} == {0, 1}
    assert not forwarded(rows)


def test_a_recording_is_not_told_twice() -> None:
    jobs = jobs_of(5)
    rows = run(jobs, "even_pods")
    assert forwarded(rows)
    replayed = Session(Replay(jobs, CLUSTER, recorded=rows))
    while not replayed.done:
        replayed.step(make("even_pods").schedule(replayed.snapshot()))
    assert replayed.log.rows.tobytes() == rows.tobytes()
    old = rows[rows["kind"] != Kind.FORWARDED]  # of a labkit that told of no pods
    again = Session(Replay(jobs, CLUSTER, recorded=old))
    while not again.done:
        again.step(make("even_pods").schedule(again.snapshot()))
    assert again.log.rows.tobytes() == rows.tobytes()


# --- where tasks go


def test_load_balance_spreads_and_whole_gang_packs() -> None:
    jobs = gangs([2, 2, 2], [0, 0, 0])
    used = {}
    for name in ("load_balance", "whole_gang", "kubernetes"):
        rows = run(jobs, name)
        placed = rows[rows["kind"] == Kind.PLACED]
        used[name] = set(CLUSTER.group_machine[placed["group"]].tolist())
        assert used[name] <= {0, 1, 2, 3}
    assert used["load_balance"] == {0, 1, 2, 3}  # four tasks on four machines, the third job anywhere
    assert used["whole_gang"] == {0, 1}  # two jobs fill a machine, the third one opens another
    assert used["kubernetes"] == {0, 1, 2, 3}


def test_kubernetes_counts_what_stays_free_with_the_task_there() -> None:
    """Machines of 4 GPUs, 16 cores and of 2 GPUs, 4 cores: the first worker goes to the large one.

    The second would leave (2/4 + 14/16) / 2 there and (1/2 + 3/4) / 2 on the small one, which is empty: LB takes it.
    """
    cluster = no_network(2)
    capacity = cluster.capacity.copy()
    capacity[2:4] = [1, 2, 0]
    capacity[:, 2] = 0
    cluster = replace(cluster, capacity=capacity)
    jobs = gangs([2], [-1], arrival_s=[0.0])
    where = {}
    for name in ("load_balance", "kubernetes"):
        placed = run(jobs, name, cluster)
        placed = placed[placed["kind"] == Kind.PLACED]
        where[name] = sorted(np.repeat(cluster.group_machine[placed["group"]], placed["value"].astype(int)).tolist())
    assert where == {"load_balance": [0, 1], "kubernetes": [0, 0]}


# --- what is refused


@pytest.mark.parametrize(
    ("jobs", "cluster", "name", "told"),
    [
        (gangs([17], [0], id=["big"]), CLUSTER, "even_pods", r"job big asks for 17 workers.*none of the 4 pods"),
        (
            gangs([20], [1], id=["big"]),
            uneven_pods(),
            "even_pods(forward=none)",
            r"job big asks for 20 workers.*its pod 1, and nothing is forwarded",
        ),
        (gangs([1], [4], id=["far"]), CLUSTER, "even_pods", r"job far arrives in pod 4; fat_tree\(4\) has pods 0 to 3"),
    ],
)
def test_what_can_never_run_is_refused_with_its_name(jobs: Jobs, cluster: Cluster, name: str, told: str) -> None:
    with pytest.raises(InputError, match=told):
        run(jobs, name, cluster)


def test_a_pod_without_gpus_is_refused() -> None:
    capacity = CLUSTER.capacity.copy()
    capacity[CLUSTER.partition[CLUSTER.group_machine] == 2, 0] = 0
    with pytest.raises(InputError, match=r"pod 2 of fat_tree.* has no GPU"):
        run(jobs_of(0), "even_pods", replace(CLUSTER, capacity=capacity))


def test_an_unknown_way_to_forward_is_refused() -> None:
    with pytest.raises(InputError, match=r"most_fre.*Did you mean 'most_free'"):
        make("partitioned(forward=most_fre)")


def test_a_home_that_is_not_there_is_refused_without_begin_too() -> None:
    jobs = gangs([1], [4], id=["far"])
    session = Session(Simulator(jobs, CLUSTER, speed=Recorded(jobs, CLUSTER)))
    with pytest.raises(InputError, match="job far arrives in pod 4"):
        session.run(make("even_pods"))


def test_pods_of_vl2_have_a_scheduler_each() -> None:
    cluster = vl2(8, 4, per_rack=2, gbps=(10, 20, 40))
    jobs = jobs_of(1, 60)
    for name in IN_PODS:
        assert (run(jobs, name, cluster)["kind"] == Kind.COMPLETED).sum() == len(jobs)
