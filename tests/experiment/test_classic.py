"""Stretches in compiled code tell the same story as the readable path, event by event."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from labkit.core import Cluster, InputError, Jobs, StalledError
from labkit.core.device_types import may_run_on
from labkit.core.events import EVENT, EventLog, Events, Kind, events
from labkit.core.hosting import HostRules
from labkit.core.protocols import Scheduler
from labkit.experiment import Session, at_events
from labkit.experiment.classic.nouns import Belief
from labkit.experiment.classic.order import _turn_s, has_turned
from labkit.experiment.classic.stretches import Stretches, _trace
from labkit.experiment.fitting import without_too_large
from labkit.schedulers import make
from labkit.schedulers.fifo import Fifo
from labkit.schedulers.rule import BY_QUEUE, BY_REMAINING, may_move, rule_of
from labkit.simulator import Overheads, Simulator
from labkit.speed.recorded import Recorded
from labkit.topology import no_network
from labkit.topology.servers import Server

SCHEDULERS = (
    "fifo", "fifo(backfill=True)", "sjf", "sjf(backfill=True)", "srtf(moves=False)", "las(moves=False)",
    "las(threshold_gpu_s=40, moves=False)", "srtf(moves=True)", "las(threshold_gpu_s=40, moves=True)",
)  # fmt: skip
FEW_CORES, MANY_CORES = (Server(f"{n} cores", ((4, n, 64.0),)) for n in (8, 16))


def random_cluster(rng: np.random.Generator, *, whole: bool) -> Cluster:
    """Return a few machines of one to three types, with one or two sockets."""
    kinds = []
    for t in range(rng.integers(1, 4)):
        gpus = float(rng.integers(1, 5))
        cores = 2 * gpus + float(rng.integers(0, 5))
        sockets = ((gpus, cores if whole else 1.1 * cores, 64.0),) * int(rng.integers(1, 3))
        kinds.append((int(rng.integers(1, 4)), Server(f"server{t}", sockets, device_type=("v100", "p100", "k80")[t])))
    return no_network(sum(n for n, _ in kinds), servers=kinds)


def random_jobs(rng: np.random.Generator, cluster: Cluster, *, whole: bool) -> Jobs:
    """Return jobs of a few kinds in bursts, with ties in arrivals and durations, some of which outlive their steps."""
    n = int(rng.integers(1, 40))
    demands = np.array([[1.0, 1, 0], [1, 2, 8], [1, 0, 0]])
    if not whole:
        parts = rng.choice([0.1, 0.25, 0.3, 0.5, 0.6, 0.7, 1.0, 2.0], 3) if rng.random() < 0.8 else [1.0, 1.0, 2.0]
        demands = np.column_stack([parts, [0.7, 1, 0.2], [1.1, 0.1, 3.3]])
    duration_s = rng.choice([5.0, 10.0, 10.0 / 3, 60.0, 700.0], n)
    steps = rng.choice([10.0, 7.0, 100.0], n)
    n_workers = rng.choice([1, 1, 2, 3, 4], n)
    return Jobs.of(
        arrival_s=np.sort(rng.choice([0.0, 1, 2.5, 30, 31, 600, 5000], n)), total_steps=steps,
        true_steps=steps * rng.choice([1.0, 1.0, 0.5, 1.7], n), duration_s=duration_s,
        n_workers=np.minimum(n_workers, int(cluster.n_gpus)), worker_demand=demands[rng.integers(0, 3, n)],
    )  # fmt: skip


def session(jobs: Jobs, cluster: Cluster, scheduler: Scheduler, *, compiled: bool | None, **options: object) -> Session:
    simulator = Simulator(jobs, cluster, speed=Recorded(jobs, cluster))
    cadence = at_events(quantum_s=getattr(scheduler, "quantum_s", np.inf))
    return Session(simulator, cadence=cadence, compiled=compiled, **options)  # type: ignore[arg-type]


def test_every_classic_scheduler_has_a_rule_where_it_places_by_first_fit() -> None:
    assert all(rule_of(make(name), no_network(2)) is not None for name in SCHEDULERS)
    assert rule_of(make("fifo(published=True)"), no_network(2)) is None
    assert rule_of(make("tetris"), no_network(2)) is None


def test_running_jobs_move_where_a_part_of_the_cluster_mixes_types() -> None:
    types = no_network(2, servers=[(1, Server("a", ((4, 8, 64.0),), device_type=t)) for t in ("k80", "v100")])
    assert not may_move(no_network(2), None)
    assert may_move(types, None)
    assert not may_move(types, moves=False)
    apart = types.with_partitions({"old": types.machines[:1], "new": types.machines[1:]})
    assert not may_move(apart, None)
    assert may_move(apart.with_partitions({"all": types.machines}), None)


def test_a_scheduler_that_decides_otherwise_than_its_parent_has_no_rule() -> None:
    class Lazy(Fifo):
        def schedule(self, snapshot):  # type: ignore[no-untyped-def]
            return super().schedule(snapshot)

    assert rule_of(Lazy(), no_network(2)) is None


def with_rules(rng: np.random.Generator, jobs: Jobs, cluster: Cluster) -> tuple[Jobs, Cluster]:
    """Return jobs with random manners, numbers of machines and partitions, and a cluster of one group a machine."""
    kinds = [
        (int(rng.integers(1, 4)), Server(f"s{t}", ((float(rng.integers(1, 5)), 20.0, 64.0),), device_type=f"t{t}"))
        for t in range(rng.integers(1, 4))
    ]
    cluster = no_network(sum(n for n, _ in kinds), servers=kinds)
    names = np.array(cluster.machines)
    if rng.random() < 0.7:
        cut = int(rng.integers(0, len(names) + 1))
        parts = {"low": names[:cut], "high": names[cut:], "all": names, "odd": names[::2]}
        cluster = cluster.with_partitions({name: hosts.tolist() for name, hosts in parts.items() if len(hosts)})
    some = ["low", "high", "all", "odd"][: rng.integers(1, 5)]
    jobs = jobs.with_columns(
        consolidate=rng.choice(["wait", "prefer", "split", ""], len(jobs)).astype(object),
        nodes=np.where(rng.random(len(jobs)) < 0.2, rng.integers(1, jobs.n_workers + 1), 0).astype(np.int32),
        partition=[str(name) for name in rng.choice(["", *some] if rng.random() < 0.5 else some, len(jobs))],
    )
    rules = HostRules.of(jobs, cluster)
    kept = without_too_large(jobs, cluster, np.ones((len(jobs), len(cluster.device_types)), np.bool_), rules)
    return kept, cluster


def differs(seed: int) -> bool:
    """Return whether the paths differ in a random case: parts of GPUs, sets of types, shapes, manners, partitions."""
    rng = np.random.default_rng([28, seed])
    name, whole = SCHEDULERS[seed % len(SCHEDULERS)], seed % 5 == 0
    cluster = random_cluster(rng, whole=whole)
    jobs, rules = random_jobs(rng, cluster, whole=whole), None
    try:
        if rng.random() < 0.6:
            jobs, cluster = with_rules(rng, jobs, cluster)
        kinds = [*cluster.device_types, "|".join(cluster.device_types[:2]), f"!{cluster.device_types[-1]}"]
        some = ["", *kinds[: -1 if len(cluster.device_types) == 1 else None]]
        jobs = jobs.with_columns(device_type=rng.choice(some, len(jobs)).astype(object))
        rules, runs_on = HostRules.of(jobs, cluster), may_run_on(jobs, cluster)
        jobs = without_too_large(jobs, cluster, runs_on, rules)
    except InputError:  # not one job fits
        return False
    rules, runs_on = HostRules.of(jobs, cluster), may_run_on(jobs, cluster)
    runs = [session(jobs, cluster, make(name), compiled=c, hosting=rules, runs_on=runs_on) for c in (False, True)]
    told = [run.run(make(name)).tobytes() for run in runs]
    left = [
        b"".join(part.tobytes() for part in (run.ledger.book.left, run.ledger.book.free, run.ledger.belief))
        for run in runs
    ]
    n = {run.n_decisions for run in runs} | {len(runs[1].decide_s)}
    return told[0] != told[1] or left[0] != left[1] or len(n) != 1


def test_fifty_random_cases_are_the_same_on_both_paths() -> None:
    assert [seed for seed in (*range(50), 2461) if differs(seed)] == []


def test_ten_thousand_random_cases_are_the_same_on_both_paths() -> None:
    assert [seed for seed in range(10_000) if differs(seed)] == []


def test_compiled_code_runs_where_partitions_divide_the_cluster() -> None:
    cluster = no_network(2)
    cluster = cluster.with_partitions({"a": cluster.machines[:1], "b": cluster.machines[1:]})
    jobs = Jobs.of(arrival_s=np.arange(40), total_steps=60, duration_s=60, n_workers=2, partition=["a", "b"] * 20)
    rules = HostRules.of(jobs, cluster)
    assert rules is not None
    assert len(rules.parts) == 2
    for name in SCHEDULERS:
        run = session(jobs, cluster, make(name), compiled=True, hosting=rules)
        stretches = Stretches.of(run, make(name))
        assert stretches is not None
        assert stretches.go(np.inf)
        assert run.done


def test_compiled_code_runs_where_tasks_take_parts_of_gpus() -> None:
    jobs = Jobs.of(arrival_s=np.arange(40), total_steps=60, duration_s=60, worker_demand=(0.6, 1, 0))
    for name in SCHEDULERS:
        run = session(jobs, no_network(2), make(name), compiled=True)
        stretches = Stretches.of(run, make(name))
        assert stretches is not None
        assert stretches.go(np.inf)
        assert run.done


@pytest.mark.parametrize("name", ["srtf", "las(threshold_gpu_s=300)"])
@given(seed=st.integers(0, 2**32 - 1), seconds=st.sampled_from([0, 60]))
def test_long_queues_and_large_gangs_preempt_the_same_jobs(name: str, seed: int, seconds: int) -> None:
    rng = np.random.default_rng(seed)
    n, cluster = 120, no_network(5)
    gpus = rng.choice([1, 1, 1, 2, 4, 8, 16], n)
    duration_s = rng.lognormal(5, 2, n)
    if seconds:  # then many ends, declared, are at the same moment
        duration_s = seconds * np.ceil(duration_s / seconds)
    arrival_s = np.cumsum(rng.choice([0.0, 1, 60], n)) * (gpus * duration_s).sum() / (40.0 * cluster.n_gpus * n)
    jobs = Jobs.of(
        arrival_s=arrival_s, total_steps=duration_s, true_steps=duration_s * rng.choice([1.0, 1.0, 0.4, 1.3], n),
        duration_s=duration_s, n_workers=gpus,
    )  # fmt: skip
    told = [session(jobs, cluster, make(name), compiled=compiled).run(make(name)) for compiled in (False, True)]
    assert (told[0]["kind"] == Kind.PREEMPTED).any()
    assert told[0].tobytes() == told[1].tobytes()


@pytest.mark.parametrize("name", ["fifo(backfill=True)", "sjf(backfill=True)"])
@given(seed=st.integers(0, 2**32 - 1))
def test_backfill_tries_each_kind_again_once_it_may_have_room(name: str, seed: int) -> None:
    rng = np.random.default_rng(seed)
    n, cluster = 120, no_network(6, servers=[(3, FEW_CORES), (3, MANY_CORES)])
    demands = np.array([[1.0, 1, 0], [1, 6, 0], [2, 1, 0], [4, 4, 0], [4, 16, 0]])  # the last fits some machines only
    kinds = rng.integers(0, len(demands), n)
    n_workers = np.where(kinds == 4, rng.integers(1, 4, n), rng.choice([1, 1, 2, 3, 5], n))
    duration_s = rng.choice([7.0, 60, 61, 900], n) * rng.choice([1.0, 1.0, 1 / 3], n)
    gpu_s = n_workers * demands[kinds, 0] * duration_s
    arrival_s = np.cumsum(rng.choice([0.0, 1, 60], n)) * gpu_s.sum() / (40.0 * cluster.n_gpus * n)
    jobs = Jobs.of(
        arrival_s=arrival_s, total_steps=duration_s, duration_s=duration_s, n_workers=n_workers,
        worker_demand=demands[kinds],
    )  # fmt: skip
    told = [session(jobs, cluster, make(name), compiled=compiled).run(make(name)) for compiled in (False, True)]
    started, arrived = told[0]["time_s"][told[0]["kind"] == Kind.STARTED], jobs.arrival_s
    assert not np.isin(started, arrived).all()  # most wait, and start when another one completes
    assert told[0].tobytes() == told[1].tobytes()


@pytest.mark.parametrize("by", [BY_REMAINING, BY_QUEUE])
@given(seed=st.integers(0, 2**32 - 1))
def test_the_moment_at_which_a_job_turns_is_exact(by: int, seed: int) -> None:
    rng = np.random.default_rng(seed)
    total, speed, now_s = 10 ** rng.uniform(0, 7), 10 ** rng.uniform(-3, 3), rng.choice([0.0, 10 ** rng.uniform(0, 8)])
    cluster, jobs = no_network(1), Jobs.of(arrival_s=[0.0], total_steps=[total], duration_s=total / speed)
    run = session(jobs, cluster, make("srtf"), compiled=True)
    trace = _trace(run)
    assert trace is not None
    at = run.ledger.belief
    at["steps"], at["since_s"], at["speed"] = rng.uniform(0, 0.98) * total, now_s, speed
    at["attained_gpu_s"], at["held_since_s"], at["held_gpus"] = rng.uniform(0, 0.99) * total, now_s, rng.choice([1, 3])
    mind = Belief(**run.ledger.columns(n_tasks=1))
    turn_s = _turn_s(by, 0, trace, mind, now_s, total)
    assert turn_s > now_s
    assert has_turned(by, 0, trace, mind, turn_s, total)
    assert not has_turned(by, 0, trace, mind, np.nextafter(turn_s, -np.inf), total)


@given(seed=st.integers(0, 2**32 - 1))
def test_paths_may_take_turns_within_a_run(seed: int) -> None:
    rng = np.random.default_rng(seed)
    cluster = random_cluster(rng, whole=True)
    jobs = random_jobs(rng, cluster, whole=True)
    names = rng.choice(SCHEDULERS, 6)
    told = []
    for compiled in (False, True):
        run = session(jobs, cluster, make("las"), compiled=compiled)
        for turn, name in enumerate(names):
            run.run(make(name), until_s=[2.0, 4, 30, 100, 700, np.inf][turn])
            run.compiled = not run.compiled if compiled else False
        told.append(run.log.rows.tobytes())
    assert told[0] == told[1]


def test_a_compiled_run_stalls_as_the_readable_one_does() -> None:
    cluster = no_network(1)
    jobs = Jobs.of(arrival_s=[0, 0], total_steps=[60, 60], duration_s=60, n_workers=4)
    told = []
    for compiled in (False, True):
        run = session(jobs, cluster, make("fifo"), compiled=compiled, on_stall="stop")
        run.ledger.book.free[:] = 0.0  # what is believed to be free never suffices
        told.append((run.run(make("fifo")).tobytes(), run.stalled, run.done))
    assert told[0] == told[1]
    assert told[0][1].startswith("2 jobs wait for ever")
    run = session(jobs, cluster, make("fifo"), compiled=True)
    run.ledger.book.free[:] = 0.0
    with pytest.raises(StalledError, match="2 jobs wait"):
        run.run(make("fifo"))


def test_observers_hear_of_all_events_in_order() -> None:
    rng = np.random.default_rng(5)
    cluster = random_cluster(rng, whole=True)
    jobs = random_jobs(rng, cluster, whole=True)
    heard: list[Events] = []
    run = session(jobs, cluster, make("srtf"), compiled=True, observers=[heard.append])
    rows = run.run(make("srtf"))
    assert np.concatenate(heard).tobytes() == rows.tobytes()


def test_a_run_with_overheads_is_left_to_the_readable_path() -> None:
    jobs, cluster = Jobs.of(arrival_s=[0, 1], total_steps=[60, 60], duration_s=60), no_network(1)
    slow = Simulator(jobs, cluster, speed=Recorded(jobs, cluster), overheads=Overheads(start_s=5))
    assert slow.plain_overheads() is None
    assert Session(slow, compiled=True).run(make("fifo"))["time_s"][-1] == 66


def test_a_log_joins_large_batches_when_it_is_looked_at() -> None:
    log, batches = EventLog(), [events(n) for n in (3, 5000, 4096, 2, 9000, 1)]
    for i, batch in enumerate(batches):
        batch["job"] = i
        log.append(batch)
        assert len(log) == sum(map(len, batches[: i + 1]))
    assert log.rows.dtype == EVENT
    assert log.rows.tobytes() == np.concatenate(batches).tobytes()
