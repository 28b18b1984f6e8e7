"""Where gangs may lie: partitions, gangs that wait for as few machines as they need, gangs on so many machines."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import labkit
from labkit.core import Jobs, Kind, Placement
from labkit.core.cluster import Cluster
from labkit.core.errors import InputError, TraceError
from labkit.experiment.experiment import Experiment
from labkit.results.record import RunRecord
from labkit.schedulers import make
from labkit.topology import no_network
from labkit.topology.leaf_spine import leaf_spine
from labkit.topology.servers import Server

EIGHT = Server("eight", sockets=((8, 96, 512),))
PLACERS = (
    "first_fit",
    "pack",
    "spread",
    "even",
    "whole_gang",
    "least_allocated",
    "machine_first",
    "least_interference",
)


def machines(n: int, **partitions: Sequence[int]) -> Cluster:
    """N machines of 8 GPUs, some of them in partitions."""
    made = no_network(n, servers=EIGHT)
    return made.with_partitions({name: [made.machines[m] for m in hosts] for name, hosts in partitions.items()})


def jobs_of(gpus: Sequence[int], **columns: Any) -> Jobs:
    """Jobs of so many GPUs that arrive a second apart and run for 100 s."""
    n = len(gpus)
    return Jobs.of(
        **{"arrival_s": np.arange(n), "total_steps": 100.0, "duration_s": 100.0, "n_workers": list(gpus)} | columns
    )


def starts(record: RunRecord) -> list[float]:
    """When each job first starts."""
    rows = record.events[record.events["kind"] == int(Kind.STARTED)]
    return [float(rows["time_s"][rows["job"] == j][0]) for j in range(len(record.jobs))]


def lies_on(record: RunRecord) -> list[dict[int, int]]:
    """On which machines each job's tasks are first placed, and how many."""
    rows = record.events[record.events["kind"] == int(Kind.PLACED)]
    found: list[dict[int, int]] = []
    for job in range(len(record.jobs)):
        mine = rows[rows["job"] == job]
        mine = mine[mine["time_s"] == mine["time_s"][0]]
        where = record.cluster.group_machine[mine["group"]]
        found.append({int(m): int(mine["value"][where == m].sum()) for m in np.unique(where)})
    return found


# --- partitions


@pytest.mark.parametrize("scheduler", ["fifo", "sjf", "srtf", "las", "easy", "tetris", "drf", "fifo(backfill=True)"])
def test_a_job_is_placed_on_the_hosts_of_its_partition_only(scheduler: str) -> None:
    cluster = machines(3, vision=[0], speech=[1, 2])
    jobs = jobs_of([5, 5, 6, 8, 2], partition=["vision", "vision", "speech", "speech", "vision"])
    record = labkit.simulate(jobs, cluster=cluster, scheduler=scheduler)
    assert record.complete
    for job, where in enumerate(lies_on(record)):
        assert set(where) <= ({0} if jobs.partition_names()[job] == "vision" else {1, 2})


def test_partitions_have_queues_of_their_own() -> None:
    """A job that waits in one partition holds up nobody in another one, as on Helios."""
    jobs = jobs_of([8, 8, 8], partition=["a", "a", "b"])
    assert starts(labkit.simulate(jobs, cluster=machines(2, a=[0], b=[1]), scheduler="fifo")) == [0, 100, 2]


def test_hosts_may_lie_in_several_partitions() -> None:
    jobs = jobs_of([8, 8, 8], partition=["all", "debug", "all"])
    record = labkit.simulate(jobs, cluster=machines(2, all=[0, 1], debug=[1]), scheduler="fifo")
    assert [set(where) for where in lies_on(record)] == [{0}, {1}, {0}]


def test_an_inventory_has_partitions(tmp_path: Path) -> None:
    file = tmp_path / "hosts.toml"
    file.write_text(
        '[[hosts]]\nname = "gpu[1-4]"\ngpus = 8\ncpus = 64\nmemory_gb = 512\n'
        '[groups]\nnew = "gpu[3-4]"\n[partitions]\nvision = "gpu[1-2]"\nall = ["vision", "new"]\n'
    )
    built = labkit.build(str(file))
    assert {name: hosts.tolist() for name, hosts in built.partitions.items()} == {
        "vision": [True, True, False, False], "all": [True] * 4,
    }  # fmt: skip


