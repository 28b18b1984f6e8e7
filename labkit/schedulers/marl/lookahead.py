"""The look-ahead over pods: an oracle that knows the truth about interference, to learn from and to be measured by."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import ClassVar

import numpy as np

from labkit.core.cluster import Cluster
from labkit.core.jobs import Jobs
from labkit.core.life import Contention, Context
from labkit.core.placement import Placement
from labkit.core.resources import Ints
from labkit.core.snapshot import Snapshot
from labkit.schedulers.marl.network import NEVER, desk_of, plain
from labkit.schedulers.marl.scenes import declared_speed, scene_of
from labkit.schedulers.marl.scheduler import RunKnowledge, left_out, weighed
from labkit.schedulers.pods.room import refuse_pods_without_gpus
from labkit.speed.what_if import slow_of


@dataclass(eq=False)
class LookAheadPods:
    """Put each gang where it and those beside it take least longer, by the true interference: an oracle.

    It weighs what `marl` weighs (all ways onto one machine, even splits; at home and in other pods) by the true
    slowdowns, with each link's bandwidth shared equally and nothing but network cards looked at. It takes the least
    sum of seconds, its own and those that the jobs beside it lose, as if no other job ever came.

    Attributes
    ----------
    forwards : bool
        False: a job goes to another pod only where it finds no room at home.
    patience : float
        A job waits that would take more than so many times its duration alone, with what the others lose, up to twice
        its duration; inf: never.
    """

    oracle: ClassVar[bool] = True
    knows_types: ClassVar[bool] = False

    forwards: bool = True
    patience: float = np.inf
    _knowledge: RunKnowledge | None = field(default=None, init=False, repr=False)

    def begin(self, context: Context) -> None:
        """Begin a run: be told the truth about interference; InputError if a pod has no GPU."""
        refuse_pods_without_gpus(context.cluster)
        jobs, cluster, runs_on = context.jobs, context.cluster, context.runs_on
        level = getattr(context, "interference", None)
        speed = declared_speed(jobs, cluster)
        uses = None if level is None else level.uses
        scene, net = scene_of(jobs, cluster, runs_on=runs_on, speed=speed, uses=uses), plain()
        net.wait[:, -1] = -net.sharp * self.patience if np.isfinite(self.patience) else NEVER
        self._knowledge = RunKnowledge(scene, desk_of(scene), slow_of(None if level is None else level.model), net)

    def cautions(self, jobs: Jobs, cluster: Cluster, interference: Contention | None) -> list[str]:  # noqa: ARG002
        """Return the cautions for readers of a run's numbers, a sentence each."""
        return [] if (cut := left_out(jobs, cluster)) is None else [cut]

    def schedule(self, snapshot: Snapshot) -> Placement:
        """Return where the waiting jobs go."""
        waiting = self._queue(snapshot)
        if not len(waiting):
            return Placement.nothing()
        if self._knowledge is None:
            self.begin(_without_truth(snapshot))
        assert self._knowledge is not None
        return weighed(self._knowledge, snapshot, waiting, forwards=self.forwards)

    def _queue(self, snapshot: Snapshot) -> Ints:
        """Return the waiting jobs in the order in which they are placed."""
        return snapshot.waiting


def _without_truth(snapshot: Snapshot) -> Context:
    """Return a context in which nothing is known of interference, for a run that never began."""
    none = lambda *_, **__: (_ for _ in ()).throw(NotImplementedError)  # noqa: E731
    return Context(
        jobs=snapshot.table, cluster=snapshot.cluster, runs_on=snapshot.runs_on, measure=none, profile=none,
        rng=np.random.default_rng(0),
    )  # fmt: skip
