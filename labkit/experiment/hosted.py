"""What the rules about machines do in a run: a scheduler is asked per part, and what breaks a rule is placed anew."""

from __future__ import annotations

import copy
import math
from typing import Final

import numpy as np

from labkit.core.errors import InputError
from labkit.core.hosting import FEW, HostRules
from labkit.core.later_snapshot import LaterSnapshot
from labkit.core.ledger import Ledger
from labkit.core.part_snapshot import PartSnapshot
from labkit.core.placement import Gangs, Placement, Reason
from labkit.core.protocols import Scheduler
from labkit.core.resources import Bools, Ints
from labkit.core.scratch_book import empty_book
from labkit.core.snapshot import Snapshot
from labkit.experiment.reserving import without
from labkit.placers.base import place_by
from labkit.placers.kernels import fewest_machines
from labkit.placers.rules import PACK
from labkit.schedulers.easy import less

MOVED: Final = "placed anew: its gang lay where the rules of the run do not let it"
NO_ROOM: Final = "no room where the rules of the run let its gang lie"


class HostingControl:
    """Holds the decisions of a run to its rules about machines.

    Where partitions divide the cluster into parts that share no job, a scheduler is asked about each part by itself:
    itself about the first, copies of it about the others. One with `over_partitions = True` is asked about all at once.

    Parameters
    ----------
    hosting : HostRules
        The rules.
    ledger : Ledger
        What the run's jobs hold.
    runs_on : array of bool
        (N, T) which jobs run on which device types.
    """

    def __init__(self, hosting: HostRules, ledger: Ledger, *, runs_on: Bools) -> None:
        self.hosting, self._ledger, self._runs_on = hosting, ledger, runs_on
        self._machines = [ledger.cluster.machines_of(part) for part in hosting.parts]
        self._part = hosting.part_of(hosting.row)
        self._few: dict[tuple[bytes, int, int], int] = {}
        self._scheduler: Scheduler | None = None
        self._copies: list[Scheduler] = []

    def schedule(self, scheduler: Scheduler, snapshot: Snapshot) -> Placement:
        """Return the answer of a scheduler for each part of the cluster."""
        if len(self._machines) < 2 or getattr(scheduler, "over_partitions", False):
            return scheduler.schedule(snapshot)
        active = snapshot.jobs.number
        part = self._part[active]
        answers = []
        for p, one in enumerate(self._copies_of(scheduler)):
            if len(mine := active[part == p]):
                answers.append(one.schedule(PartSnapshot(snapshot, machines=self._machines[p], jobs=mine)))
        return Placement.joined(answers)

    def _copies_of(self, scheduler: Scheduler) -> list[Scheduler]:
        if scheduler is not self._scheduler:
            known = {id(one): one for one in (self._ledger.jobs, self._ledger.cluster)}
            try:
                others = [copy.deepcopy(scheduler, dict(known)) for _ in self._machines[1:]]
            except Exception as error:
                raise InputError(
                    f"{type(scheduler).__name__} cannot be copied ({type(error).__name__}: {error}), and each part of "
                    "the cluster is scheduled by a copy; give it a __deepcopy__, or leave partitions out."
                ) from error
            self._scheduler, self._copies = scheduler, [scheduler, *others]
        return self._copies

    def next_turn_s(self, now_s: float) -> float:
        """Return the next moment at which a gang that waits for few machines may be split; inf: never."""
        if math.isinf(self.hosting.wait_s):
            return math.inf
        waiting = self._ledger.waiting()
        turns = self._ledger.jobs.arrival_s[waiting[self.hosting.spread[waiting] == FEW]] + self.hosting.wait_s
        return float(turns[turns > now_s].min(initial=math.inf))

    def within(self, placement: Placement, snapshot: Snapshot) -> Placement:
        """Return a placement in which gangs that break a rule are placed anew, or get nothing, with reasons."""
        broken = self._broken(placement, snapshot.now_s)
        if not len(broken):
            return placement
        kept = without(placement, broken, reason="")
        gone = np.setdiff1d(kept.set_jobs, kept.job)
        gangs = _gangs_of(placement, np.setdiff1d(broken, placement.partner))
        anew = place_by(PACK, _after(snapshot, kept), gangs, strict=False)
        done = anew.set_jobs[np.isin(anew.set_jobs, anew.job)]
        reasons = [Reason(int(job), MOVED if job in done else NO_ROOM) for job in broken.tolist()]
        rest = without(kept, gone, reason="", named=np.isin(kept.set_jobs, done))
        return Placement.joined([rest, anew, Placement.of([], reasons=reasons)])

    def _broken(self, placement: Placement, now_s: float) -> Ints:
        """Return the jobs whose tasks a placement puts where they may not be."""
        jobs, cluster, rules = placement.job, self._ledger.cluster, self.hosting
        sound = (jobs >= 0) & (jobs < len(rules.row)) & (placement.group >= 0) & (placement.group < cluster.n_groups)
        if not len(jobs) or not sound.all():
            return np.empty(0, np.int32)  # the backend says what is wrong
        outside = ~rules.open[rules.row[jobs], placement.group]
        pairs = np.unique(np.stack([jobs, cluster.group_machine[placement.group]]), axis=1)[0]
        named, n = np.unique(pairs, return_counts=True)
        spread = rules.spread_at(named, waited_s=now_s - self._ledger.jobs.arrival_s[named])
        wide = (spread > 0) & (n != spread)
        for i in np.flatnonzero((spread == FEW) & (n > 1)).tolist():
            mine = jobs == named[i]
            tasks = [int(placement.count[mine & (placement.role == role)].sum()) for role in range(2)]
            wide[i] = n[i] > self._fewest(int(named[i]), placement.group[mine], *tasks)
        for i in np.flatnonzero(rules.zone[named]).tolist():
            within = rules.zones[rules.zone[named[i]] - 1, placement.group[jobs == named[i]]]
            wide[i] |= bool((within != within[0]).any())
        broken: Ints = np.union1d(jobs[outside], named[wide]).astype(np.int32)
        return broken

    def _fewest(self, job: int, groups: Ints, n_workers: int, n_ps: int) -> int:
        """Return on how many machines a gang lies where it waits for as few as it needs, in the zone of some groups."""
        table, rules = self._ledger.jobs, self.hosting
        hosts = rules.open[rules.row[job]]
        if level := rules.zone[job]:
            hosts = hosts & (rules.zones[level - 1] == rules.zones[level - 1, groups[0]])
        worker, ps = table.worker_demand[job], table.ps_demand[job]
        kind = np.concatenate([worker, ps, self._runs_on[job], [rules.row[job]]])
        key = kind.tobytes() + hosts.tobytes(), n_workers, n_ps
        if key not in self._few:
            book = empty_book(self._ledger.cluster, n_devices=self._ledger.book.n_devices)
            self._few[key] = int(fewest_machines(book, hosts, self._runs_on[job], worker, ps, n_workers, n_ps))
        return self._few[key]


def _gangs_of(placement: Placement, jobs: Ints) -> Gangs:
    """Return the gangs that a placement gives some jobs."""
    n = np.zeros((2, int(placement.job.max(initial=0)) + 1), np.int32)
    np.add.at(n, (placement.role, placement.job), placement.count)
    return Gangs.of(jobs, n_workers=n[0, jobs], n_ps=n[1, jobs])


def _after(snapshot: Snapshot, placement: Placement) -> Snapshot:
    """Return a snapshot in which a placement has been carried out, as far as room goes."""
    left = snapshot.left_without(placement.set_jobs)
    return LaterSnapshot(snapshot, less(left, snapshot, placement, np.ones(len(placement.job), np.bool_)))
