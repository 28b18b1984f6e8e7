"""Events, clusters, placements and errors: small nouns that everything stands on."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given

from labkit.core import EVENT, Cluster, EventLog, Gangs, Jobs, Kind, Placement, TraceError
from labkit.core.errors import (
    InputError,
    LabkitError,
    PlacementError,
    ProfileError,
    StaleSnapshotError,
    StalledError,
    unknown,
)
from labkit.core.events import events, from_frame, to_frame
from labkit.testing import DecisionScene, same_events
from labkit.testing.strategies import clusters, scenes


@given(scene=scenes())
def test_events_go_through_a_table_unchanged(scene: DecisionScene) -> None:
    assert same_events(from_frame(to_frame(scene.rows)), scene.rows)


def test_an_event_table_reads_as_one_would_say_it() -> None:
    batch = events(2)
    batch["kind"], batch["role"], batch["job"] = [Kind.ARRIVED, Kind.PLACED], [-1, 1], 3
    table = to_frame(batch)
    assert table["kind"].tolist() == ["arrived", "placed"]
    assert table["role"].isna().tolist() == [True, False]
    assert table["seq"].tolist() == [0, 1]


def test_a_log_grows_and_keeps_what_it_was_given() -> None:
    log = EventLog()
    assert len(log.rows) == 0
    for size in (1, 1000, 30, 5000):
        batch = events(size)
        batch["job"] = len(log) + np.arange(size)
        log.append(batch)
    assert log.rows["job"].tolist() == list(range(6031))
    with pytest.raises(ValueError, match="read-only"):
        log.rows["job"][0] = 7


def test_a_row_of_the_log_is_at_most_64_bytes() -> None:
    """The log of 100,000 jobs stays small: five events each are 32 MB."""
    assert EVENT.itemsize <= 64


@given(cluster=clusters())
def test_parts_make_up_the_cluster(cluster: Cluster) -> None:
    assert cluster.n_gpus == cluster.gpus_of_type().sum() == cluster.capacity[:, 0].sum()
    part = cluster.part(0)
    assert part.machines == cluster.machines
    np.testing.assert_array_equal(part.capacity, cluster.capacity)
    assert part.name == f"{cluster.name}[0]"


def test_a_partition_is_a_cluster_of_its_own() -> None:
    from labkit.topology import single_switch

    whole = single_switch(5, partitions=2)
    parts = [whole.part(0), whole.part(1)]
    assert [part.n_machines for part in parts] == [3, 2]
    assert parts[1].machines == whole.machines[3:]
    assert parts[1].group_machine.tolist() == [0, 0, 1, 1]
    assert sum(part.n_gpus for part in parts) == whole.n_gpus


def test_gangs_and_placements_take_scalars_and_columns() -> None:
    gangs = Gangs.of([3, 1], n_workers=2)
    assert gangs.n_workers.tolist() == [2, 2]
    assert gangs.device_type.tolist() == [-1, -1]
    assert gangs.take(np.array([1])).job.tolist() == [1]
    assert len(Placement.nothing()) == len(Placement.nothing().set_jobs) == 0
    assert Placement.of([4], job=[4, 4], role=[0, 1], group=2).count.tolist() == [1, 1]
    with pytest.raises(ValueError, match=r"n_workers has the shape \(3,\) for 2 rows"):
        Gangs.of([1, 2], n_workers=[1, 2, 3])


def test_misspelt_names_are_met_with_the_nearest_whatever_their_case() -> None:
    assert "Did you mean 'SRTF'?" in str(unknown("scheduler", "srtff", ["FIFO", "SRTF"]))
    assert "Did you mean" not in str(unknown("scheduler", "zzz", ["FIFO", "SRTF"]))
    assert "Known: FIFO, SRTF." in str(unknown("scheduler", "zzz", ["SRTF", "FIFO"]))


@pytest.mark.parametrize(
    "error", [InputError, TraceError, ProfileError, PlacementError, StalledError, StaleSnapshotError]
)
def test_every_error_is_caught_by_one_name(error: type[Exception]) -> None:
    """The command line catches LabkitError, prints one line and exits with 2."""
    assert issubclass(error, LabkitError)


def test_messages_are_one_line() -> None:
    with pytest.raises(LabkitError) as caught:
        Jobs.of(arrival_s=[-1, np.nan], total_steps=[0, 0], id=["a", "a"])
    assert "\n" not in str(caught.value)
