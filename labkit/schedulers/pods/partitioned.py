"""A scheduler for each pod of a cluster; a job that finds no room at home is forwarded once, whole."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import ClassVar, Final

import numpy as np

from labkit.core.errors import InputError, unknown
from labkit.core.life import Context, begin_placer
from labkit.core.placement import Placement
from labkit.core.pod_snapshot import PodSnapshot
from labkit.core.pods import n_pods
from labkit.core.protocols import Placer
from labkit.core.resources import Ints
from labkit.core.snapshot import Snapshot
from labkit.placers import Even
from labkit.schedulers.base import place, requested_gangs, start_in_order
from labkit.schedulers.pods.room import PodRoom, refuse_unfit

FORWARD: Final = {
    "most_free": "the pod with most free GPUs that holds it",
    "least_free": "the pod with fewest free GPUs that holds it",
    "next": "the next pod by number that holds it, after the last one the first",
    "none": "nowhere: it waits at home",
}
"""Where a job goes that finds no room at home."""


@dataclass(slots=True)
class Partitioned:
    """First come, first served with backfill in each pod; what finds no room at home is forwarded, once and whole [1]_.

    A job belongs to the pod where it arrives (`Jobs.home`). At each decision a pod places its own waiting jobs, in
    order of arrival; one that does not fit is passed over. When all pods have done so, each job that found no room is
    tried elsewhere, in order of arrival. If a pod holds it, it starts there at once and belongs there from then on: it
    is never forwarded again. If none does, it waits at home. A job without a home is tried like one that found no room.

    Nothing is remembered here: the pod of each job is in the snapshot (`Snapshot.pod_of`), from FORWARDED events.

    Attributes
    ----------
    placer : Placer
        Where gangs go within a pod.
    forward : str
        Where a job goes that finds no room at home: a name in `FORWARD`.
    pods : bool
        False: one scheduler for the whole cluster, to which homes do not matter.

    References
    ----------
    .. [1] Zhao and Wu, "Large-scale machine learning cluster scheduling via multi-agent graph RL", sec. IV.
    """

    knows_types: ClassVar[bool] = False

    placer: Placer = Even(keep_order=True)
    forward: str = "most_free"
    pods: bool = True
    _run_placer: Placer | None = field(default=None, init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        if self.forward not in FORWARD:
            raise unknown("forward of partitioned", self.forward, FORWARD)

    def begin(self, context: Context) -> None:
        """Let the placer know what may be known, and refuse jobs that no pod holds.

        Raise InputError if a pod has no GPU, a job's home is no pod of the cluster, or no pod that a job may go to ever
        holds it.
        """
        self._run_placer = begin_placer(self.placer, context)
        if self.pods:
            refuse_unfit(context.jobs, context.cluster, context.runs_on, forwards=self.forward != "none")

    def schedule(self, snapshot: Snapshot) -> Placement:
        """Return which jobs start, and where."""
        placer = self.placer if self._run_placer is None else self._run_placer
        waiting = snapshot.waiting
        if not len(waiting):
            return Placement.nothing()
        if not self.pods or n_pods(snapshot.cluster) == 1:
            return start_in_order(snapshot, waiting, placer, backfill=True)
        return self._by_pod(PodRoom(snapshot, waiting), placer)

    def _by_pod(self, room: PodRoom, placer: Placer) -> Placement:
        """Return which jobs start in which pods."""
        snapshot, waiting = room.snapshot, room.waiting
        belongs = snapshot.pod_of(waiting)
        _refuse_strangers(snapshot, belongs, waiting)
        started: list[Placement] = []

        def start(pod: int, jobs: Ints) -> None:
            part = PodSnapshot(snapshot, pod, trial=room.trial)
            answer = place(placer, part, requested_gangs(part, jobs))
            room.take(answer)
            started.append(answer)

        for pod in np.unique(belongs[belongs >= 0]).tolist():
            if len(mine := room.may_fit(waiting[belongs == pod], pod)):
                start(pod, mine)
        left = waiting[~room.started[waiting] & ((belongs == snapshot.table.home[waiting]) | (belongs < 0))]
        for job in left.tolist() if self.forward != "none" or (belongs < 0).any() else ():
            for pod in self._elsewhere(room, int(job)):
                start(pod, np.array([job], np.int32))
                if room.started[job]:
                    break
                room.note_full(job, pod)
        return Placement.joined(started) if started else Placement.nothing()

    def _elsewhere(self, room: PodRoom, job: int) -> Iterator[int]:
        """Return the pods that a job is to be tried in, which may hold it, the first choice first."""
        home, n = int(room.snapshot.table.home[job]), n_pods(room.snapshot.cluster)
        if home >= 0 and self.forward == "none":
            return iter(())
        if self.forward == "next":
            order = (home + 1 + np.arange(n)) % n
        else:
            sign = 1.0 if self.forward == "least_free" else -1.0
            order = np.argsort(sign * room.free_gpus, kind="stable")
        return (pod for pod in order.tolist() if pod != home and room.holds(job, pod))


def _refuse_strangers(snapshot: Snapshot, belongs: Ints, waiting: Ints) -> None:
    """Raise if a job's home is no pod of the cluster."""
    n = n_pods(snapshot.cluster)
    if belongs.max(initial=-1) >= n:
        job = int(waiting[belongs.argmax()])
        raise InputError(
            f"job {snapshot.table.id[job]} arrives in pod {belongs.max()}; {snapshot.cluster.name} has pods 0 to "
            f"{n - 1}. Take a cluster with more pods, or a trace with fewer homes."
        )
