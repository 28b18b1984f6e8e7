"""The backend in virtual time: jobs arrive, train at the speed model's rate, and complete to the exact moment."""

from __future__ import annotations

from typing import Any

import numpy as np

from labkit.core.binding import bound
from labkit.core.cluster import Cluster
from labkit.core.complaints import PlacementChecks
from labkit.core.errors import InputError, PlacementError
from labkit.core.events import EVENT, NO_EVENTS, Cause, Events, Kind, asides, copied, events, joined, repaired
from labkit.core.jobs import Jobs
from labkit.core.placement import Placement
from labkit.core.protocols import ChangeModel, SpeedModel
from labkit.core.resources import Floats, Ints
from labkit.simulator import kernels
from labkit.simulator.disturbances import Faults, Losses, Overheads, Variation
from labkit.simulator.due import DueDisturbances
from labkit.simulator.kernels import carry_out, run_until
from labkit.simulator.limits import TimeLimits
from labkit.simulator.troubles import Troubles
from labkit.simulator.truth import Changes, SimulatedTruth

_LAST_S = np.finfo(np.float64).max
_DECIDED = events(1)
_DECIDED["kind"], _DECIDED["value"] = Kind.DECIDED, 0.0


class Simulator:
    """Jobs on a cluster in virtual time.

    Parameters
    ----------
    jobs, cluster : Jobs, Cluster
        What arrives, and where it runs.
    speed : SpeedModel
        The truth about speeds; schedulers see only what was measured.
    lease_s : float, optional
        With each decision every job that holds tasks gets a lease: the whole steps that it makes in so many seconds at
        its speed then, or what it has left. At the end of its lease it is paused until the next decision, which is due
        when the last lease is over. A job whose lease has no step, or fewer than its gang has GPUs, makes no progress
        in it; after five of these on end it is given up. As in Gavel's published simulator; None: jobs go on.
    overheads, variation, faults, losses
        What makes the run less than ideal; none by default. Without overheads, a speed model that knows what starts and
        rescales take (`ChangeModel`) says what they take.
    troubles : Troubles, optional
        Tasks that are slow or hot, for a speed model that can show them (`TroubleModel`).
    checkpoint_s : float, optional
        Jobs that run out of memory fall back to their newest checkpoint; they are this far apart from a job's start on.
        0: nothing is lost; None: as `faults` has it, else nothing. Jobs whose memory grows (`ps_memory_growth_gb`) need
        a `TroubleModel` too.
    preemption_loses_work : bool
        Preempted jobs fall back to their newest checkpoint, too; with `checkpoint_s` 0 there is none, and they begin
        anew.
    measure_every_s : float, optional
        Measure what tasks use and how fast they are each so many seconds (MEASURED events); None: never.
    limits : TimeLimits, optional
        How long after its start each job is ended; None: none is.
    rng : Generator
        Source of all randomness; needed with `variation`, `faults` or `losses`.
    """

    def __init__(
        self,
        jobs: Jobs,
        cluster: Cluster,
        *,
        speed: SpeedModel,
        lease_s: float | None = None,
        overheads: Overheads | None = None,
        variation: Variation | None = None,
        faults: Faults | None = None,
        losses: Losses | None = None,
        troubles: Troubles | None = None,
        checkpoint_s: float | None = None,
        preemption_loses_work: bool = False,
        measure_every_s: float | None = None,
        limits: TimeLimits | None = None,
        rng: np.random.Generator | None = None,
    ) -> None:
        self.jobs, self.cluster, self.speed = jobs, cluster, speed
        self._lease_s = np.inf if lease_s is None else float(lease_s)
        if not self._lease_s > 0:
            raise InputError(f"lease_s is {lease_s}; expected seconds > 0, e.g. 360, or None for no leases.")
        costs = overheads or Overheads()
        self._overhead_s = np.array([[costs.start_s, costs.restart_s, costs.rescale_s]], np.float64)
        self._truth = SimulatedTruth(jobs, cluster, speed=speed)
        if overheads is None and not speed.local and isinstance(speed, ChangeModel):
            self._truth.changes = Changes(speed, self._truth.book, self._truth.records, jobs=jobs, cluster=cluster)
        self._due = DueDisturbances(
            self._truth, variation=variation, faults=faults, losses=losses, troubles=troubles,
            checkpoint_s=checkpoint_s, measure_every_s=measure_every_s, limits=limits,
            rng=np.random.default_rng(0) if rng is None else rng,
        )  # fmt: skip
        self._loses_work = preemption_loses_work
        first_row, mate = self._truth.first_row, self._truth.mate
        self._checks = PlacementChecks(jobs, cluster, first_row=first_row, mate=mate)

    @property
    def now_s(self) -> float:
        """Virtual seconds since the run began."""
        return self._truth.now_s

    @property
    def idle(self) -> bool:
        """True when nothing will happen unless a scheduler starts a job."""
        counts = self._truth.counts
        arrived = counts[kernels.NEXT_ARRIVAL] == len(self.jobs)
        return bool(arrived and not counts[kernels.N_RUNNING] and self._truth.machine_up.all())

    def plain_overheads(self) -> Floats | None:
        """Return that starts take no time, (1, 3), where nothing disturbs jobs and their speeds are local; else None.

        A run like that can be handed to compiled code in stretches: `labkit.experiment.classic`.
        """
        disturbed = self._due.any or self._loses_work or self._truth.changes is not None
        plain = not disturbed and self.speed.local and np.isinf(self._lease_s)
        return self._overhead_s if plain and not self._overhead_s.any() else None

    def columns(self, *, n_tasks: int) -> dict[str, Any]:
        """Return the columns that the simulator's kernels work on; there is room for so many more tasks."""
        return self._truth.columns(n_tasks=n_tasks)

    def has_moved(self, now_s: float) -> None:
        """Take note that kernels have moved the columns on to a moment."""
        self._truth.now_s = now_s

    def apply(self, placement: Placement) -> Events:
        """Carry out a decision at once; its overheads follow in `advance`.

        Raises
        ------
        PlacementError
            If it names an unknown job, overfills a device group, pairs jobs of which the speed model knows nothing or
            repairs or declines what is not there; nothing is changed then.
        """
        self._refuse_declined(placement)
        happened = self._carry_out(placement)
        if len(placement.declined):
            happened = joined([happened, *self._decline(placement.declined)])
        if extra := asides(placement, happened, time_s=self._truth.now_s):
            happened = joined([happened, *extra])
        if np.isfinite(self._lease_s):
            return joined([happened, self._grant()])
        return happened

    def _carry_out(self, placement: Placement) -> Events:
        truth = self._truth
        n_set, n_repairs = len(placement.set_jobs), len(placement.repairs)
        if not n_set and not len(placement) and not n_repairs:
            decided = copied(_DECIDED)
            decided["time_s"] = truth.now_s
            return decided
        placement = bound(placement, truth.book)
        truth.room_for(1 + len(placement) + 3 * n_set + 3 * n_repairs)
        truth.book.ensure(len(placement))
        self._refuse(placement)
        touched = np.union1d(placement.set_jobs, placement.repairs["job"]) if n_repairs else placement.set_jobs
        before = truth.changes.note(touched) if truth.changes else {}
        n, changed = self._set_tasks(placement)
        if self._loses_work:
            self._fall_back(truth.out[:n])
        others = NO_EVENTS
        if n_repairs:
            n, changed = self._repair(placement, changed, n)
        if len(changed) or truth.counts[kernels.N_OTHERS]:
            costs = self._overhead_s
            if truth.changes:
                costs = truth.changes.costs(changed, before, placement.repairs, now_s=truth.now_s)
            n, others = self._begin(changed, n, costs)
        elif n > 1 and not self.speed.local:
            others = truth.retime_all()
        happened = copied(truth.out[:n])
        return joined([happened, others]) if len(others) else happened

    def _decline(self, declined: Ints) -> list[Events]:
        """Give jobs up for good, those that hold tasks too; return what happened."""
        truth = self._truth
        holds = truth.book.allocations["first"][declined] >= 0
        truth.counts[kernels.N_OTHERS] = 0
        rows = joined([truth.lose(declined[holds], 0.0), events(int((~holds).sum()))])
        rows["time_s"], rows["kind"], rows["cause"] = truth.now_s, Kind.DROPPED, Cause.DECLINED
        rows["job"][holds.sum() :] = declined[~holds]
        rows["value"] = truth.records["steps"][rows["job"]]
        truth.records["phase"][declined] = kernels.DONE
        return [rows, truth.retime_colocated()] if holds.any() else [rows]

    def _set_tasks(self, placement: Placement) -> tuple[int, Ints]:
        """Set the tasks of a checked placement; return the events written, and the jobs that hold other tasks."""
        truth, book = self._truth, self._truth.book
        changed = np.empty(len(placement.set_jobs), np.int32)
        n, n_changed = carry_out(
            placement.set_jobs, placement.job, placement.role, placement.group, placement.count, placement.cpus,
            placement.memory_gb, placement.devices, truth.now_s, truth.records, truth.running, truth.counts,
            book.allocations,
            book.tasks, book.spare, book.left, book.demand, truth.first_row, truth.mate, changed, truth.others,
            truth.out,
        )  # fmt: skip
        return n, changed[:n_changed]

    def _fall_back(self, rows: Events) -> None:
        """Take from jobs that were preempted just now what they did since their newest checkpoint."""
        for i in np.flatnonzero(rows["kind"] == Kind.PREEMPTED).tolist():
            job = int(rows["job"][i])
            self._truth.fall_back(job, self._due.checkpoint_s)
            rows["value"][i] = self._truth.records["steps"][job]

    def _repair(self, placement: Placement, changed: Ints, n: int) -> tuple[int, Ints]:
        """Repair tasks where they are; return the events written, and the jobs that are to be rescaled or started."""
        truth = self._truth
        rows = repaired(placement.repairs, time_s=truth.now_s)
        truth.out[n : n + len(rows)] = rows
        if truth.troubles is not None:
            truth.troubles.repaired(placement.repairs)
        more = np.setdiff1d(placement.repairs["job"], changed).astype(np.int32)
        for job in more.tolist():
            kernels.settle(truth.records, job, truth.now_s)
        return n + len(rows), np.concatenate([changed, more])

    def _begin(self, changed: Ints, n: int, costs: Floats) -> tuple[int, Events]:
        """Start or rescale jobs, and slow down those beside them; return the events written and those of the others."""
        truth = self._truth
        others = truth.unpaired() if self.speed.local else truth.ready()
        if len(others):
            others = np.setdiff1d(others, changed)
        starting = self._renew(changed) if truth.troubles is not None else []
        if truth.memory is not None:
            truth.memory.note(truth.tasks_of(np.concatenate([changed, others])))
        speeds = truth.speeds(np.concatenate([changed, others]) if len(others) else changed)
        n = kernels.begin(
            changed, speeds, costs, truth.changes is not None and np.isinf(self._lease_s), truth.now_s, truth.records,
            truth.running, truth.counts, truth.out, n,
        )  # fmt: skip
        self._count_from(starting)
        if not self.speed.local and costs.any():  # the changed ones may not run yet
            return n, truth.retime_all()
        return n, truth.retime(others, speeds[len(changed) :]) if len(others) else NO_EVENTS

    def _count_from(self, starting: list[int]) -> None:
        """Count the seconds of troubles from the first start of jobs, which is over when their overhead is."""
        truth = self._truth
        if truth.troubles is not None:
            for job in starting:
                begins = truth.records["phase"][job] == kernels.STARTING
                truth.troubles.starts(job, float(truth.records["ready_s"][job]) if begins else truth.now_s)

    def _renew(self, changed: Ints) -> list[int]:
        """Let jobs that start again have new processes; return those that start for the first time."""
        truth = self._truth
        assert truth.troubles is not None
        waiting = changed[truth.records["phase"][changed] == kernels.WAITING]
        first = truth.records["n_starts"][waiting] == 0
        for job in waiting[~first].tolist():
            truth.troubles.renewed(job)
        numbers: list[int] = waiting[first].tolist()
        return numbers

    def _grant(self) -> Events:
        """Give a lease to every job that holds tasks, except in an overhead: there it comes when they are ready."""
        truth, jobs = self._truth, self._truth.ready()
        out = np.empty(len(jobs), dtype=EVENT)
        n = kernels.grant(
            jobs, truth.records["base_speed"][jobs] if self.speed.local else truth.speeds(jobs), truth.now_s,
            self._lease_s, truth.records, self.jobs.true_steps, truth.book.allocations, truth.book.demand, out,
        )  # fmt: skip
        return out[:n]

    def advance(self, until_s: float, *, stop_at_event: bool) -> Events:
        """Let virtual time pass until `until_s`, or until something happens that a scheduler should know.

        With leases that is the end of the last one that is under way; an arrival only where no job holds tasks.
        """
        parts: list[Events] = []
        until_s = float(until_s)  # the kernels are compiled for floats
        while True:
            is_event, moved = self._run_until(min(until_s, self._due.next_s()), stop_at_event, parts)
            if is_event:
                break
            if moved:
                continue
            if self._due.next_s() > min(until_s, _LAST_S) or (until_s == np.inf and self._hopeless()):
                break
            news, batch = self._due.happen()
            parts.append(batch)
            if news and stop_at_event and (np.isinf(self._lease_s) or self._round_over()):
                break
        return joined(parts)

    def _run_until(self, until_s: float, stop_at_event: bool, parts: list[Events]) -> tuple[bool, bool]:
        """Let jobs arrive and complete; return whether an event, or a change of the running jobs, cut it short."""
        truth, book = self._truth, self._truth.book
        still_to_arrive = len(self.jobs) - int(truth.counts[kernels.NEXT_ARRIVAL])
        truth.room_for(2 * int(truth.counts[kernels.N_RUNNING]) + still_to_arrive)
        n, at, is_event, moved = run_until(
            until_s, stop_at_event, not self.speed.local or truth.phased, self._lease_s, truth.records, truth.running,
            truth.counts, self.jobs.arrival_s, self.jobs.true_steps, book.allocations, book.tasks, book.spare,
            book.left, book.demand, truth.others, truth.out,
        )  # fmt: skip
        truth.now_s = max(truth.now_s, at)
        if n:
            parts.append(copied(truth.out[:n]))
        if moved:
            parts.append(truth.retime_colocated())
        return is_event, moved

    def _round_over(self) -> bool:
        """Return whether no job makes progress or will by itself."""
        truth = self._truth
        return not truth.counts[kernels.N_RUNNING] or bool(
            kernels.round_over(truth.records, truth.running, truth.counts)
        )

    def _hopeless(self) -> bool:
        """Return whether no job will ever arrive or complete, and no machine fail or return."""
        truth = self._truth
        arrived = truth.counts[kernels.NEXT_ARRIVAL] == len(self.jobs)
        at = truth.records[truth.holding()]
        stuck = (at["phase"] == kernels.RESTING) | ((at["phase"] == kernels.RUNNING) & (at["base_speed"] <= 0))
        return bool(arrived and not self._due.failures and stuck.all())

    # --- what is refused

    def _refuse_declined(self, placement: Placement) -> None:
        """Raise if a placement declines what is no active job, or one twice, or one that it sets too."""
        declined = placement.declined
        if not len(declined):
            return
        known = (declined >= 0) & (declined < len(self.jobs))
        phase = self._truth.records["phase"][np.where(known, declined, 0)]
        active = known & (phase != kernels.UNSEEN) & (phase != kernels.DONE)
        sound = active & ~np.isin(declined, placement.set_jobs)
        if not sound.all() or len(np.unique(declined)) < len(declined):
            wrong = declined[~sound][0] if not sound.all() else declined[0]
            raise PlacementError(
                f"the placement declines job number {wrong}; expected active jobs, each once, that are not in set_jobs."
            )

    def _refuse(self, placement: Placement) -> None:
        """Raise unless a placement can be carried out.

        Raise PlacementError as `apply`.
        """
        truth = self._truth
        self._checks.refuse(placement, truth.book, phases=truth.records, over=kernels.DONE, up=truth.machine_up)
        if getattr(self.speed, "pairs", False) or not len(placement.partner):
            return
        if (paired := placement.partner >= 0).any():
            self._checks.forget()
            job, model = self.jobs.id[placement.set_jobs[paired][0]], type(self.speed).__name__
            raise PlacementError(
                f"job {job} is to share its GPUs, but {model} does not know how fast jobs are that share; take a speed "
                "model with pairs, such as GavelSpeed."
            )