@pytest.mark.parametrize(
    ("gpus", "columns", "said"),
    [
        ([9], {"partition": "a"}, "partition 'a': job 0 asks for 9 tasks (worker) of 1 GPUs"),
        ([4], {"nodes": 3}, "job 0 asks for 4 workers on 3 machines"),
        ([16], {"nodes": 1}, "job 0 asks for 16 workers on 1 machine;"),
        ([1], {"nodes": 2}, "nodes is 2; expected no more than n_workers"),
        ([1], {"consolidate": "wiat"}, "consolidate is wiat; expected one of wait, prefer, split"),
    ],
)
def test_what_no_machines_can_hold_is_told_in_a_line_before_the_run(
    gpus: list[int], columns: dict[str, Any], said: str
) -> None:
    with pytest.raises(InputError, match=re.escape(said)) as told:
        labkit.simulate(jobs_of(gpus, **columns), cluster=machines(2, a=[0]), scheduler="fifo")
    assert "\n" not in str(told.value).strip().replace(":\n  ", ": ")


def test_a_time_after_which_gangs_are_split_says_so_where_none_waits() -> None:
    for how, told in (("split", True), (None, True), ("wait", False)):
        made = Experiment.of(jobs_of([5, 5]), cluster=machines(2), consolidate=how, consolidate_for_s=30)
        assert any("--consolidate-for changes nothing" in said for said in made.rules) == told


def test_a_partition_without_machines_is_refused() -> None:
    with pytest.raises(InputError, match="partition 'a' has no machines"):
        machines(2, a=[])


def test_partitions_that_a_cluster_lacks_are_told_and_can_be_made() -> None:
    jobs = jobs_of([8, 8, 4, 4], partition=["a", "a", "b", "b"], duration_s=[300, 300, 100, 100])
    with pytest.warns(UserWarning, match="partitions of jobs that .* does not have: 2"):
        plain = labkit.simulate(jobs, cluster=machines(4), scheduler="fifo")
    assert starts(plain) == [0, 1, 2, 3]
    made = Experiment.of(jobs, cluster=machines(4), partitions=True)
    assert {name: int(hosts.sum()) for name, hosts in made.cluster.partitions.items()} == {"a": 3, "b": 1}
    assert made.run("fifo").complete


# --- gangs that wait


def test_a_gang_that_waits_starts_on_as_few_machines_as_it_needs() -> None:
    """Two machines have 3 GPUs free each: a gang of 6 fits in pieces, and waits for one machine."""
    jobs = jobs_of([5, 5, 6])
    for how, third, n in (("prefer", 2.0, 2), ("wait", 100.0, 1)):
        record = labkit.simulate(jobs, cluster=machines(2), scheduler="fifo", consolidate=how)
        assert starts(record)[2] == third
        assert [len(where) for where in lies_on(record)] == [1, 1, n]
    plain = labkit.simulate(jobs, cluster=machines(2), scheduler="fifo", consolidate="split")
    assert plain.events.tobytes() == labkit.simulate(jobs, cluster=machines(2), scheduler="fifo").events.tobytes()


def test_large_gangs_have_whole_machines_and_one_more_for_the_rest() -> None:
    """The rule of Tiresias ("yarn") and Lucid: 12 GPUs are 8 and 4, and not 6 and 6."""
    record = labkit.simulate(jobs_of([2, 12, 2, 12]), cluster=machines(3), scheduler="fifo", consolidate="wait")
    assert sorted(lies_on(record)[1].values()) == [4, 8]
    assert starts(record) == [0, 1, 2, 101]


def test_a_gang_is_split_once_it_has_waited_for_long_enough() -> None:
    record = labkit.simulate(
        jobs_of([5, 5, 6]), cluster=machines(2), scheduler="fifo", consolidate="wait", consolidate_for_s=30
    )
    assert starts(record) == [0, 1, 32]


@pytest.mark.parametrize("placer", PLACERS)
@pytest.mark.parametrize("scheduler", ["fifo", "srtf", "tetris", "las"])
def test_every_placer_lets_gangs_wait(scheduler: str, placer: str) -> None:
    rng = np.random.default_rng(3)
    gpus = rng.choice([1, 2, 4, 6, 8, 12, 16], 60)
    jobs = jobs_of(gpus.tolist(), arrival_s=np.sort(rng.integers(0, 900, 60)), duration_s=rng.integers(20, 400, 60))
    record = labkit.simulate(jobs, cluster=machines(4), scheduler=f"{scheduler}(placer={placer})", consolidate="wait")
    assert record.complete
    assert [len(where) for where in lies_on(record)] == np.ceil(gpus / 8).astype(int).tolist()


