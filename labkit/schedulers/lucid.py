"""Lucid: least predicted GPU time first, packed onto the GPUs of running jobs that it hardly slows."""

from __future__ import annotations

from dataclasses import dataclass, field
from math import inf
from typing import ClassVar

import numpy as np

from labkit.core.errors import InputError
from labkit.core.later_snapshot import LaterSnapshot
from labkit.core.life import Context, Profile
from labkit.core.placement import Placement
from labkit.core.protocols import Placer
from labkit.core.resources import CPUS, GPUS, MEMORY_GB, Bools, Floats, Ints
from labkit.core.scratch_book import SLACK
from labkit.core.snapshot import Snapshot
from labkit.placers import ByNetwork
from labkit.schedulers.base import start_in_order
from labkit.schedulers.muri import sizes
from labkit.schedulers.qssf import HISTORY, Predictions

BESIDE = np.array([CPUS, MEMORY_GB])
"""Resources that each job of a pair has to itself."""


@dataclass(eq=False)
class Lucid:
    """Start the waiting job with the least predicted GPU-seconds; pack it with a running one that it hardly slows [1]_.

    While more GPUs are asked for than are free, each waiting job, in order, first looks for a running job to share
    GPUs with: one that has as many GPUs to itself, that it would hardly slow or be slowed by, and that is not much
    shorter. It joins that job in place: running jobs are neither moved nor preempted. Jobs without such a partner start
    where there is room, and later jobs may pass one that does not fit. With speeds that know no pairs this is
    `qssf(backfill=True)`.

    Attributes
    ----------
    predict, decay : str, float
        As those of `qssf`.
    least_speed : float
        Part of its speed alone that each of a pair must keep.
    most_gpus : float
        Larger gangs are not packed.
    longer : float
        Predicted GPU-seconds of a job over those of the running one, at most.
    placer : Placer
        Where gangs go.

    Notes
    -----
    Lucid runs each new job on a profiler for minutes, sorts jobs by a decision tree over what their GPUs did there
    into three classes, and packs by these. Here speeds of pairs are measured before the run. Its learned models of
    durations need names of jobs; see `qssf`. The rule was read in github.com/S-Lab-System-Group/Lucid (S-Lab License
    1.0, not for commercial use; 63685a3); nothing is copied.

    References
    ----------
    .. [1] Hu et al., "Lucid: a non-intrusive, scalable and interpretable scheduler for deep learning training jobs",
       ASPLOS 2023.
    """

    knows_types: ClassVar[bool] = False

    predict: str = HISTORY
    decay: float = 0.8
    least_speed: float = 0.85
    most_gpus: float = 8.0
    longer: float = 2.0
    placer: Placer = ByNetwork()
    _predictions: Predictions = field(init=False, repr=False)
    _kind: Ints | None = field(init=False, repr=False, default=None)
    _agree: Bools = field(init=False, repr=False)

    def __post_init__(self) -> None:
        if not 0 <= self.least_speed <= 1:
            raise InputError(f"lucid: least_speed is {self.least_speed}; expected a part of the speed alone, 0 to 1.")
        for name in ("most_gpus", "longer"):
            if not getattr(self, name) > 0:
                raise InputError(f"lucid: {name} is {getattr(self, name)}; expected a number > 0.")
        self._predictions = Predictions("lucid", self.predict, decay=self.decay)

    def begin(self, context: Context) -> None:
        """Measure each kind of job beside each other one."""
        profile = context.profile(pairs=True)
        self._kind = None if profile.shared is None else profile.kind
        self._agree = agreeing(profile, self.least_speed)

    def schedule(self, snapshot: Snapshot) -> Placement:
        """Return which jobs start, alone or beside a running one."""
        waiting = snapshot.waiting
        gpu_s = self._predictions.gpu_s(snapshot, waiting)
        left = snapshot.left
        pairs = Placement.nothing()
        if self._kind is not None and snapshot.table.gpus[waiting].sum() > left[:, GPUS].sum() + SLACK:
            pairs = self._pack(snapshot, self._kind, gpu_s, left)
        rest = waiting[~np.isin(waiting, pairs.set_jobs)]
        alone = start_in_order(LaterSnapshot(snapshot, left), rest, self.placer, backfill=True, by=gpu_s)
        return Placement.joined([pairs, alone])

    def _pack(self, snapshot: Snapshot, kind: Ints, gpu_s: Floats, left: Floats) -> Placement:
        """Return pairs of waiting and running jobs; subtract the cores and memory that they take from `left`."""
        order = snapshot.waiting[np.argsort(gpu_s[snapshot.waiting], kind="stable")]
        hosts = Hosts.of(snapshot, self.most_gpus)
        in_size = sizes(snapshot, np.concatenate([order, hosts.job]))
        made, hopeless = list[Placement](), set[int]()
        for w, size in zip(order.tolist(), in_size.tolist(), strict=False):
            if kind[w] in hopeless:  # a longer job of a kind finds no partner where a shorter one found none
                continue
            device_type = hosts.device_type
            able = (device_type >= 0) & (in_size[len(order) :] == size) & snapshot.runs_on[w, device_type]
            able &= self._agree[kind[w], kind[hosts.job], device_type] & (gpu_s[w] <= self.longer * gpu_s[hosts.job])
            found = next((h for h in np.flatnonzero(able).tolist() if hosts.has_room(snapshot, w, h, left)), None)
            if found is None:
                hopeless.add(int(kind[w]))
            else:
                made.append(hosts.join(snapshot, w, found, left))
        return Placement.joined(made)


