"""What the mechanism remembers of a run: how much is due to each job, and since when."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Final, Protocol

import numpy as np

from labkit.core.jobs import Jobs
from labkit.core.life import Profile
from labkit.core.placement import Gangs, Placement
from labkit.core.protocols import Placer
from labkit.core.resources import GPUS, Bools, Floats, Ints
from labkit.core.snapshot import Snapshot
from labkit.schedulers.gavel.base import visible_speed
from labkit.schedulers.gavel.equal import proportional_speed
from labkit.schedulers.gavel.greedy import draws
from labkit.schedulers.gavel.prices import prices_of
from labkit.schedulers.gavel.problem import Allocation, AllocationPolicy, Problem, Sharing
from labkit.schedulers.gavel.published import PublishedRounds
from labkit.schedulers.gavel.rounds import changes, choose, hold, note_placed, owe, owe_pairs

NO_GPU: Final = 1e-3
"""GPUs that a job without any counts as."""

STAY: Final = {True: 4.0, False: 1.0}
"""Rounds that a job is let stay where it runs, by whether rounds know speeds: see `Gavel.stay`."""

BEHIND: Final = 64
"""Waiting jobs that are tried where a chosen one does not fit in pieces as the room is."""

PUBLISHED_RECOMPUTE_S: Final = 1920.0
"""Least seconds between two allocations in the published simulator."""

MIXED: Final = -1
"""Device type of a column that takes GPUs of all types."""


class RoundOptions(Protocol):
    """How rounds are run: what `RoundState` reads of a `Gavel`, whose docstring explains each."""

    policy: AllocationPolicy
    placer: Placer
    round_s: float
    recompute_s: float | None
    space_sharing: bool
    placement: bool
    fill: bool | None
    aware_rounds: bool | None
    stay: float | None
    patience: float
    published: bool
    ideal: bool
    seed: int
    prices: Mapping[str, float]


def published_rounds(n_jobs: int, device_types: tuple[str, ...], options: RoundOptions) -> PublishedRounds:
    """Return the memory of the published simulator as it is before the first round."""
    recompute_s = PUBLISHED_RECOMPUTE_S if options.recompute_s is None else options.recompute_s
    return PublishedRounds(
        n_jobs, device_types=device_types, round_s=options.round_s, recompute_s=recompute_s,
        shuffles=not getattr(options.policy, "aware", False), only_owed=getattr(options.policy, "only_owed", False),
        seed=options.seed,
    )  # fmt: skip


class RoundState:
    """The mechanism's memory; columns over all N jobs of a table, V columns of a problem.

    Parameters
    ----------
    snapshot : Snapshot
        The first one of the run.
    profile : Profile
        What was measured of its jobs.
    options : RoundOptions
        How to go about it.
    """

    def __init__(self, snapshot: Snapshot, *, profile: Profile, options: RoundOptions) -> None:
        table, cluster = snapshot.table, snapshot.cluster
        n = len(table)
        self.table: Jobs = table
        self.options = options
        self.kind = profile.kind
        self.use, self.type_of, kind_speed = _columns(profile, cluster.gpus_of_type(), placement=options.placement)
        self.speed = kind_speed[profile.kind]
        self.visible = visible_speed(self.speed, declared=table.total_steps / table.duration_s, policy=options.policy)
        self.sees_types = self.visible is self.speed
        self.aware_rounds = self.sees_types if options.aware_rounds is None else options.aware_rounds
        self.stay = STAY[self.aware_rounds] if options.stay is None else options.stay
        self.round_speed = self.speed if self.aware_rounds else (self.speed > 0).astype(np.float64)
        self.shared = _shared(profile, self.type_of) if options.space_sharing else None
        self.n_gpus = np.where(table.gpus > 0, table.gpus, NO_GPU)
        none = dict.fromkeys(set(cluster.device_types) - set(cluster.gpu_types), 1.0)  # any price: nothing runs there
        self.price = prices_of(cluster.device_types, none | dict(options.prices), policy=options.policy)
        self.share, self.lag_s = np.zeros_like(self.speed), np.zeros_like(self.speed)
        if not self.aware_rounds:  # a job that fits anywhere begins anywhere, not where its share is largest
            each = np.arange(self.speed.size, dtype=np.int32)
            self.lag_s = draws(each, options.seed).reshape(self.speed.shape) * options.round_s
        self.column, self.partner = np.full(n, -1, np.int32), np.full(n, -1, np.int32)
        self.isolated_s, self.isolated_speed, self.steps_then = np.zeros(n), np.full(n, np.inf), np.zeros(n)
        self.pairs = np.empty((0, 2), np.int32)
        self.pair_share = self.pair_lag_s = np.zeros((0, len(self.use)))
        self.worth = 1 / (self.round_speed.max(axis=1, initial=0.0) * self.n_gpus).clip(1e-300)
        self.jobs: Ints = np.empty(0, np.int32)
        self.up: Bools = np.empty(0, np.bool_)
        self.capacity = cluster.gpus_of_type()
        self.typical_speed = np.full(n, np.inf)
        self.last: Allocation | None = None
        self.now_s, self.allotted_s, self.round_end_s = snapshot.now_s, -np.inf, -np.inf
        self.n_problems, self.stale = 0, True
        self.number = snapshot.number
        self._relaxed: list[int] = []
        self._reported: set[int] = set()
        self.fill = getattr(options.policy, "fill", True) if options.fill is None else options.fill
        self.rounds = options.published and published_rounds(n, cluster.device_types, options)

    def _adopt(self, snapshot: Snapshot, jobs: Ints) -> None:
        """Note in which column those of some jobs are that run: others may have started them, as in a reservation."""
        running = jobs[snapshot.holds(jobs)]
        if not len(running):
            return
        first, _, group, _ = snapshot.tasks_of(running)
        type_of = snapshot.cluster.group_type[group]
        least, most = (cut.reduceat(type_of, first[:-1]) for cut in (np.minimum, np.maximum))
        mixed = np.flatnonzero(self.type_of == MIXED)
        self.column[running] = np.where((least == most) | (not len(mixed)), least, mixed[-1] if len(mixed) else -1)

    # --- the decision

    def goes_on(self, snapshot: Snapshot) -> bool:
        """Return whether a snapshot is a later one of the same run."""
        return self.table is snapshot.table and self.number < snapshot.number

    def take_in(self, profile: Profile, *, news: bool) -> None:
        """Believe other speeds of pairs from now on; ask the policy again if that is news."""
        self.shared = _shared(profile, self.type_of)
        self.stale = self.stale or news

    def decide(self, snapshot: Snapshot) -> Placement:
        """Return which jobs start, move and stop."""
        self._account(snapshot.now_s)
        self.number = snapshot.number
        jobs = snapshot.jobs.number
        self.column[jobs[~snapshot.holds(jobs)]] = -1
        if self.shared is not None:
            self.partner[jobs] = snapshot.jobs.partner
        changed = self._changed(snapshot)
        if self.rounds:
            chosen = self._published(snapshot, self.rounds)
            placement = self._place(snapshot, chosen, np.full(len(jobs), -1, np.int32))
        else:
            if changed and snapshot.now_s >= self.allotted_s + (self.options.recompute_s or 0.0):
                self._allot(snapshot)
            ideal = self.options.ideal
            placement = self._slices() if ideal else self._place(snapshot, *self._choose(snapshot.now_s))
        if self._relaxed:
            placement = replace(placement, relaxed=np.array(self._relaxed, np.int32))
            self._relaxed = []
        return placement

    def _changed(self, snapshot: Snapshot) -> bool:
        """Return whether jobs or machines came or went since the last allocation."""
        if not np.array_equal(snapshot.up, self.up):
            cluster = snapshot.cluster
            there = cluster.capacity[:, GPUS] * snapshot.up[cluster.group_machine]
            self.capacity = np.zeros(len(cluster.device_types))
            np.add.at(self.capacity, cluster.group_type, there)
            self.up, self.stale = snapshot.up, True
            self.typical_speed = self._typical_speed()
        jobs = snapshot.jobs.number
        if not np.array_equal(jobs, self.jobs):
            self._adopt(snapshot, jobs[~np.isin(jobs, self.jobs)])
            self.jobs, self.stale = jobs, True
        return self.stale

    def _typical_speed(self) -> Floats:
        """Return the steps/s of every job, on average over the GPUs that are there, (N,)."""
        if not self.capacity.any():
            return np.full(len(self.table), np.inf)
        return proportional_speed(Problem.of(self.visible, capacity=self.capacity, use=self.use, n_gpus=self.n_gpus))

    # --- what is owed

    def _account(self, now_s: float) -> None:
        """Bring what each job is owed up to now."""
        jobs, dt_s = self.jobs, now_s - self.now_s
        self.now_s = now_s
        if not dt_s or not len(jobs):
            return
        most_s = self.options.patience * self.options.round_s
        owe(jobs, dt_s, most_s, self.fill, self.share, self.lag_s, self.column, self.partner)
        if len(self.pairs):
            owe_pairs(self.pairs, dt_s, most_s, self.fill, self.pair_share, self.pair_lag_s, self.column, self.partner)

    def _allot(self, snapshot: Snapshot) -> None:
        """Ask the policy."""
        jobs = self.jobs
        self.allotted_s, self.stale = snapshot.now_s, False
        if not len(jobs) or not self.capacity.any():
            return
        steps = snapshot.jobs.steps
        then = self.isolated_speed[jobs]  # 0 while no machine was there that a job runs on
        self.isolated_s[jobs] += np.divide(steps - self.steps_then[jobs], then, out=np.zeros(len(jobs)), where=then > 0)
        self.steps_then[jobs] = steps
        problem = self.problem(snapshot)
        answer = self.options.policy.allocate(problem)
        self.share[jobs] = answer.share
        self._owe_pairs(jobs[answer.pairs], answer.pair_share)
        self._relaxed = [*self._relaxed, *(int(j) for j in jobs[answer.unmet] if j not in self._reported)]
        self._reported.update(self._relaxed)
        gangs = self.capacity.sum() / (len(jobs) * self.n_gpus[jobs])
        self.isolated_speed[jobs] = np.minimum(gangs, 1.0) * self.typical_speed[jobs]
        self.last, self.n_problems = answer, self.n_problems + 1

    def _owe_pairs(self, pairs: Ints, share: Floats) -> None:
        """Replace the pairs; one that goes on keeps what it is owed."""
        lag_s = np.zeros_like(share)
        if len(self.pairs) and len(pairs):
            old = {(int(a), int(b)): p for p, (a, b) in enumerate(self.pairs)}
            for p, (a, b) in enumerate(pairs):
                if (int(a), int(b)) in old:
                    lag_s[p] = self.pair_lag_s[old[int(a), int(b)]]
        self.pairs, self.pair_share, self.pair_lag_s = pairs, share, lag_s

    def problem(self, snapshot: Snapshot) -> Problem:
        """Return the problem that a policy decides on now."""
        jobs, table = self.jobs, self.table
        columns = snapshot.jobs
        return Problem(
            job=jobs,
            speed=self.visible[jobs],
            n_gpus=self.n_gpus[jobs],
            capacity=self.capacity,
            use=self.use,
            weight=columns.weight,
            entity=columns.user,
            age_s=snapshot.now_s - columns.arrival_s,
            steps_left=np.maximum(columns.total_steps - columns.steps, 0.0),
            isolated_s=self.isolated_s[jobs],
            slo_left_s=table.slo_s[jobs] - (snapshot.now_s - columns.arrival_s),
            price=self.price,
            sharing=Sharing(self.kind[jobs], self.shared) if self.shared is not None and self.sees_types else None,
            before=self._before(jobs),
            number=self.n_problems,
        )

    def _before(self, jobs: Ints) -> Allocation | None:
        """Return the last allocation in terms of the present jobs."""
        if self.last is None:
            return None
        there = np.isin(self.pairs, jobs).all(axis=1) if len(self.pairs) else np.empty(0, np.bool_)
        pairs = np.searchsorted(jobs, self.pairs[there]).astype(np.int32).reshape(-1, 2)
        return Allocation(share=self.share[jobs], pairs=pairs, pair_share=self.pair_share[there])

    # --- the round

    def _choose(self, now_s: float) -> tuple[Ints, Ints]:
        """Return the column of each active job, and the number of the one that it shares GPUs with."""
        jobs, options = self.jobs, self.options
        over = now_s >= self.round_end_s
        if over:
            self.round_end_s = options.round_s * (np.floor(now_s / options.round_s + 1e-9) + 1)
        return choose(
            jobs, over, self.fill, options.round_s, self.stay, self.share, self.lag_s, self.pairs,
            self.pair_share, self.pair_lag_s, self.round_speed, self.worth, self.n_gpus, self.use, self.capacity,
            self.column, self.partner,
        )  # fmt: skip

    def _published(self, snapshot: Snapshot, rounds: PublishedRounds) -> Ints:
        jobs = self.jobs

        def allocate() -> Floats:
            self._allot(snapshot)
            return self.share[jobs]

        return rounds.choose(
            snapshot.now_s,
            jobs=jobs,
            steps_left=snapshot.jobs.total_steps - snapshot.jobs.steps,
            speed=self.speed[jobs],
            n_gpus=self.n_gpus[jobs],
            capacity=self.capacity,
            last=bool(len(jobs)) and int(jobs[-1]) == len(self.table) - 1,
            allocate=allocate,
        )

    # --- from columns to device groups

    def _place(self, snapshot: Snapshot, chosen: Ints, mate: Ints) -> Placement:
        """Return the placement that starts, moves and stops what differs from what is."""
        jobs = self.jobs
        start, stop = changes(jobs, chosen, mate, self.n_gpus, self.column, self.partner)
        if not len(start) and not len(stop):
            return Placement.nothing()
        placement = self._ask(snapshot, start, stop, chosen, mate)
        wanted = len(start) + np.count_nonzero(mate[start] >= 0)
        if wanted > _n_gangs(placement.job):  # the room is not in pieces as the gangs are
            may = (chosen < 0) & (self.column[jobs] < 0) & (self.fill | self.share[jobs].any(axis=1))
            behind = np.flatnonzero(may)[:BEHIND].astype(np.int32)
            chosen[behind] = self._elsewhere(behind, chosen, mate)
            placement = self._ask(snapshot, np.concatenate([start, behind]), stop, chosen, mate)
        note_placed(placement.set_jobs, placement.job, jobs, chosen, mate, self.column, self.partner)
        return placement

    def _elsewhere(self, waits: Ints, chosen: Ints, mate: Ints) -> Ints:
        """Return the column in which each of some waiting jobs is tried: its fastest, or the one with most room."""
        speed = self.round_speed[self.jobs[waits]]
        if not self.aware_rounds:
            free = self.capacity.copy()
            hold(chosen, mate, self.n_gpus[self.jobs], self.use, free)
            speed = np.where(speed > 0, 1.0 + self.use @ free.clip(0.0), 0.0)
        columns: Ints = speed.argmax(axis=1).astype(np.int32)
        return columns

    def _slices(self) -> Placement:
        """Return the placement in which each job holds its share of slices of each device type that is there."""
        share = self.share[self.jobs] * (self.use @ self.capacity > 0)  # a share is older where no machine is up
        count = np.floor(share * self.table.n_workers[self.jobs, None] * (1 - 1e-9)).astype(np.int32)
        j, t = np.nonzero(count)
        return Placement.of(self.jobs, job=self.jobs[j], group=t, count=count[j, t])

    def _ask(self, snapshot: Snapshot, start: Ints, stop: Ints, chosen: Ints, mate: Ints) -> Placement:
        """Ask the placer for room for some jobs (positions), after others have stopped."""
        table, both = self.table, self.jobs[np.concatenate([start, stop])]
        n_workers, n_ps = table.n_workers[both], table.n_ps[both]
        n_workers[len(start) :] = n_ps[len(start) :] = 0
        device_type = np.full(len(both), MIXED, np.int32)
        device_type[: len(start)] = self.type_of[chosen[start]]
        partner = np.full(len(both) if self.shared is not None else 0, -1, np.int32)
        if len(partner):
            partner[: len(start)] = mate[start]
        return self.options.placer.place(snapshot, Gangs(both, n_workers, n_ps, device_type, partner=partner))


def _n_gangs(row_job: Ints) -> int:
    """Return how many gangs some rows are of, those of one together."""
    return int(len(row_job) > 0) + int(np.count_nonzero(row_job[1:] != row_job[:-1]))


def _columns(profile: Profile, gpus_of_type: Floats, *, placement: bool) -> tuple[Floats, Ints, Floats]:
    """Return which types a column uses (V, T), its type (V,) or -1, and steps/s by kind and column (K, V)."""
    n_types = len(gpus_of_type)
    use, type_of, speed = [np.eye(n_types)], [np.arange(n_types)], [profile.alone]
    if placement:
        use.append(np.eye(n_types))
        type_of.append(np.arange(n_types))
        speed.append(profile.apart)
    if profile.mixed.any():
        use.append(gpus_of_type[None, :] / gpus_of_type.sum())
        type_of.append(np.array([MIXED]))
        speed.append(profile.mixed[:, None])
    return np.concatenate(use), np.concatenate(type_of).astype(np.int32), np.concatenate(speed, axis=1)


def _shared(profile: Profile, type_of: Ints) -> Floats | None:
    """Return steps/s of pairs of kinds on each column (K, K, V); none on a column of several types."""
    if profile.shared is None:
        return None
    pairs = np.nan_to_num(profile.shared, nan=0.0)
    both = (pairs > 0) & (pairs.transpose(1, 0, 2) > 0)
    pairs = np.where(both, pairs, 0.0)[:, :, type_of]
    pairs[:, :, type_of == MIXED] = 0.0
    return pairs