def test_a_gang_lies_on_the_machines_that_it_names() -> None:
    record = labkit.simulate(jobs_of([4, 6, 8], nodes=[2, 3, 1]), cluster=machines(3), scheduler="fifo")
    assert [sorted(where.values()) for where in lies_on(record)] == [[2, 2], [2, 2, 2], [8]]


class Anywhere:
    """A scheduler of a user's own that knows no rules: it puts tasks one by one wherever a GPU is free."""

    def schedule(self, snapshot: Any) -> Placement:
        """Start what fits in all."""
        free, rows, started = snapshot.free[:, 0].copy(), [], []
        for job in snapshot.waiting.tolist():
            n = int(snapshot.table.n_workers[job])
            if free.sum() < n:
                continue
            started.append(job)
            for _ in range(n):
                group = int(free.argmax())
                free[group] -= 1
                rows.append((job, group))
        job, group = np.array(rows, np.int32).reshape(-1, 2).T
        pairs, count = np.unique(np.stack([job, group]), axis=1, return_counts=True)
        return Placement.of(started, job=pairs[0], role=0, group=pairs[1], count=count)


def test_a_scheduler_that_knows_no_rules_is_held_to_them() -> None:
    jobs = jobs_of([4, 4, 12, 6, 8], partition=["a", "a", "", "", ""])
    record = labkit.simulate(jobs, cluster=machines(3, a=[0]), scheduler=Anywhere(), consolidate="wait")
    assert record.complete
    where = lies_on(record)
    assert [len(each) for each in where] == [1, 1, 2, 1, 1]
    assert set(where[0]) == set(where[1]) == {0}
    assert any("placed anew" in said for said in record.reasons)


# --- jobs that go on


@given(
    name=st.sampled_from(["srtf", "las(threshold_gpu_s=300)", "las(order=start, threshold_gpu_s=300)"]),
    consolidate=st.sampled_from(["wait", "split"]), seed=st.integers(0, 2**32 - 1),
)  # fmt: skip
def test_a_job_that_goes_on_keeps_its_machines_while_they_have_room_for_it(
    name: str, consolidate: str, seed: int
) -> None:
    rng = np.random.default_rng(seed)
    n = 80
    gpus, duration_s = rng.choice([1, 1, 1, 2, 4, 6, 8, 12], n), np.round(rng.lognormal(4, 1.5, n)) + 1
    arrival_s = np.cumsum(rng.choice([0.0, 1, 40], n)) * (gpus * duration_s).sum() / (24.0 * 20 * n)
    jobs = jobs_of(gpus.tolist(), arrival_s=arrival_s, duration_s=duration_s, total_steps=duration_s)
    record = labkit.simulate(jobs, cluster=machines(3), scheduler=name, consolidate=consolidate)
    assert record.complete
    held: dict[int, np.ndarray] = {}
    for at_s in np.unique(record.events["time_s"]):
        before, rows = dict(held), record.events[record.events["time_s"] == at_s]
        for event in rows[np.isin(rows["kind"], [Kind.COMPLETED, Kind.PREEMPTED])]:
            held.pop(int(event["job"]), None)
        placed = rows[rows["kind"] == Kind.PLACED]
        for job in np.unique(placed["job"]).tolist():
            mine = placed[placed["job"] == job]
            held[job] = np.bincount(mine["group"], mine["value"], 3)
        moved = [job for job in np.unique(placed["job"]).tolist() if job in before]
        others = np.sum([there for job, there in held.items() if job not in moved], axis=0)
        for job in moved:
            assert (others + before[job] > 8).any()


def test_a_move_may_make_room_for_a_gang_that_waits() -> None:
    """A gang of 8 GPUs and 20 s arrives at 60 s, when no machine of 8 is free: jobs of one GPU run on both.

    Where they move they go to the second machine, and a job of 6 stops there. Where they stay, the gang waits for the
    job of 3,000 s that started at 60 s.
    """
    seconds = [1000.0, 50, 5000, 100, 20, 3000]
    jobs = jobs_of([1, 7, 6, 1, 8, 1], arrival_s=[0, 1, 2, 3, 60, 60], duration_s=seconds, total_steps=seconds)
    runs = [
        labkit.simulate(jobs, cluster=machines(2), scheduler=name, consolidate="wait")
        for name in ("srtf", "srtf(moves=True)")
    ]
    assert [starts(run)[4] for run in runs] == [3060, 60]