@dataclass(eq=False)
class Hosts:
    """Running jobs that have their GPUs alone, (H,), the first ones first, and the rows of their tasks."""

    job: Ints
    device_type: Ints
    """(H,) that of each job's tasks; -1: they have several types, or the job shares its GPUs by now."""
    first: Ints
    role: Ints
    group: Ints
    count: Ints
    """(H + 1,) and (P,): the tasks of each, as `Snapshot.tasks_of` has them."""

    @classmethod
    def of(cls, snapshot: Snapshot, most_gpus: float) -> Hosts:
        """Return the running jobs that may be joined; none where tasks take parts of GPUs."""
        job, whole = snapshot.jobs.number, snapshot.left.shape[1] == snapshot.offered.shape[1]
        alone = snapshot.holds(job) & (snapshot.allocations["partner"][job] < 0) & (snapshot.table.gpus[job] > 0)
        job = job[alone & (snapshot.table.gpus[job] <= most_gpus) & whole]
        first, role, group, count = snapshot.tasks_of(job)
        of_row = snapshot.cluster.group_type[group]
        least, most = np.minimum.reduceat(of_row, first[:-1]), np.maximum.reduceat(of_row, first[:-1])
        return cls(job, np.where(least == most, least, -1).astype(np.int32), first, role.astype(np.int32), group, count)

    def needs(self, snapshot: Snapshot, job: int, host: int) -> tuple[Ints, Floats]:
        """Return the device groups (P,), and what a job takes there beside GPUs (P, 2) if it joins a host."""
        rows = slice(self.first[host], self.first[host + 1])
        demand = snapshot.demand[self.role[rows], job][:, BESIDE]
        return self.group[rows], self.count[rows, None] * demand

    def has_room(self, snapshot: Snapshot, job: int, host: int, left: Floats) -> bool:
        """Return whether a job may, and can, lie where a host does."""
        group, needs = self.needs(snapshot, job, host)
        rules = snapshot.hosting
        if rules is not None and not rules.open[rules.row[job]][group].all():
            return False
        after = left[:, BESIDE].copy()
        np.subtract.at(after, group, needs)
        return bool((after[group] >= -SLACK).all())

    def join(self, snapshot: Snapshot, job: int, host: int, left: Floats) -> Placement:
        """Return the placement that adds a job to a host's GPUs; subtract its cores and memory from `left`."""
        group, needs = self.needs(snapshot, job, host)
        np.subtract.at(left, (group[:, None], BESIDE), needs)
        rows, mate = slice(self.first[host], self.first[host + 1]), int(self.job[host])
        self.device_type[host] = -1
        pair = [job, mate]
        return Placement.of(
            pair, job=np.repeat(pair, len(group)), role=np.tile(self.role[rows], 2), group=np.tile(group, 2),
            count=np.tile(self.count[rows], 2), partner=[mate, job],
        )  # fmt: skip


def agreeing(profile: Profile, least_speed: float) -> Bools:
    """Return which two kinds, sharing GPUs of a type, both keep this part of their speed alone, (K, K, T)."""
    n_kinds, n_types = profile.alone.shape
    if profile.shared is None:
        return np.zeros((n_kinds, n_kinds, n_types), np.bool_)
    alone = np.where(profile.alone > 0, profile.alone, inf)[:, None, :]
    keeps = np.asarray(profile.shared >= (least_speed - SLACK) * alone) & (profile.shared > 0)
    return np.asarray(keeps & keeps.swapaxes(0, 1))
