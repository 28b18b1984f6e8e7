"""Jobs are kept to machines with the features that they ask for, and to partitions that no inventory names."""

from dataclasses import replace

import numpy as np
import pytest

import labkit
from labkit.core import Jobs
from labkit.core.hosting import machines_with
from labkit.experiment.caveats import Caveat
from labkit.topology import no_network
from labkit.topology.servers import Server

FOUR = no_network(4, servers=Server("four", ((4, 16, 64),)))
CLUSTER = replace(FOUR, features={"old": np.array([1, 1, 0, 0], bool), "big": np.array([0, 1, 1, 0], bool)})


def hosts(jobs: Jobs, cluster=CLUSTER, scheduler: str = "fifo") -> list[set[int]]:
    """Return the machines on which each job was placed."""
    events = labkit.simulate(jobs, scheduler=scheduler, cluster=cluster).events
    placed = events[events["kind"] == labkit.core.events.Kind.PLACED]
    machine = cluster.group_machine[placed["group"]]
    return [set(machine[placed["job"] == job].tolist()) for job in range(len(jobs))]


def jobs(**columns) -> Jobs:
    """Return two jobs of four GPUs."""
    return Jobs.of(arrival_s=[0, 0], total_steps=[100, 100], duration_s=100, n_workers=4, **columns)


@pytest.mark.parametrize(
    ("constraint", "expected"),
    [("old", [0, 1]), ("old&big", [1]), ("old|big", [0, 1, 2]), ("[old|big]", [0, 1, 2]), ("old*2&big*1", [1]),
     ("(old|big)&@m2", [2]), ("old,big", [1])],
)  # fmt: skip
def test_constraints_of_slurm_name_machines(constraint: str, expected: list[int]) -> None:
    found = machines_with(constraint, CLUSTER)
    assert found is not None
    assert np.flatnonzero(found).tolist() == expected


@pytest.mark.parametrize("scheduler", ["fifo", "easy", "srtf", "drf", "slurm", "tetris"])
def test_a_job_sits_on_machines_with_its_features_under_every_scheduler(scheduler: str) -> None:
    assert hosts(jobs(constraint="big"), scheduler=scheduler) in ([{1}, {2}], [{2}, {1}])


def test_features_that_the_cluster_lacks_are_told_and_change_nothing() -> None:
    with pytest.warns(Caveat, match="constraints of jobs on features that .* does not have: 1 of 2 jobs"):
        labkit.simulate(jobs(constraint=["", "gone"]), scheduler="fifo", cluster=CLUSTER)


def test_partitions_that_no_inventory_names_are_those_of_the_types_that_jobs_ran_on() -> None:
    kinds = [
        (1, Server("a", ((4, 16, 64),), device_type="a100")),
        (1, Server("v", ((4, 16, 64),), device_type="v100")),
    ]
    mixed = no_network(2, servers=kinds)
    some = jobs(partition=["slow", "slow"], measured_on="v100")
    record = labkit.simulate(some, scheduler="fifo", cluster=mixed)
    assert record.table["first_start_s"].tolist() == [0, 100]
    assert any("names no partitions" in note and "slow: v100" in note for note in record.info.config["notes"])
    with pytest.warns(Caveat, match="partitions of jobs that .* does not have"):
        free = labkit.simulate(some, scheduler="fifo", cluster=mixed, any_type=True)
    assert free.table["first_start_s"].tolist() == [0, 0]