# --- racks and pods


def splits(n_workers: int, idle: np.ndarray) -> bool:
    """Return whether machines hold a gang in shares that are as equal as can be, for some number of machines."""
    return any(
        (idle >= n_workers // k).sum() >= k and (idle > n_workers // k).sum() >= n_workers % k
        for k in range(1, min(len(idle), n_workers) + 1)
    )


@pytest.mark.parametrize(
    "name",
    [
        "fifo(backfill=True)",
        "fifo(backfill=True,placer=first_fit)",
        "srtf",
        "easy",
        "slurm",
        "gavel_las",
        "fifo(placer=spread)",
        "fifo(placer=fgd)",
    ],
)
@given(seed=st.integers(0, 2**32 - 1))
@settings(max_examples=5)
def test_a_gang_lies_within_one_rack_and_starts_as_soon_as_one_has_room(name: str, seed: int) -> None:
    rng = np.random.default_rng(seed)
    leaves, per_leaf = (int(n) for n in rng.integers(1, 4, 2))
    cluster = leaf_spine(leaves, 1, per_leaf, servers=Server("s", ((4, 1e3, 1e3),)))
    n, most = int(rng.integers(2, 12)), 4 * per_leaf
    jobs = Jobs.of(
        arrival_s=np.sort(rng.choice([0.0, 1, 50], n)), total_steps=rng.choice([50.0, 100], n), duration_s=100,
        n_workers=rng.integers(1, most + 1, n), within=rng.choice(["rack", "rack", "pod", ""], n).astype(object),
    )  # fmt: skip
    experiment = Experiment.of(jobs, cluster=cluster, speed="recorded")
    log = experiment.session(make(name)).run(make(name))
    rack = np.arange(cluster.n_groups) // per_leaf  # a pod here is a rack
    free, held, lies, waits = np.full(leaves, most), {}, {}, set()
    for at_s in np.unique(log["time_s"]):
        now = log[log["time_s"] == at_s]
        for row in now:
            job = int(row["job"])
            if row["kind"] == Kind.ARRIVED:
                waits.add(job)
            if row["kind"] in (Kind.COMPLETED, Kind.PREEMPTED):
                free += held.pop(job)
                lies.pop(job)
                waits |= {job} if row["kind"] == Kind.PREEMPTED else set()
        for job in dict.fromkeys(now["job"][now["kind"] == Kind.PLACED].tolist()):
            mine = now[(now["kind"] == Kind.PLACED) & (now["job"] == job)]
            free += held.pop(job, 0)
            held[job] = np.bincount(rack[mine["group"]], mine["value"], leaves).astype(int)
            lies[job] = (mine["group"], mine["value"])
            assert jobs.within[job] == "" or np.count_nonzero(held[job]) == 1
            free -= held[job]
            waits.discard(job)
        assert (free >= 0).all()
        if name.endswith("first_fit)"):
            assert not any(jobs.n_workers[j] <= (free.max() if jobs.within[j] else free.sum()) for j in waits)
        elif name == "fifo(backfill=True)":  # even shares, as by default where there is a network
            idle = 4 - sum((np.bincount(*one, cluster.n_groups) for one in lies.values()), np.zeros(cluster.n_groups))
            racks = [idle[rack == r] for r in range(leaves)]
            assert not any(
                splits(int(jobs.n_workers[j]), part) for j in waits for part in (racks if jobs.within[j] else [idle])
            )
    assert not waits
    assert not held


def test_what_no_rack_holds_is_refused_in_one_line() -> None:
    cluster = leaf_spine(2, 1, 2, servers=Server("s", ((4, 1e3, 1e3),)))
    wide = Jobs.of(arrival_s=[0], total_steps=[1], duration_s=1, n_workers=9, within="rack")
    with pytest.raises(InputError, match=r"job 0 is to lie within one rack; none of .* holds its 9 GPUs, not even"):
        Experiment.of(wide, cluster=cluster, speed="recorded").session(make("fifo"))
    with pytest.raises(InputError, match=r"no_network\(4\) has none: its machines hang on no switches"):
        Experiment.of(wide, cluster=no_network(4), speed="recorded")
    with pytest.raises(TraceError, match="within is shelf; expected rack or pod, or none"):
        wide.with_columns(within=["shelf"])
