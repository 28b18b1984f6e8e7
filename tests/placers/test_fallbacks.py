"""What was asked and finds no room in one piece: it is placed otherwise, and what is still missing is told."""

from __future__ import annotations

import numpy as np
import pytest

from labkit.core import Gangs, Jobs, Kind, Placement, Placer, Snapshot
from labkit.experiment import Experiment, every_slot
from labkit.placers import Even, FirstFit, Pack, Spread
from labkit.results import notes
from labkit.schedulers import make
from labkit.schedulers.drf import Drf
from labkit.testing.scenes import empty_snapshot
from labkit.testing.schedulers import same
from labkit.topology import leaf_spine, no_network
from labkit.topology.servers import Server
from tests.schedulers import dl2


def stranded() -> tuple[Snapshot, Gangs]:
    """Return two jobs that fit two machines exactly: one of cores alone, one of GPUs with two cores each."""
    cluster = no_network(2, servers=Server("s", sockets=((2, 8, 64),)))
    jobs = Jobs.of(
        arrival_s=[0, 0], total_steps=1, n_workers=[8, 4], max_workers=9, worker_demand=[(0, 1, 0), (1, 2, 0)]
    )
    return empty_snapshot(jobs, cluster=cluster, runs_on=np.ones((2, 1), np.bool_)), Gangs.of(
        [0, 1], n_workers=[8, 4], shrinks=True
    )


def sizes(placement: Placement) -> dict[int, int]:
    return {int(j): int(placement.count[placement.job == j].sum()) for j in placement.set_jobs}


def test_spread_alone_places_both_whole_where_that_is_possible() -> None:
    snapshot, gangs = stranded()
    placement = Spread().place(snapshot, gangs)
    assert sizes(placement) == {0: 8, 1: 4}
    assert not placement.missing.any()


def crossed() -> tuple[Snapshot, Gangs]:
    """Return gangs whose totals fit, which load balance cuts: it puts tasks of cores beside GPUs."""
    big, small = Server("big", sockets=((2, 4, 64),)), Server("small", sockets=((0, 4, 64),))
    jobs = Jobs.of(
        arrival_s=[0, 0], total_steps=1, n_workers=[4, 2], max_workers=9, worker_demand=[(0, 1, 0), (1, 2, 0)]
    )
    snapshot = empty_snapshot(
        jobs, cluster=no_network(2, servers=[(1, small), (1, big)]), runs_on=np.ones((2, 1), np.bool_)
    )
    return snapshot, Gangs.of([0, 1], n_workers=[4, 2], shrinks=True)


def test_spread_falls_back_to_packing_where_it_would_cut_gangs_whose_totals_fit() -> None:
    """It gave job 1 one worker of two, and said nothing."""
    placement = Spread().place(*crossed())
    assert sizes(placement) == {0: 4, 1: 2}
    assert not placement.missing.any()


@pytest.mark.parametrize("placer", [FirstFit(), Spread(), Pack(), Even()], ids=repr)
def test_what_is_missing_is_told_by_the_placement(placer: object) -> None:
    snapshot, _ = stranded()
    placement = placer.place(snapshot, Gangs.of([1], n_workers=9, shrinks=True))  # type: ignore[attr-defined]
    assert sizes(placement) == {1: 4}
    assert placement.missing.tolist() == [5]


def test_drf_with_load_balance_reaches_what_its_counts_are_worth(shared_data) -> None:
    """Its counts placed first fit give 4.36 slots on short_48n; Spread alone cut gangs and gave 4.85."""
    means = {}
    for placer in ("spread", "first_fit", None):
        jct_s = []
        for seed in range(1, 6):
            jobs = dl2.short_48n(seed, shared_data)
            model = dl2.speed(jobs, dl2.cluster("short_48n"), shared_data)
            experiment = Experiment.of(jobs, cluster="dl2-48n", speed=model, cadence=every_slot(1200.0))
            scheduler = make("drf", placer=placer) if placer else make("drf")
            jct_s.append(experiment.run(scheduler, name="drf").summary["mean_jct_s"])
        means[placer] = float(np.mean(jct_s)) / 1200
    assert means["first_fit"] == pytest.approx(4.355, abs=0.02)
    assert means["spread"] <= means["first_fit"] * 1.01
    assert means[None] <= means["first_fit"] * 1.001


def test_a_gang_that_was_cut_is_an_event_a_count_and_a_note() -> None:
    """Even placement gives up workers for an even split; the reader of the table is told."""
    cluster = leaf_spine(2, 1, 1, servers=Server("s", sockets=((3, 12, 64),)))
    jobs = Jobs.of(arrival_s=[0, 0], total_steps=600, duration_s=600, n_workers=[1, 2], max_workers=[4, 2])
    record = Experiment.of(jobs, cluster=cluster, speed="recorded").run(Drf(placer=Even()), name="mine")
    cuts = record.events[record.events["kind"] == Kind.CUT]
    placed = record.events[record.events["kind"] == Kind.PLACED]
    first = placed[(placed["job"] == 0) & (placed["time_s"] == 0)]
    assert cuts["job"].tolist() == [0] * len(cuts)
    assert first["value"].sum() + cuts["value"][0] == 4
    assert record.summary["n_cuts"] == len(cuts) > 0
    assert record.table["n_cuts"].tolist() == [len(cuts), 0]
    said = notes([record])[0]
    assert said.startswith("mine: 1 job was allocated more tasks than the machines had room for")
    assert f"({len(cuts)} times)" in said


@pytest.mark.parametrize("placer", [FirstFit(), Pack(), Even(keep_order=True)], ids=repr)
@pytest.mark.parametrize("seed", range(5))
def test_passing_over_gangs_like_one_without_room_changes_nothing(placer: Placer, seed: int) -> None:
    """Of a long queue of few kinds a kind that failed is not tried again; here each gang is tried by itself."""
    rng = np.random.default_rng(seed)
    mix = [(2, Server("a", sockets=((2, 8, 64), (2, 8, 64)))), (3, Server("b", sockets=((4, 8, 64),), device_type="p"))]
    n = 40
    jobs = Jobs.of(
        arrival_s=np.zeros(n), total_steps=1, n_workers=rng.integers(1, 6, n),
        worker_demand=rng.choice([[1, 1, 0], [1, 2, 0], [0.5, 1, 0]], n),
    )  # fmt: skip
    runs_on = rng.random((n, 2)) < 0.7
    runs_on[~runs_on.any(axis=1)] = True
    snapshot = empty_snapshot(jobs, cluster=no_network(5, servers=mix), runs_on=runs_on)
    gangs = Gangs.of(np.arange(n), n_workers=jobs.n_workers)
    kept: list[int] = []
    for i in range(n):
        alone = placer.place(snapshot, gangs.take(np.array([*kept, i])))
        kept += [i] if i in alone.set_jobs else []
    at_once = placer.place(snapshot, gangs)
    assert at_once.set_jobs.tolist() == kept
    assert same(at_once, placer.place(snapshot, gangs.take(np.array(kept))))
    assert 0 < len(kept) < n
