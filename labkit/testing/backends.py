"""What a backend must pass."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from labkit.core import Backend, Events, Kind, Ledger, Placement, PlacementError, Repair, Snapshot, repairs_of
from labkit.core.resources import GPUS
from labkit.testing.placements import name_of, require
from labkit.testing.scenes import Chaos

MAX_DECISIONS = 2000
_ENDS = (Kind.COMPLETED, Kind.DROPPED)
_NEEDS_TASKS = (
    Kind.STARTED, Kind.RESCALED, Kind.RESIZED, Kind.PROGRESSED, Kind.PAUSED, Kind.PREEMPTED, Kind.FAILED, Kind.MEASURED,
    Kind.TASK_FAILED, Kind.REPAIRED,
)  # fmt: skip


def check_backend(
    make: Callable[[], Backend], *, seed: int = 0, repeatable: bool = True, pairs: bool = False, amounts: bool = False
) -> Events:
    """Check that a backend keeps its protocol, driven by random decisions until every job is over.

    Time never goes back; events come in order and not from the future; each job arrives exactly once, before anything
    else of it, and completes or is given up at most once, after everything else of it; nothing runs that is not placed;
    what is held never exceeds what the machines have; a placement that cannot be held raises PlacementError and changes
    nothing.

    Parameters
    ----------
    make : callable
        Returns a fresh backend at its beginning, whose jobs all fit.
    seed : int
        Of the decisions.
    repeatable : bool
        Two backends that `make` returns tell the same story when told to do the same.
    pairs : bool
        Let some jobs share their GPUs; the backend can do that.
    amounts : bool
        Give some tasks fewer cores and less memory than declared.

    Returns
    -------
    Events
        All that happened.

    Raises
    ------
    ConformanceError
        In one sentence, with the backend's name.

    Examples
    --------
    >>> from labkit.core import Jobs
    >>> from labkit.simulator import Simulator
    >>> from labkit.speed.recorded import Recorded
    >>> from labkit.topology import no_network
    >>> jobs, cluster = Jobs.of(arrival_s=[0, 9], total_steps=5, duration_s=60), no_network(1)
    >>> rows = check_backend(lambda: Simulator(jobs, cluster, speed=Recorded(jobs, cluster)))
    """
    chaos = {"pairs": pairs, "amounts": amounts}
    rows = _drive(make(), np.random.default_rng(seed), provoke=False, **chaos)
    if repeatable:
        again = _drive(make(), np.random.default_rng(seed), provoke=True, **chaos)
        require(
            same_events(rows, again),
            "the backend tells another story the second time, or after it refused a placement.",
        )
    return rows


def same_events(one: Events, other: Events) -> bool:
    """Return whether two event tables are equal in every field, to the last bit; NaN equals NaN."""
    names = one.dtype.names or ()
    return len(one) == len(other) and all(
        np.array_equal(one[name], other[name], equal_nan=one[name].dtype.kind == "f") for name in names
    )


def _drive(backend: Backend, rng: np.random.Generator, *, provoke: bool, pairs: bool, amounts: bool) -> Events:
    """Run with random decisions; `provoke` asks for impossible ones in between."""
    watch, chaos = _Watch(backend), Chaos(rng, pairs=pairs, amounts=amounts)
    runs_on = np.ones((len(backend.jobs), len(backend.cluster.device_types)), np.bool_)
    watch.note(backend.advance(0.0, stop_at_event=False), until_s=0.0)
    for number in range(MAX_DECISIONS):
        if watch.ledger.n_done == len(backend.jobs):
            return np.concatenate(watch.batches)
        snapshot = Snapshot(watch.ledger, now_s=backend.now_s, number=number, runs_on=runs_on)
        placement = chaos.schedule(snapshot)
        if provoke:
            _refuses_the_impossible(backend, snapshot)
        watch.note(backend.apply(placement), until_s=backend.now_s, first=Kind.DECIDED)
        slot, stop = rng.integers(1, 200) + backend.now_s, bool(rng.integers(2))
        until_s = np.inf if stop and rng.random() < 0.3 and not backend.idle else slot
        watch.note(backend.advance(until_s, stop_at_event=stop), until_s=until_s)
    require(False, f"{watch.name} has not completed all jobs after {MAX_DECISIONS} random decisions.")
    raise AssertionError


def _refuses_the_impossible(backend: Backend, snapshot: Snapshot) -> None:
    name, active = name_of(backend), snapshot.jobs.number
    wrong = [("a job that does not exist", Placement.of([len(backend.jobs)]))]
    if len(active):
        job, most = active[0], 1 + int(backend.cluster.capacity.max() / _smallest(snapshot, int(active[0])))
        wrong += [
            ("the same job twice", Placement.of([job, job])),
            ("tasks of a job that is not in set_jobs", Placement.of([], job=[job], group=[0])),
            ("a device group that does not exist", Placement.of([job], job=[job], group=[backend.cluster.n_groups])),
            ("a count of 0", Placement.of([job], job=[job], group=[0], count=0)),
            ("tasks without cores", Placement.of([job], job=[job], group=[0], cpus=0)),
            ("more tasks than a device group holds", Placement.of([job], job=[job], group=[0], count=most)),
            ("a repair of a task that is not there", Placement.of([], repairs=repairs_of([(job, 0, 10**6, 0)]))),
            ("blocks spread over workers", Placement.of([], repairs=repairs_of([(job, 0, -1, Repair.BALANCE)]))),
            ("a repair of a job that does not exist", Placement.of([], repairs=repairs_of([(10**6, 0, 0, 0)]))),
            ("a job that shares with itself", Placement.of([job], job=[job], group=[0], partner=[job])),
        ]
    if len(active) > 1:
        wrong += [
            ("a partner that is not set", Placement.of([job], job=[job], group=[0], partner=[active[1]])),
            ("a partner that shares with no job", Placement.of(active[:2], partner=[active[1], -1])),
            ("a pair without workers", Placement.of(active[:2], partner=active[1::-1])),
        ]
    for what, placement in wrong:
        now_s = backend.now_s
        try:
            backend.apply(placement)
        except PlacementError as error:
            require(str(error), f"{name} refuses {what} without saying why.")
        else:
            require(False, f"{name} accepts a placement with {what}; it must raise PlacementError.")
        require(backend.now_s == now_s, f"{name} lets time pass when it refuses a placement.")


def _smallest(snapshot: Snapshot, job: int) -> float:
    demand = snapshot.table.worker_demand[job]
    return float(demand[demand > 0].min(initial=1.0))


class _Watch:
    """Follows the events of a backend, and complains."""

    def __init__(self, backend: Backend) -> None:
        self.backend, self.name = backend, name_of(backend)
        self.ledger = Ledger(backend.jobs, backend.cluster)
        self.batches: list[Events] = []
        self.last_s = 0.0
        self.arrived: set[int] = set()
        self.over: set[int] = set()
        self.placed: set[int] = set()

    def note(self, batch: Events, *, until_s: float, first: Kind | None = None) -> None:
        """Check a batch of events, and the clock after it."""
        self._times(batch, until_s)
        if first is not None:
            require(
                len(batch) and batch["kind"][0] == first,
                f"{self.name}'s answer does not begin with a {first.name} event.",
            )
        for row in batch:
            self._follow(Kind(row["kind"]), int(row["job"]))
        self.ledger.fold(batch)
        self.batches.append(batch.copy())
        self._capacity()

    def _times(self, batch: Events, until_s: float) -> None:
        now_s = self.backend.now_s
        require(now_s >= self.last_s, f"{self.name}'s time goes back from {self.last_s} s to {now_s} s.")
        require(now_s <= until_s, f"{self.name} was to advance to {until_s} s and is at {now_s} s.")
        times = np.concatenate([[self.last_s], batch["time_s"], [now_s]])
        require(
            (np.diff(times) >= 0).all(),
            f"{self.name} tells events out of order, before {self.last_s} s or after its own time {now_s} s.",
        )
        self.last_s = now_s

    def _follow(self, kind: Kind, job: int) -> None:
        if kind == Kind.ARRIVED:
            require(job not in self.arrived, f"{self.name} lets job {job} arrive twice.")
            self.arrived.add(job)
            return
        if job < 0:
            return
        require(job in self.arrived, f"{self.name} tells {kind.name} of job {job}, which has not arrived.")
        require(job not in self.over, f"{self.name} tells {kind.name} of job {job} after it was over.")
        if kind == Kind.PLACED:
            self.placed.add(job)
        elif kind in _NEEDS_TASKS or kind in _ENDS:
            require(job in self.placed, f"{self.name} tells {kind.name} of job {job}, which holds no tasks.")
        if kind in (Kind.PREEMPTED, Kind.FAILED, *_ENDS):
            self.placed.discard(job)
        if kind in _ENDS:
            self.over.add(job)

    def _capacity(self) -> None:
        free, up = self.ledger.book.free, self.ledger.up[self.backend.cluster.group_machine]
        room = np.where(up[:, None], self.backend.cluster.capacity, 0.0)
        require(
            (free >= -1e-6).all(), f"{self.name} holds more than the machines have: {free[:, GPUS].tolist()} GPUs free."
        )
        require((free <= room + 1e-6).all(), f"{self.name} has more free than its machines that are up have.")
        partner = self.ledger.book.allocations["partner"]
        jobs = np.flatnonzero(partner >= 0)
        lonely = jobs[partner[partner[jobs]] != jobs]
        require(not len(lonely), f"{self.name} lets jobs {lonely.tolist()} share with a job that shares with another.")
